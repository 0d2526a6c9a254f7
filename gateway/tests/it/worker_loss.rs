//! Workers that die, vanish for a moment, hang or refuse.

use serde_json::json;
use weir_protocol::worker::rejected::Code;

use crate::client::Event;
use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

fn assert_whole(events: &[Event]) {
    for (place, event) in events.iter().enumerate() {
        assert_eq!(event.id, place as u64 + 1, "{events:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_workers_runs_end_interrupted_and_are_billed_for_what_they_made() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut body = ask(50);
    body["requestKey"] = json!("k");
    let mut stream = acme.stream("/inference", &body).await;
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(10);
    let mut events = stream.take(12).await;
    worker.kill();
    site.gateway.worker_died("w0");
    events.extend(stream.rest().await);
    let end = events.last().unwrap();
    assert_eq!(end.kind, "interrupted", "{end:?}");
    assert_eq!(
        end.data["usage"],
        json!({"promptTokens": 5, "cachedTokens": 2, "outputTokens": 10, "costMicros": 43})
    );
    assert_whole(&events);
    let run = events[0].data["runId"].as_str().unwrap().to_owned();
    assert_eq!(acme.all_events(&run, 0).await, events);
    let same = acme.post("/inference", &body).await;
    assert_eq!(
        (same.status, same.run(), &same.body["status"]),
        (200, run.clone(), &json!("interrupted"))
    );

    let _worker = FakeWorker::start(site.folder.path(), "w0", DIGEST, true);
    site.wait_served().await;
    body["requestKey"] = json!("k2");
    body["replaces"] = json!(run);
    let new = acme.post("/inference", &body).await;
    assert_eq!(new.status, 202, "{new:?}");
    assert_eq!(
        acme.get(&format!("/runs/{run}")).await.body["replacedBy"],
        json!(new.run())
    );
    acme.wait_status(&new.run(), &["completed"]).await;
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_breaks_and_returns_loses_and_doubles_nothing() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(40)).await;
    wait_for("the run on the worker", || worker.held() == 1).await;
    for round in 1..=3 {
        worker.generate(5);
        worker.break_session();
        worker.generate(5);
        wait_for("the run to be attached", || worker.attaches() >= round).await;
        worker.send_stale_row();
    }
    worker.generate(50);
    let mut events = stream.take(2).await;
    events.extend(stream.rest().await);
    assert_whole(&events);
    assert_eq!(events.len(), 43);
    let text: String = events
        .iter()
        .filter_map(|e| e.data["text"].as_str())
        .collect();
    let want: String = (1..=40).map(|n| format!(" {n}")).collect();
    assert_eq!(text, want);
    assert_eq!(worker.submits().len(), 1);
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_finished_while_nobody_listened_is_collected() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let run = acme.post("/inference", &ask(5)).await.run();
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(2);
    acme.wait_status(&run, &["running"]).await;
    worker.break_session();
    worker.generate(3);
    let events = acme.all_events(&run, 0).await;
    assert_eq!(events.len(), 8);
    assert_eq!(events[7].kind, "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_started_goes_to_another_worker() {
    let folder = tempfile::tempdir().unwrap();
    let first = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0", "w1"]);
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    let acme = site.client("acme");
    let run = acme.post("/inference", &ask(3)).await.run();
    wait_for("the run on the worker", || first.held() == 1).await;
    let second = FakeWorker::start(site.folder.path(), "w1", DIGEST, true);
    first.kill();
    site.gateway.worker_died("w0");
    let events = acme.all_events(&run, 0).await;
    assert_eq!(events.last().unwrap().kind, "completed", "{events:?}");
    assert_eq!(second.submits()[0].epoch, 2, "under a new epoch");
    assert_whole(&events);
    let row = acme.get(&format!("/runs/{run}")).await.body;
    assert_eq!(row["decision"]["worker"], "w1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_refuses_is_passed_over_or_believed() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    worker.reject(Some(Code::TooLarge));
    let run = acme.post("/inference", &ask(3)).await.run();
    let row = acme.wait_status(&run, &["failed"]).await;
    assert!(
        row["error"].as_str().unwrap().contains("as the test says"),
        "{row}"
    );
    worker.reject(Some(Code::QueueFull));
    let run = acme.post("/inference", &ask(3)).await.run();
    acme.wait_status(&run, &["interrupted"]).await;
    worker.reject(None);
    let run = acme.post("/inference", &ask(3)).await.run();
    acme.wait_status(&run, &["completed"]).await;
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_fails_fails_the_run_with_its_words() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let run = acme.post("/inference", &ask(30)).await.run();
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(1);
    worker.fail("device lost");
    let row = acme.wait_status(&run, &["failed"]).await;
    assert!(
        row["error"].as_str().unwrap().contains("device lost"),
        "{row}"
    );
    site.assert_settled("acme").await;
}
