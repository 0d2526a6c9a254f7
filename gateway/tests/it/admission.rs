//! Who is let in, who is refused and what clients are told, who is shed, and who stands in.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use weir_budget::{Limits, WindowLimit};
use weir_gateway::{ModelPermission, ModelRoute, Tenant};
use weir_run::Price;

use crate::client::Reply;
use crate::site::{DIGEST, Site, all_to, ask, config, snapshot, tenant, version, wait_for};
use crate::worker::FakeWorker;

const SMALL: &str = "sha256:3333";

fn limited(change: impl FnOnce(&mut Limits)) -> Tenant {
    let mut acme = tenant("acme");
    change(&mut acme.limits);
    acme
}

/// Of a tenant that is limited like this, the first answer that is no acceptance.
async fn refusal_of(acme: Tenant, body: &Value) -> Reply {
    let (site, _worker) = Site::with(false, vec![acme]).await;
    let client = site.client("acme");
    for _ in 0..3 {
        let reply = client.post("/inference", body).await;
        if reply.status != 202 {
            return reply;
        }
    }
    panic!("nothing was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_says_whether_and_when_to_try_again() {
    let window = |tokens, micros| WindowLimit {
        period_s: 86_400,
        tokens,
        micros,
    };
    let kv = |percent| Tenant {
        kv_share_percent: Some(percent),
        ..tenant("acme")
    };
    let late = json!({"model": "tiny", "input": "hello", "maxOutputTokens": 3, "deadline": "2020-01-01T00:00:00.000Z"});
    let foreign = json!({"model": "other", "input": "hello"});
    // Tenant, request, code, whether to try again, whether it is said when.
    let cases = [
        (
            limited(|l| l.windows = vec![window(Some(10), None)]),
            ask(3),
            "budget_exceeded",
            false,
            true,
        ),
        (
            limited(|l| l.windows = vec![window(None, Some(20))]),
            ask(3),
            "budget_exceeded",
            false,
            true,
        ),
        (
            limited(|l| l.requests_per_minute = Some(1)),
            ask(3),
            "rate_limited",
            true,
            true,
        ),
        (
            limited(|l| l.tokens_per_minute = Some(10)),
            ask(3),
            "rate_limited",
            true,
            true,
        ),
        (
            limited(|l| l.tokens_per_minute = Some(7)),
            ask(3),
            "rate_limited",
            false,
            true,
        ),
        (
            limited(|l| l.concurrent_runs = Some(1)),
            ask(3),
            "concurrency_limited",
            true,
            true,
        ),
        (kv(1), ask(150), "kv_share_exceeded", true, true),
        (kv(1), ask(200), "kv_share_exceeded", false, true),
        (tenant("acme"), late, "deadline_unmeetable", false, false),
        (tenant("acme"), foreign, "model_not_permitted", false, false),
        (tenant("acme"), ask(2000), "output_too_long", false, false),
    ];
    let mut failed = Vec::new();
    for (acme, body, code, retry, when) in cases {
        let reply = refusal_of(acme, &body).await;
        let got = (
            reply.code().to_owned(),
            reply.header("x-should-retry") == "true",
            !reply.header("retry-after-ms").is_empty() && !reply.header("retry-after").is_empty(),
        );
        if got != (code.to_owned(), retry, when) || reply.header("x-error-code") != code {
            failed.push(format!("{code} {retry} {when}: {reply:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// One seat and one beyond it, both taken; further runs wait.
async fn full(depth: u32, tenants: Vec<Tenant>) -> (Site, FakeWorker) {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    worker.max_running(1);
    let mut snapshot = snapshot(folder.path(), tenants, &["w0"]);
    for queue in &mut snapshot.pools[0].queues {
        queue.max_depth = depth;
    }
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    let client = site.client("acme");
    for _ in 0..2 {
        assert_eq!(client.post("/inference", &ask(3)).await.status, 202);
    }
    wait_for("both runs on the worker", || worker.held() == 2).await;
    (site, worker)
}

fn of_priority(priority: &str) -> Value {
    let mut body = ask(3);
    body["priority"] = json!(priority);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_run_is_shed_before_an_interactive_one_is_refused() {
    let (site, worker) = full(1, vec![tenant("acme")]).await;
    let client = site.client("acme");
    let batch = client.post("/inference", &of_priority("batch")).await;
    let standard = client.post("/inference", &of_priority("standard")).await;
    assert_eq!((batch.status, standard.status), (202, 202));
    let full = client.post("/inference", &of_priority("batch")).await;
    assert_eq!(full.code(), "queue_full");
    let urgent = client.post("/inference", &of_priority("interactive")).await;
    assert_eq!(urgent.status, 202, "{urgent:?}");
    let shed = client.wait_status(&batch.run(), &["expired"]).await;
    let error = shed["error"].as_str().unwrap();
    assert!(error.starts_with("shed: "), "{error}");
    assert_eq!(shed["costMicros"], 0, "nothing was computed");
    wait_for("all to end", || {
        worker.finish();
        site.gateway.live_runs() == 0
    })
    .await;
    for run in [standard.run(), urgent.run()] {
        client.wait_status(&run, &["completed"]).await;
    }
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shed_call_of_an_openai_client_is_told_to_come_back() {
    let (site, worker) = full(1, vec![tenant("acme")]).await;
    let client = site.client("acme");
    let waiting = client.clone();
    let call = tokio::spawn(async move {
        let body = json!({"model": "tiny", "prompt": "hello", "max_tokens": 3});
        let headers = [("x-weir-priority", "batch")];
        waiting
            .call(Method::POST, "/v1/completions", Some(&body), &headers)
            .await
    });
    wait_for("it to wait", || site.gateway.queue_depth("small") == 1).await;
    client.post("/inference", &of_priority("standard")).await;
    client.post("/inference", &of_priority("interactive")).await;
    let reply = call.await.unwrap();
    assert_eq!((reply.status, reply.code()), (429, "shed"), "{reply:?}");
    assert_eq!(reply.header("x-should-retry"), "true");
    assert!(!reply.header("retry-after").is_empty());
    wait_for("all to end", || {
        worker.finish();
        site.gateway.live_runs() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_model_is_stood_in_for_at_the_smaller_ones_price() {
    let folder = tempfile::tempdir().unwrap();
    let large_worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    large_worker.max_running(1);
    let _small_worker = FakeWorker::start(folder.path(), "w1", SMALL, true);
    let mut acme = tenant("acme");
    acme.models[0].fallback = true;
    let small = ModelPermission {
        name: "little".to_owned(),
        ..acme.models[0].clone()
    };
    acme.models.push(small);
    let mut snapshot = snapshot(folder.path(), vec![acme, tenant("globex")], &["w0", "w1"]);
    let mut large = version("tiny", 2, DIGEST);
    large.fallback = vec!["gone".to_owned(), "little".to_owned()];
    snapshot.models[0].versions = vec![Arc::new(large)];
    let mut small = version("little", 1, SMALL);
    small.price = Price {
        prompt_micros_per_token: 0,
        cached_micros_per_token: 0,
        output_micros_per_token: 1,
    };
    small.context_tokens = 64;
    snapshot.models.push(ModelRoute {
        mirror: None,
        name: "little".to_owned(),
        versions: vec![Arc::new(small)],
        table: all_to(1, 1, SMALL),
    });
    snapshot.pools[0].queues[0].max_depth = 1;
    let site = Site::start(folder, snapshot, config()).await;
    wait_for("both models", || {
        site.gateway.is_served("small", DIGEST) && site.gateway.is_served("small", SMALL)
    })
    .await;
    let client = site.client("acme");
    let mut body = ask(3);
    body["allowFallback"] = json!(true);
    let served = async |body: &Value| {
        let run = client.post("/inference", body).await;
        client.get(&format!("/runs/{}", run.run())).await.body
    };
    for _ in 0..3 {
        let row = served(&body).await;
        assert_eq!(row["decision"]["reason"], "stable", "there is room");
    }
    let run = client.post("/inference", &body).await;
    let row = client.wait_status(&run.run(), &["completed"]).await;
    assert_eq!(row["model"], "little");
    assert_eq!(row["decision"]["reason"], "fallback");
    assert_eq!(row["decision"]["requested"], "tiny");
    assert_eq!(
        row["costMicros"], 3,
        "three tokens at the smaller one's price"
    );
    // What does not fit the smaller one is refused as the larger one refuses it.
    let mut long = body.clone();
    long["input"] = json!("x".repeat(100));
    let refused = client.post("/inference", &long).await;
    assert_eq!(refused.code(), "queue_full", "{refused:?}");
    // Not without the request's leave, nor without the tenant's.
    assert_eq!(
        client.post("/inference", &ask(3)).await.code(),
        "queue_full"
    );
    let refused = site.client("globex").post("/inference", &body).await;
    assert_eq!(refused.code(), "queue_full", "{refused:?}");
    wait_for("all to end", || {
        large_worker.finish();
        site.gateway.live_runs() == 0
    })
    .await;
    site.assert_settled("acme").await;
}

/// Forty requests at once against a limit that lets five in: never six, however they race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_requests_never_overshoot_any_limit() {
    let window = |tokens, micros| WindowLimit {
        period_s: 86_400,
        tokens,
        micros,
    };
    // Each reserves 5 + 3 tokens and 5 + 12 micros.
    let cases = [
        limited(|l| l.windows = vec![window(Some(44), None)]),
        limited(|l| l.windows = vec![window(None, Some(90))]),
        limited(|l| {
            l.windows = vec![
                window(Some(1_000), None),
                WindowLimit {
                    period_s: 3_600,
                    ..window(Some(40), Some(85))
                },
            ];
        }),
        limited(|l| l.requests_per_minute = Some(5)),
        limited(|l| l.tokens_per_minute = Some(47)),
        limited(|l| l.concurrent_runs = Some(5)),
        limited(|l| {
            l.concurrent_runs = Some(5);
            l.tokens_per_minute = Some(1_000);
            l.windows = vec![window(Some(500), Some(5_000))];
        }),
    ];
    for (nth, acme) in cases.into_iter().enumerate() {
        let (site, _worker) = Site::with(false, vec![acme]).await;
        let client = site.client("acme");
        let calls: Vec<_> = (0..40)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.post("/inference", &ask(3)).await.status })
            })
            .collect();
        let mut accepted = 0;
        for call in calls {
            let status = call.await.unwrap();
            assert!(status == 202 || status == 429, "case {nth}: {status}");
            accepted += usize::from(status == 202);
        }
        assert_eq!(accepted, 5, "case {nth}");
        assert_eq!(site.gateway.live_runs(), 5, "case {nth}");
    }
}
