//! Which version serves, and what stands in for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use weir_gateway::{Canary, ModelPermission, ModelRoute, WorkerAddress, WorkerEndpoint};

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, version, wait_for};
use crate::worker::FakeWorker;

const NEXT: &str = "sha256:2222";
const SMALL: &str = "sha256:3333";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canary_gets_its_share_of_new_runs_and_a_named_version_is_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let _stable = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let _canary = FakeWorker::start(folder.path(), "w1", NEXT, true);
    let mut snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0", "w1"]);
    snapshot.models[0]
        .versions
        .push(Arc::new(version("tiny", 3, NEXT)));
    snapshot.models[0].canary = Some(Canary {
        version: 3,
        weight_permille: 500,
    });
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    wait_for("the canary", || site.gateway.is_served("small", NEXT)).await;
    let acme = site.client("acme");
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..60 {
        let run = acme.post("/inference", &ask(1)).await;
        let row = acme.get(&format!("/runs/{}", run.run())).await.body;
        let key = format!("{} {}", row["modelVersion"], row["decision"]["reason"]);
        *seen.entry(key).or_default() += 1;
    }
    // Beyond 6 standard deviations of a fair coin.
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!((7..=53).contains(&seen["3 \"canary\""]), "{seen:?}");
    let mut pinned = ask(1);
    pinned["model"] = json!("tiny@3");
    let run = acme.post("/inference", &pinned).await;
    let row = acme.get(&format!("/runs/{}", run.run())).await.body;
    assert_eq!(
        (&row["modelVersion"], &row["decision"]["reason"]),
        (&json!(3), &json!("pinned"))
    );
    wait_for("all to end", || site.gateway.live_runs() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permitted_smaller_model_stands_in_only_where_it_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let _worker = FakeWorker::start(folder.path(), "w1", SMALL, true);
    let mut acme = tenant("acme");
    acme.models[0].fallback = true;
    let small = ModelPermission {
        name: "small".to_owned(),
        ..acme.models[0].clone()
    };
    acme.models.push(small);
    let mut snapshot = snapshot(folder.path(), vec![acme, tenant("globex")], &[]);
    let mut large = version("tiny", 2, DIGEST);
    large.fallback = vec!["small".to_owned()];
    snapshot.models[0].versions = vec![Arc::new(large)];
    snapshot.models.push(ModelRoute {
        name: "small".to_owned(),
        versions: vec![Arc::new(version("small", 1, SMALL))],
        stable: 1,
        canary: None,
    });
    snapshot.workers.push(WorkerEndpoint {
        name: "w1".to_owned(),
        pool: "small".to_owned(),
        address: WorkerAddress::Unix(folder.path().join("w1.sock")),
    });
    let site = Site::start(folder, snapshot, config()).await;
    wait_for("the smaller model", || {
        site.gateway.is_served("small", SMALL)
    })
    .await;
    let mut body = ask(1);
    let refused = site.client("acme").post("/inference", &body).await;
    assert_eq!(refused.code(), "no_healthy_worker", "not asked for");
    body["allowFallback"] = json!(true);
    let refused = site.client("globex").post("/inference", &body).await;
    assert_eq!(refused.code(), "no_healthy_worker", "not permitted");
    let run = site.client("acme").post("/inference", &body).await;
    assert_eq!((run.status, &run.body["model"]), (202, &json!("small")));
    let row = site
        .client("acme")
        .get(&format!("/runs/{}", run.run()))
        .await
        .body;
    assert_eq!(row["decision"]["reason"], "fallback");
    assert_eq!(row["decision"]["requested"], "tiny");
}
