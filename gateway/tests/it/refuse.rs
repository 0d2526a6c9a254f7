//! Every refusal, its code, its parameter, and its place in the order.

use http::Method;
use serde_json::{Value, json};
use weir_budget::WindowLimit;
use weir_gateway::Priority;

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};

fn with(field: &str, value: Value) -> Value {
    let mut body = ask(4);
    body[field] = value;
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_requests_get_one_clear_error_each() {
    let mut acme = tenant("acme");
    acme.max_prompt_tokens = Some(100);
    acme.max_output_tokens = Some(64);
    acme.priority = Priority::Standard;
    acme.models[0].tiers = vec!["standard".to_owned()];
    let (site, worker) = Site::with(true, vec![acme]).await;
    let client = site.client("acme");
    let cases = [
        (
            "no model",
            json!({"input": "x"}),
            400,
            "invalid_request",
            "model",
        ),
        (
            "unknown model",
            with("model", json!("nobody")),
            403,
            "model_not_permitted",
            "model",
        ),
        (
            "unknown version",
            with("model", json!("tiny@9")),
            404,
            "model_not_found",
            "model",
        ),
        (
            "broken version",
            with("model", json!("tiny@x")),
            400,
            "invalid_request",
            "model",
        ),
        (
            "no input",
            json!({"model": "tiny"}),
            400,
            "invalid_request",
            "input",
        ),
        (
            "input of a wrong type",
            with("input", json!(5)),
            400,
            "invalid_request",
            "input",
        ),
        (
            "empty input",
            with("input", json!("")),
            400,
            "invalid_request",
            "input",
        ),
        (
            "a refused chat",
            with("input", json!([{"role": "bad", "content": "x"}])),
            422,
            "template_error",
            "input",
        ),
        (
            "unknown field",
            with("maxOutputToken", json!(4)),
            400,
            "invalid_request",
            "maxOutputToken",
        ),
        (
            "unknown sampling",
            with("sampling", json!({"topQ": 1})),
            400,
            "invalid_request",
            "sampling.topQ",
        ),
        (
            "zero output",
            with("maxOutputTokens", json!(0)),
            400,
            "invalid_request",
            "maxOutputTokens",
        ),
        (
            "output over the cap",
            with("maxOutputTokens", json!(65)),
            413,
            "output_too_long",
            "maxOutputTokens",
        ),
        (
            "prompt over the cap",
            with("input", json!({"tokens": vec![20; 101]})),
            413,
            "prompt_too_long",
            "input",
        ),
        (
            "foreign token",
            with("input", json!({"tokens": [999_999]})),
            400,
            "invalid_request",
            "input",
        ),
        (
            "temperature",
            with("sampling", json!({"temperature": -1})),
            400,
            "invalid_request",
            "sampling.temperature",
        ),
        (
            "top-p",
            with("sampling", json!({"topP": 0})),
            400,
            "invalid_request",
            "sampling.topP",
        ),
        (
            "past deadline",
            with("deadline", json!("2020-01-01T00:00:00.000Z")),
            429,
            "deadline_unmeetable",
            "deadline",
        ),
        (
            "no deadline",
            with("deadline", json!("soon")),
            400,
            "invalid_request",
            "deadline",
        ),
        (
            "no priority",
            with("priority", json!("urgent")),
            400,
            "invalid_request",
            "priority",
        ),
        (
            "priority",
            with("priority", json!("interactive")),
            403,
            "priority_not_permitted",
            "priority",
        ),
        (
            "no run",
            with("replaces", json!("run_1")),
            400,
            "invalid_request",
            "replaces",
        ),
        (
            "unknown run",
            with("replaces", json!("run_00000000000000000000000000")),
            400,
            "invalid_request",
            "replaces",
        ),
    ];
    for (name, body, status, code, param) in cases {
        let reply = client.post("/inference", &body).await;
        assert_eq!(
            (reply.status, reply.code()),
            (status, code),
            "{name}: {}",
            reply.text
        );
        assert_eq!(
            reply.body["error"]["param"], param,
            "{name}: {}",
            reply.text
        );
        assert!(!reply.body["error"]["message"].as_str().unwrap().is_empty());
        assert!(!reply.header("x-request-id").is_empty());
    }
    assert_eq!(worker.submits().len(), 0, "no work was done");
    assert_eq!(site.gateway.live_runs(), 0);
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_is_refused_in_the_same_shape() {
    let (site, _worker) = Site::new(true).await;
    let client = site.client("acme");
    let deep: Value =
        serde_json::from_str(&format!("{}{}", "[".repeat(60), "]".repeat(60))).unwrap();
    let cases = [
        (Method::GET, "/nowhere", None, 404, "not_found"),
        (Method::PUT, "/inference", None, 405, "method_not_allowed"),
        (Method::POST, "/runs/run_1", None, 405, "method_not_allowed"),
        (Method::GET, "/runs/not-a-run", None, 404, "run_not_found"),
        (
            Method::GET,
            "/usage?groupBy=colour",
            None,
            400,
            "invalid_request",
        ),
        (Method::GET, "/usage?form=x", None, 400, "invalid_request"),
        (
            Method::POST,
            "/inference",
            Some(deep),
            400,
            "invalid_request",
        ),
        (
            Method::POST,
            "/inference",
            Some(json!([])),
            400,
            "invalid_request",
        ),
        (
            Method::POST,
            "/inference",
            Some(json!({"x": "y".repeat(5 << 20)})),
            413,
            "body_too_large",
        ),
        (
            Method::POST,
            "/v1/embeddings",
            Some(json!({})),
            404,
            "unsupported_endpoint",
        ),
    ];
    for (method, path, body, status, code) in cases {
        let reply = client.call(method.clone(), path, body.as_ref(), &[]).await;
        assert_eq!(
            (reply.status, reply.code()),
            (status, code),
            "{method} {path}: {}",
            reply.text
        );
    }
    let allowed = client.call(Method::PUT, "/runs/run_1", None, &[]).await;
    assert_eq!(allowed.header("allow"), "GET, DELETE");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_does_not_suffice_says_what_would_fit() {
    let mut acme = tenant("acme");
    acme.max_output_tokens = Some(4000);
    acme.limits.windows = vec![WindowLimit {
        period_s: 86_400,
        tokens: Some(10_000),
        micros: None,
    }];
    let (site, worker) = Site::with(true, vec![acme]).await;
    let client = site.client("acme");
    let prompt: Vec<u32> = (0..9000).map(|token| token % 500).collect();
    let body = |max: u32| json!({"model": "tiny", "input": {"tokens": prompt}, "maxOutputTokens": max, "requestKey": "big"});
    let refused = client.post("/inference", &body(2000)).await;
    assert_eq!(
        (refused.status, refused.code()),
        (429, "budget_exceeded"),
        "{refused:?}"
    );
    let details = &refused.body["error"]["details"];
    assert_eq!(details["availableTokens"], 10_000);
    assert_eq!(details["largestMaxOutputTokens"], 1000);
    assert_eq!(refused.header("x-should-retry"), "false");
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(worker.submits().len(), 0);
    let accepted = client.post("/inference", &body(1000)).await;
    assert_eq!(
        accepted.status, 202,
        "the refusal kept neither key nor budget: {accepted:?}"
    );
    client.wait_status(&accepted.run(), &["completed"]).await;
    let usage = site.assert_settled("acme").await;
    assert_eq!(usage["windows"][0]["period"], "24h");
    assert_eq!(usage["windows"][0]["availableTokens"], 0, "{usage}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_refuse_in_their_order() {
    let mut acme = tenant("acme");
    acme.limits.windows = vec![WindowLimit {
        period_s: 86_400,
        tokens: Some(40),
        micros: None,
    }];
    acme.limits.requests_per_minute = Some(4);
    acme.limits.concurrent_runs = Some(2);
    acme.kv_share_percent = Some(100);
    let (site, worker) = Site::with(false, vec![acme]).await;
    let client = site.client("acme");
    let code = async |output: u32| {
        client
            .post("/inference", &ask(output))
            .await
            .code()
            .to_owned()
    };
    assert_eq!(code(3).await, "");
    assert_eq!(code(3).await, "");
    assert_eq!(code(3).await, "concurrency_limited");
    assert_eq!(code(300).await, "budget_exceeded", "before concurrency");
    wait_for("both runs on the worker", || worker.held() == 2).await;
    worker.generate(3);
    wait_for("both to end", || site.gateway.live_runs() == 0).await;
    assert_eq!(code(3).await, "");
    assert_eq!(code(3).await, "");
    assert_eq!(
        code(3).await,
        "rate_limited",
        "before concurrency; refusals counted in no rate"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_kv_memory_bounds_live_runs() {
    let mut acme = tenant("acme");
    acme.kv_share_percent = Some(1);
    let (site, worker) = Site::with(false, vec![acme]).await;
    let client = site.client("acme");
    // 1 % of 16,000 tokens.
    assert_eq!(client.post("/inference", &ask(100)).await.status, 202);
    let refused = client.post("/inference", &ask(100)).await;
    assert_eq!(refused.code(), "kv_share_exceeded", "{refused:?}");
    assert_eq!(refused.body["error"]["details"]["kvTokens"], 160);
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.finish();
    wait_for("its end", || site.gateway.live_runs() == 0).await;
    assert_eq!(client.post("/inference", &ask(100)).await.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_after_the_budget_and_before_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let worker = crate::worker::FakeWorker::start(folder.path(), "w0", DIGEST, false);
    worker.max_running(1);
    let mut acme = tenant("acme");
    acme.limits.windows = vec![WindowLimit {
        period_s: 86_400,
        tokens: Some(1000),
        micros: None,
    }];
    let mut snapshot = snapshot(folder.path(), vec![acme], &["w0"]);
    snapshot.pools[0].queues[0].max_depth = 2;
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    let client = site.client("acme");
    let mut codes = Vec::new();
    for _ in 0..8 {
        codes.push(client.post("/inference", &ask(3)).await.code().to_owned());
    }
    assert_eq!(
        codes.iter().filter(|code| code.is_empty()).count(),
        4,
        "two on the worker, two waiting: {codes:?}"
    );
    assert!(
        codes[4..].iter().all(|code| code == "queue_full"),
        "{codes:?}"
    );
    assert_eq!(
        client.post("/inference", &ask(1000)).await.code(),
        "budget_exceeded"
    );
    let mut late = ask(3);
    late["requestKey"] = json!("k");
    assert_eq!(client.post("/inference", &late).await.code(), "queue_full");
    wait_for("all to end", || {
        worker.finish();
        site.gateway.live_runs() == 0
    })
    .await;
    assert_eq!(
        client.post("/inference", &late).await.status,
        202,
        "a refusal keeps no key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_worker_nothing_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
    let site = Site::start(folder, snapshot, config()).await;
    let reply = site.client("acme").post("/inference", &ask(3)).await;
    assert_eq!(
        (reply.status, reply.code()),
        (503, "no_healthy_worker"),
        "{reply:?}"
    );
    assert_eq!(reply.header("retry-after-ms"), "1000");
    assert_eq!(reply.header("x-should-retry"), "true");
    assert_eq!(site.gateway.live_runs(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_drains_refuses_new_runs_and_finishes_streams() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut body = ask(3);
    body["requestKey"] = json!("k");
    let mut stream = acme.stream("/inference", &body).await;
    stream.take(1).await;
    wait_for("the run on the worker", || worker.held() == 1).await;
    let drained = tokio::spawn({
        let gateway = site.gateway.clone();
        async move { gateway.drain(std::time::Duration::from_secs(10)).await }
    });
    let mut refused = acme.post("/inference", &ask(3)).await;
    while refused.status == 202 {
        refused = acme.post("/inference", &ask(3)).await;
    }
    assert_eq!(
        (refused.status, refused.code()),
        (503, "draining"),
        "{refused:?}"
    );
    assert_eq!(
        acme.post("/inference", &body).await.status,
        200,
        "a repeat still finds its run"
    );
    wait_for("the end of all", || {
        worker.finish();
        site.gateway.live_runs() == 0
    })
    .await;
    assert_eq!(stream.rest().await.last().unwrap().kind, "completed");
    assert_eq!(drained.await.unwrap(), 0);
    site.stop.cancel();
    site.serving.await.unwrap();
}
