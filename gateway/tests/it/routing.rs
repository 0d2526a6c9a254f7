//! Which version serves, and what stands in for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use weir_gateway::{ModelPermission, ModelRoute, Snapshot, WorkerAddress, WorkerEndpoint};
use weir_rollout::VersionId;
use weir_rollout::routing::{Share, Table, salt};

use crate::site::{DIGEST, Site, all_to, ask, config, snapshot, tenant, version, wait_for};
use crate::worker::FakeWorker;

const NEXT: &str = "sha256:2222";
const SMALL: &str = "sha256:3333";

/// Version 2 stable, version 3 on trial with a share of new runs.
fn shares(generation: u64, percent: u32) -> Arc<Table> {
    let canary = VersionId::new(3, NEXT);
    let stable = VersionId::new(2, DIGEST);
    let share = |id: &VersionId, weight| Share {
        id: id.clone(),
        weight,
    };
    Arc::new(Table {
        entries: vec![share(&stable, 100 - percent), share(&canary, percent)],
        rollback: Some(stable),
        attempt: Some("v3-1".to_owned()),
        step: 1,
        coin_salt: salt(&[7; 32], "v3-1"),
        ..Table::clone(&all_to(generation, 2, DIGEST))
    })
}

fn two_versions(folder: &std::path::Path, table: Arc<Table>) -> Snapshot {
    let mut snapshot = snapshot(folder, vec![tenant("acme")], &["w0", "w1"]);
    let model = &mut snapshot.models[0];
    model.versions.push(Arc::new(version("tiny", 3, NEXT)));
    model.table = table;
    snapshot
}

/// What so many runs got: version and reason.
async fn served(site: &Site, runs: u32) -> BTreeMap<String, u32> {
    let acme = site.client("acme");
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..runs {
        let run = acme.post("/inference", &ask(1)).await;
        let row = acme.get(&format!("/runs/{}", run.run())).await.body;
        let key = format!("{} {}", row["modelVersion"], row["decision"]["reason"]);
        *seen.entry(key).or_default() += 1;
    }
    wait_for("all to end", || site.gateway.live_runs() == 0).await;
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canary_gets_its_share_of_new_runs_and_a_named_version_is_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let _stable = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let _canary = FakeWorker::start(folder.path(), "w1", NEXT, true);
    let snapshot = two_versions(folder.path(), shares(1, 50));
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    wait_for("the canary", || site.gateway.is_served("small", NEXT)).await;
    let seen = served(&site, 60).await;
    // Beyond 6 standard deviations of a fair coin.
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!((7..=53).contains(&seen["3 \"canary\""]), "{seen:?}");
    let acme = site.client("acme");
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
async fn a_version_without_a_worker_takes_no_part_in_the_coin() {
    let folder = tempfile::tempdir().unwrap();
    let _stable = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let snapshot = two_versions(folder.path(), shares(1, 99));
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    let seen = served(&site, 12).await;
    assert_eq!(seen, BTreeMap::from([("2 \"stable\"".to_owned(), 12)]));
    let canary = FakeWorker::start(site.folder.path(), "w1", NEXT, true);
    wait_for("the canary", || site.gateway.is_served("small", NEXT)).await;
    let seen = served(&site, 12).await;
    assert!(seen["3 \"canary\""] >= 9, "{seen:?}");
    canary.kill();
    wait_for("its end", || !site.gateway.is_served("small", NEXT)).await;
    let seen = served(&site, 12).await;
    assert_eq!(seen, BTreeMap::from([("2 \"stable\"".to_owned(), 12)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_newer_table_is_taken_and_the_one_in_force_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let _stable = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let _canary = FakeWorker::start(folder.path(), "w1", NEXT, true);
    let snapshot = two_versions(folder.path(), shares(5, 1));
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    wait_for("the canary", || site.gateway.is_served("small", NEXT)).await;
    let generation = || site.gateway.acknowledged("tiny").unwrap().0.generation;
    assert_eq!(generation(), 5);
    assert!(site.gateway.acknowledged("nobody").is_none());
    // An older one comes late, as from an operator that slept.
    let late = two_versions(site.folder.path(), all_to(4, 3, NEXT));
    site.gateway.apply(late);
    assert_eq!(generation(), 5);
    assert!(served(&site, 5).await["2 \"stable\""] >= 4);
    let next = two_versions(site.folder.path(), all_to(6, 3, NEXT));
    site.gateway.apply(next);
    assert_eq!(generation(), 6);
    let seen = served(&site, 5).await;
    assert_eq!(seen, BTreeMap::from([("3 \"stable\"".to_owned(), 5)]));
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
        mirror: None,
        name: "small".to_owned(),
        versions: vec![Arc::new(version("small", 1, SMALL))],
        table: all_to(1, 1, SMALL),
    });
    snapshot.workers.push(WorkerEndpoint {
        name: "w1".to_owned(),
        pool: "small".to_owned(),
        address: WorkerAddress::Unix(folder.path().join("w1.sock")),
        version: None,
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_takes_no_prompt_beyond_its_classes_and_a_permitted_model_of_another_pool_does() {
    let folder = tempfile::tempdir().unwrap();
    let _short = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let _long = FakeWorker::start(folder.path(), "w1", SMALL, true);
    let mut acme = tenant("acme");
    acme.models[0].fallback = true;
    let small = ModelPermission {
        name: "small".to_owned(),
        ..acme.models[0].clone()
    };
    acme.models.push(small);
    let mut snapshot = snapshot(folder.path(), vec![acme], &["w0"]);
    snapshot.pools[0].largest_prompt = Some(8);
    snapshot.pools.push(weir_gateway::Pool {
        name: "long".to_owned(),
        largest_prompt: None,
        ..snapshot.pools[0].clone()
    });
    let mut first = version("tiny", 2, DIGEST);
    first.fallback = vec!["small".to_owned()];
    snapshot.models[0].versions = vec![Arc::new(first)];
    let mut other = version("small", 1, SMALL);
    other.pool = "long".to_owned();
    snapshot.models.push(ModelRoute {
        mirror: None,
        name: "small".to_owned(),
        versions: vec![Arc::new(other)],
        table: all_to(1, 1, SMALL),
    });
    snapshot.workers.push(WorkerEndpoint {
        name: "w1".to_owned(),
        pool: "long".to_owned(),
        address: WorkerAddress::Unix(folder.path().join("w1.sock")),
        version: None,
    });
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    wait_for("the other pool", || site.gateway.is_served("long", SMALL)).await;
    let acme = site.client("acme");
    let mut body = ask(1);
    assert_eq!(
        acme.post("/inference", &body).await.body["model"],
        "tiny",
        "5 tokens"
    );
    body["input"] = json!("longer than eight");
    let refused = acme.post("/inference", &body).await;
    assert_eq!((refused.status, refused.code()), (413, "prompt_too_long"));
    assert_eq!(refused.body["error"]["details"]["largestPromptTokens"], 8);
    assert!(refused.text.contains("pool"), "{}", refused.text);
    body["allowFallback"] = json!(true);
    let run = acme.post("/inference", &body).await;
    assert_eq!(
        (run.status, &run.body["model"]),
        (202, &json!("small")),
        "{}",
        run.text
    );
}
