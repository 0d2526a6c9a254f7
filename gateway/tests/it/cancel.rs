//! Ends that were asked for.

use serde_json::json;

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_keeps_and_bills_what_it_has() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(50)).await;
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(4);
    let seen = stream.take(6).await;
    let run = seen[0].data["runId"].as_str().unwrap().to_owned();
    let path = format!("/runs/{run}");
    let cancelling = acme.delete(&path).await;
    assert_eq!(
        (cancelling.status, &cancelling.body["status"]),
        (202, &json!("cancelling"))
    );
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].kind, "cancelled");
    assert_eq!(rest[0].data["usage"]["outputTokens"], 4);
    for _ in 0..2 {
        let done = acme.delete(&path).await;
        assert_eq!(
            (done.status, &done.body["status"]),
            (200, &json!("cancelled"))
        );
    }
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_cancelled_in_the_queue_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    worker.max_running(1);
    let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    let acme = site.client("acme");
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(acme.post("/inference", &ask(5)).await.run());
    }
    wait_for("two runs on the worker", || worker.held() == 2).await;
    assert_eq!(acme.delete(&format!("/runs/{}", runs[2])).await.status, 202);
    let events = acme.all_events(&runs[2], 0).await;
    assert_eq!(
        events.iter().map(|e| e.kind.as_str()).collect::<Vec<_>>(),
        ["accepted", "cancelled"]
    );
    assert_eq!(
        events[1].data["usage"],
        json!({"promptTokens": 0, "cachedTokens": 0, "outputTokens": 0, "costMicros": 0})
    );
    assert_eq!(worker.cancels(), 0, "the worker never heard of it");
    worker.finish();
    wait_for("the others to end", || site.gateway.live_runs() == 0).await;
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_past_its_deadline_expires_with_what_it_has() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut body = ask(50);
    let deadline = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(300);
    body["deadline"] = json!(deadline.to_string());
    let run = acme.post("/inference", &body).await.run();
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(2);
    let events = acme.all_events(&run, 0).await;
    let end = events.last().unwrap();
    assert_eq!(end.kind, "expired", "{end:?}");
    assert_eq!(end.data["usage"]["outputTokens"], 2);
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_too_long_in_the_queue_expires() {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    worker.max_running(1);
    let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    let acme = site.client("acme");
    acme.post("/inference", &ask(5)).await;
    acme.post("/inference", &ask(5)).await;
    let mut body = ask(5);
    body["maxQueueMs"] = json!(100);
    let run = acme.post("/inference", &body).await.run();
    let events = acme.all_events(&run, 0).await;
    assert_eq!(events.last().unwrap().kind, "expired");
    assert_eq!(worker.submits().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_key_ends_when_its_client_leaves_and_one_with_a_key_goes_on() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let chat =
        json!({"model": "tiny", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let plain = acme.stream("/v1/chat/completions", &chat).await;
    let plain_run = plain.headers["x-run-id"].to_str().unwrap().to_owned();
    let keyed = acme
        .stream_with("/v1/chat/completions", &chat, &[("idempotency-key", "k")])
        .await;
    let keyed_run = keyed.headers["x-run-id"].to_str().unwrap().to_owned();
    wait_for("both runs on the worker", || worker.held() == 2).await;
    drop((plain, keyed));
    acme.wait_status(&plain_run, &["cancelled"]).await;
    assert_eq!(
        acme.wait_status(&keyed_run, &["accepted", "running"]).await["error"],
        json!(null)
    );
    worker.finish();
    acme.wait_status(&keyed_run, &["completed"]).await;

    let whole = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    let waiting = tokio::spawn({
        let acme = acme.clone();
        async move { acme.post("/v1/chat/completions", &whole).await }
    });
    wait_for("the run on the worker", || worker.held() == 1).await;
    waiting.abort();
    wait_for("its cancellation", || site.gateway.live_runs() == 0).await;
    site.assert_settled("acme").await;
}
