//! What the gateway measures of versions, and what it says of its decisions.

use std::time::Duration;

use serde_json::json;
use weir_gateway::Config;

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_the_coin_assigned_are_counted_when_they_settle() {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
    let quick = Config {
        settle: Duration::from_millis(1_500),
        warm_up: Duration::ZERO,
        ..config()
    };
    let site = Site::start(folder, snapshot, quick).await;
    site.wait_served().await;
    let acme = site.client("acme");
    let counts = || {
        let snapshot = site.gateway.evidence("tiny");
        let entry = snapshot.entries.into_iter().next();
        entry.map(|(_, counts)| counts).unwrap_or_default()
    };
    // Three complete, one fails, one is cancelled, one is pinned and one is refused.
    for _ in 0..3 {
        assert_eq!(acme.post("/inference", &ask(4)).await.status, 202);
    }
    wait_for("three runs", || worker.held() == 3).await;
    worker.generate(4);
    wait_for("their end", || site.gateway.live_runs() == 0).await;
    acme.post("/inference", &ask(4)).await;
    wait_for("one run", || worker.held() == 1).await;
    worker.fail("as the test says");
    wait_for("its end", || site.gateway.live_runs() == 0).await;
    assert_eq!(counts().failed_so_far, 1, "failures count at once");
    let cancelled = acme.post("/inference", &ask(4)).await.run();
    wait_for("one run", || worker.held() == 1).await;
    acme.delete(&format!("/runs/{cancelled}")).await;
    acme.wait_status(&cancelled, &["cancelled"]).await;
    let mut pinned = ask(4);
    pinned["model"] = json!("tiny@2");
    acme.post("/inference", &pinned).await;
    wait_for("one run", || worker.held() == 1).await;
    worker.generate(4);
    let mut broken = ask(4);
    broken["input"] = json!([{"role": "bad", "content": "x"}]);
    assert_eq!(acme.post("/inference", &broken).await.status, 422);
    wait_for("all to settle", || counts().errors.runs == 5).await;
    let counts = counts();
    assert_eq!(counts.assigned, 6, "all but the pinned one");
    assert_eq!(counts.errors.bad, 2, "one failed, one broke the template");
    assert_eq!((counts.neutral, counts.output.runs), (1, 3));
    // All three ended by their ceiling.
    assert_eq!(counts.output.bad, 3);
    assert_eq!(counts.ttft.total(), 3);
    let snapshot = site.gateway.evidence("tiny");
    assert_eq!(snapshot.entries[0].0.digest, DIGEST);
    assert!(site.gateway.evidence("other").entries.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_decision_is_on_the_run() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let run = acme.post("/inference", &ask(4)).await.run();
    wait_for("the run on the worker", || worker.held() == 1).await;
    worker.generate(4);
    let row = acme.wait_status(&run, &["completed"]).await;
    let decision = &row["decision"];
    assert_eq!(decision["requested"], "tiny");
    assert_eq!(decision["reason"], "stable");
    assert_eq!(decision["worker"], "w0");
    assert_eq!(decision["estimateMs"], 0);
    assert_eq!(decision["generation"], 1, "{decision}");
    assert!(decision["predictedMs"].is_u64(), "{decision}");
    assert_eq!(decision["affinityTokens"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_goes_where_its_beginning_was_until_it_turns_out_to_be_gone() {
    let folder = tempfile::tempdir().unwrap();
    let first = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    let second = FakeWorker::start(folder.path(), "w1", DIGEST, true);
    let tenants = vec![tenant("acme"), tenant("globex")];
    let snapshot = snapshot(folder.path(), tenants, &["w0", "w1"]);
    let site = Site::start(folder, snapshot, config()).await;
    wait_for("both workers", || {
        site.gateway
            .workers()
            .iter()
            .filter(|w| w.connected)
            .count()
            == 2
    })
    .await;
    let long =
        |letter: &str| json!({"model": "tiny", "input": letter.repeat(400), "maxOutputTokens": 1});
    let worker_of = async |tenant: &str, letter: &str| {
        let client = site.client(tenant);
        let run = client.post("/inference", &long(letter)).await.run();
        let row = client.wait_status(&run, &["completed"]).await;
        row["decision"].clone()
    };
    // The first worker is busy, so that the prompt goes to the second.
    let acme = site.client("acme");
    acme.post("/inference", &ask(1)).await;
    wait_for("the first worker to be busy", || first.held() == 1).await;
    assert_eq!(worker_of("acme", "a").await["worker"], "w1");
    first.finish();
    wait_for("both to be idle", || site.gateway.live_runs() == 0).await;
    let again = worker_of("acme", "a").await;
    assert_eq!(again["worker"], "w1", "although both are idle");
    assert!(again["affinityTokens"].as_u64() >= Some(256), "{again}");
    // It reported that it had two tokens: it has evicted them. Nor does another tenant's equal prompt go after it.
    for tenant in ["acme", "globex"] {
        let run = site.client(tenant).post("/inference", &long("a")).await;
        wait_for("the first worker", || first.held() == 1).await;
        first.finish();
        site.client(tenant)
            .wait_status(&run.run(), &["completed"])
            .await;
    }
    assert!(second.submits().len() == 2);
}
