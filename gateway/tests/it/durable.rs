//! Durable first, then visible, then acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_store::{Engine, open};

use crate::gate::GatedStore;
use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

async fn gated() -> (Site, FakeWorker, Arc<GatedStore>) {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    let store = GatedStore::new(open(&folder.path().join("store"), Engine::default()).unwrap());
    let mut acme = tenant("acme");
    acme.max_output_tokens = Some(2000);
    let snapshot = snapshot(folder.path(), vec![acme], &["w0"]);
    let site = Site::on(folder, Arc::clone(&store) as _, snapshot, config()).await;
    site.wait_served().await;
    (site, worker, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_visible_before_it_is_durable_and_a_slow_store_shares_its_commits() {
    let (site, worker, store) = gated().await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(100)).await;
    stream.take(1).await;
    wait_for("the run on the worker", || worker.held() == 1).await;
    store.shut();
    for _ in 0..20 {
        worker.generate(1);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let early = tokio::time::timeout(Duration::from_millis(200), stream.next()).await;
    assert!(early.is_err(), "seen before it was durable: {early:?}");
    let before = store.commits.load(Ordering::SeqCst);
    store.open();
    let events = stream.take(21).await;
    assert_eq!(events.last().unwrap().id, 22);
    let commits = store.commits.load(Ordering::SeqCst) - before;
    assert!(commits <= 3, "twenty steps in {commits} commits");
    worker.finish();
    stream.rest().await;
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_held_back_at_its_window_while_nothing_becomes_durable() {
    let (site, worker, store) = gated().await;
    let acme = site.client("acme");
    store.shut();
    let run = acme.post("/inference", &ask(1000)).await.run();
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(1000);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(worker.sent(), 256, "no more than the window");
    store.fail_next(3);
    store.open();
    let events = acme.all_events(&run, 0).await;
    assert_eq!(
        events.len(),
        1003,
        "a store that is busy for a moment loses nothing"
    );
    site.assert_settled("acme").await;
}
