//! A gateway that dies without a word, and its successor on the same store.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use weir_protocol::worker::finish::Reason;
use weir_store::{Engine, open};

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

/// Runs a gateway on a runtime of its own until `act` is done, then drops the runtime with everything in it.
pub(crate) async fn life<F, Fut, T>(
    folder: tempfile::TempDir,
    store: Arc<dyn weir_store::Store>,
    act: F,
) -> (tempfile::TempDir, T)
where
    F: FnOnce(Site) -> Fut + Send + 'static,
    Fut: Future<Output = (Site, T)> + Send,
    T: Send + 'static,
{
    let written = Arc::clone(&store);
    let lived = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (folder, value) = runtime.block_on(async {
            let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
            let site = Site::on(folder, store, snapshot, config()).await;
            let (site, value) = act(site).await;
            (site.folder, value)
        });
        // A process that dies does nothing more; what the runtime's last tasks had asked of the store is done before its successor reads.
        runtime.shutdown_timeout(Duration::from_secs(5));
        (folder, value)
    });
    let lived = lived.await.unwrap();
    written.write_objects(Vec::new()).await.unwrap();
    lived
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_whose_worker_lives_go_on_where_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, false));
    let theirs = Arc::clone(&worker);
    let (folder, (run, seen)) = life(folder, Arc::clone(&store), move |site| async move {
        site.wait_served().await;
        let mut stream = site.client("acme").stream("/inference", &ask(20)).await;
        wait_for("the run on the worker", || theirs.held() == 1).await;
        theirs.generate(5);
        let seen = stream.take(7).await;
        let run = seen[0].data["runId"].as_str().unwrap().to_owned();
        (site, (run, seen))
    })
    .await;
    worker.generate(5);
    let theirs = Arc::clone(&worker);
    let (_folder, ()) = life(folder, store, move |site| async move {
        let acme = site.client("acme");
        let mut stream = acme.events(&run, 0).await;
        assert_eq!(stream.take(7).await, seen);
        wait_for("the run to be attached", || theirs.attaches() == 1).await;
        theirs.generate(20);
        let rest = stream.rest().await;
        assert_eq!(
            rest.iter().map(|e| e.id).collect::<Vec<_>>(),
            (8..=23).collect::<Vec<_>>()
        );
        assert_eq!(rest.last().unwrap().data["usage"]["outputTokens"], 20);
        site.assert_settled("acme").await;
        (site, ())
    })
    .await;
    assert_eq!(worker.submits().len(), 1, "nothing was generated again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_whose_worker_is_gone_too_are_queued_again_or_end_with_what_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    worker.max_running(1);
    let (folder, runs) = life(folder, Arc::clone(&store), move |site| async move {
        site.wait_served().await;
        let acme = site.client("acme");
        let mut runs = vec![acme.post("/inference", &ask(20)).await.run()];
        wait_for("the run on the worker", || worker.held() == 1).await;
        worker.generate(5);
        let mut stream = acme.events(&runs[0], 0).await;
        stream.take(7).await;
        for key in ["sent", "queued", "cancelled"] {
            let mut body = ask(3);
            body["requestKey"] = json!(key);
            runs.push(acme.post("/inference", &body).await.run());
        }
        (site, (runs, worker))
    })
    .await;
    let (runs, worker) = runs;
    worker.kill();
    let path = folder.path().to_owned();
    let (_folder, ()) = life(folder, store, move |site| async move {
        let acme = site.client("acme");
        let cancelled = acme.delete(&format!("/runs/{}", runs[3])).await;
        assert_eq!(cancelled.status, 202);
        let row = acme.wait_status(&runs[0], &["interrupted"]).await;
        assert_eq!(row["outputTokens"], 5, "{row}");
        acme.wait_status(&runs[3], &["cancelled"]).await;
        let worker = FakeWorker::start(&path, "w0", DIGEST, true);
        for run in &runs[1..3] {
            let row = acme.wait_status(run, &["completed"]).await;
            assert_eq!(row["outputTokens"], 3, "{row}");
        }
        assert_eq!(worker.submits().len(), 2);
        site.assert_settled("acme").await;
        (site, ())
    })
    .await;
}

/// What ended before a gateway's death still counts when the rest ends: a choice that was cut, and one that failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_that_ended_before_a_restart_decide_how_their_run_ends() {
    for (first, status, reason) in [
        (Reason::Length, "completed", json!("length")),
        (Reason::Stop, "completed", json!("stop")),
        (Reason::Failed, "failed", json!(null)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder.path().join("store"), Engine::default()).unwrap();
        let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, false));
        let theirs = Arc::clone(&worker);
        let (folder, run) = life(folder, Arc::clone(&store), move |site| async move {
            site.wait_served().await;
            let acme = site.client("acme");
            let body = json!({"model": "tiny", "prompt": "x", "n": 2, "max_tokens": 9});
            let keyed = acme.clone();
            tokio::spawn(async move {
                let key = [("idempotency-key", "two")];
                keyed
                    .call(http::Method::POST, "/v1/completions", Some(&body), &key)
                    .await;
            });
            wait_for("the run on the worker", || theirs.held() == 1).await;
            theirs.choice(0, "a", None, false);
            theirs.choice(1, "b", None, false);
            theirs.choice(0, "c", Some(first), false);
            wait_for("all of it to be durable", || theirs.unsent() == 0).await;
            let run = theirs.submits()[0].run.to_vec();
            let run = weir_run::RunId::from_bytes(run.try_into().unwrap()).to_string();
            // Acknowledged rows are durable ones.
            for _ in 0..1000 {
                if acme.get(&format!("/runs/{run}")).await.body["outputTokens"] == 3 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (site, run)
        })
        .await;
        let theirs = Arc::clone(&worker);
        let (_folder, ()) = life(folder, store, move |site| async move {
            wait_for("the run to be attached", || theirs.attaches() == 1).await;
            theirs.choice(1, "d", Some(Reason::Stop), true);
            let acme = site.client("acme");
            let ended = acme.wait_status(&run, &["completed", "failed"]).await;
            assert_eq!(ended["status"], status, "{ended}");
            assert_eq!(ended["finishReason"], reason, "{ended}");
            assert_eq!(ended["outputTokens"], 4);
            site.assert_settled("acme").await;
            (site, ())
        })
        .await;
    }
}
