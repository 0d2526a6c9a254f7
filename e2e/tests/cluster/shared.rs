//! A pool whose workers hold several versions, on a real API server with real gateways and workers.

use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Layer};
use weir_e2e::{RandomModel, Tenant};

use crate::load::Load;
use crate::operator::{PROMPTS, second_is_promoted_third_is_rejected, write_example};
use crate::stage::{NAMESPACE, Stage, condition};

fn stage(test: &str) -> Option<Stage> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    Some(Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap())
}

/// The pool, with so many workers, each of which has so many places.
fn share(stage: &Stage, sharing: &str, replicas: u32, places: u32) {
    let pool = json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "small"},
        "spec": {
            "accelerator": {"type": "cpu"}, "replicas": {"min": replicas, "max": replicas},
            "sharing": sharing, "maxVersions": places,
            "engine": {"maxBatchTokens": 512, "maxRunning": 32, "kvMemory": "64Mi", "blockTokens": 16},
            "queue": {"maxDepth": 256, "maxWait": "60s"},
        },
    });
    stage.site.write("pool.yaml", &pool).unwrap();
    stage.apply("pool.yaml").unwrap();
}

fn version(stage: &Stage, name: &str) -> Value {
    let found = stage
        .kubectl()
        .get(&["modelversion", name, "-n", NAMESPACE]);
    found.unwrap_or_default()
}

fn pool(stage: &Stage) -> Value {
    let found = stage.kubectl().get(&["gpupool", "small", "-n", NAMESPACE]);
    found.unwrap_or_default()
}

fn is_serving(stage: &Stage, name: &str) -> bool {
    let ready = condition(&version(stage, name), "Ready");
    ready.is_some_and(|(status, _)| status == "True")
}

/// Names of Deployments, and how many workers each is to have.
fn deployments(stage: &Stage) -> Vec<(String, u64)> {
    let all = stage.children("deployments").into_iter();
    let all = all.map(|one| {
        let name = one["metadata"]["name"].as_str().unwrap().to_owned();
        (name, one["spec"]["replicas"].as_u64().unwrap())
    });
    all.collect()
}

fn is_pools(name: &str) -> bool {
    name.starts_with("weir-pool-small-")
}

/// How many plans the workers of the pool are given.
fn plans(stage: &Stage) -> usize {
    let maps = stage.children("configmaps");
    let plans = maps
        .iter()
        .find(|map| map["metadata"]["name"].as_str().is_some_and(is_pools));
    plans.map_or(0, |map| {
        map["data"].as_object().map_or(0, serde_json::Map::len)
    })
}

#[test]
fn one_deployment_holds_two_models_a_version_is_promoted_in_it_a_worse_one_is_taken_back_and_sharing_ends_and_begins_without_a_failure()
 {
    let Some(stage) = stage("a shared pool") else {
        return;
    };
    for number in 1..=3 {
        write_example(&stage, number);
    }
    let other = stage
        .site
        .add_model("other", 1, RandomModel::default(), "Production");
    other.unwrap();
    let models = json!([{"name": "random", "pinning": "Allowed"}, {"name": "other"}]);
    let spec = json!({"models": models, "windows": [{"period": "1h", "tokens": 100_000_000}]});
    stage
        .site
        .write_tenant(&Tenant { name: "acme", spec })
        .unwrap();
    stage.apply("tenant-acme.yaml").unwrap();
    share(&stage, "Shared", 2, 3);
    stage.start_operator("a").unwrap();
    stage.apply("model-other-v1.yaml").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait("both models serve", 90, || {
        is_serving(&stage, "other-v1") && is_serving(&stage, "random-v1")
    });
    assert_one_deployment(&stage);
    assert_eq!(plans(&stage), 2);
    rolls_out(&stage);
    workers_die(&stage);
    waits_for_a_place(&stage);
    changes_its_mind(&stage);
}

fn assert_one_deployment(stage: &Stage) {
    let all = deployments(stage);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(is_pools(&all[0].0) && all[0].1 == 2, "{all:?}");
    for kind in ["services", "poddisruptionbudgets", "networkpolicies"] {
        assert_eq!(stage.children(kind).len(), 1, "{kind}");
    }
}

fn rolls_out(stage: &Stage) {
    let load = Load::asking(stage, PROMPTS, |load| {
        stage.wait("some answers", 20, || load.answered() > 20);
        stage.apply("model-random-v2.yaml").unwrap();
        stage.wait("20 percent", 90, || {
            stage.version(2)["status"]["weightPercent"] == 20
        });
        // Whatever it was doing, another one goes on with it.
        stage.kill_operator("a");
        stage.start_operator("b").unwrap();
        second_is_promoted_third_is_rejected(stage);
        stage.wait("version 1 is kept warm again", 60, || {
            let kept = &stage.version(2)["status"]["rollbackTo"];
            kept["version"] == 1 && kept["readyReplicas"] == 2 && plans(stage) == 3
        });
    });
    assert_eq!(load.failures(), Vec::<String>::new());
    assert!(load.versions().len() >= 2, "{:?}", load.versions());
    assert_one_deployment(stage);
}

/// Whether the worker that was started anew is ready; `None` where there is none.
fn restarted(stage: &Stage) -> Option<bool> {
    let pods = stage.kubectl().get(&["pods", "-n", NAMESPACE]).ok()?;
    let statuses = pods["items"].as_array()?.iter();
    let mut containers = statuses.map(|pod| &pod["status"]["containerStatuses"][0]);
    let container = containers.find(|one| one["restartCount"].as_u64() >= Some(1))?;
    container["ready"].as_bool()
}

/// `kill -9` of one of the two workers: it comes back with all that it held.
fn workers_die(stage: &Stage) {
    stage.kill_worker();
    // That it is missing may be seen for a moment only; what was counted stays.
    stage.wait("a worker starts anew", 30, || restarted(stage).is_some());
    stage.wait("it is back", 60, || {
        restarted(stage) == Some(true)
            && stage.version(2)["status"]["readyReplicas"] == 2
            && version(stage, "other-v1")["status"]["readyReplicas"] == 2
    });
    let load = Load::asking(stage, PROMPTS, |load| {
        stage.wait("answers", 20, || load.answered() > 50);
    });
    assert_eq!(load.failures(), Vec::<String>::new());
    let reply = stage.clients()[0]
        .post(
            "/inference",
            &json!({"model": "other", "input": "hello", "maxOutputTokens": 2}),
        )
        .unwrap();
    assert_eq!(reply.status, 202, "{}", reply.body);
}

/// Three places are taken by what serves and by what is kept. Another version of the second model waits, and its condition says for what.
fn waits_for_a_place(stage: &Stage) {
    let another = stage
        .site
        .add_model("other", 2, RandomModel::default(), "Production");
    another.unwrap();
    stage.apply("model-other-v2.yaml").unwrap();
    stage.wait("the new version waits", 60, || {
        let waits = condition(&version(stage, "other-v2"), "Progressing");
        waits.is_some_and(|(_, reason)| reason == "WaitingForCapacity")
    });
    assert!(is_serving(stage, "other-v1"));
    // What was kept for a rollback is taken back.
    let delete = ["delete", "modelversion", "random-v1", "-n", NAMESPACE];
    stage.kubectl().run(&delete).unwrap();
    stage.wait("it is tried when there is a place", 120, || {
        version(stage, "other-v2")["status"]["stage"] == "Canary" && plans(stage) == 3
    });
}

fn changes_its_mind(stage: &Stage) {
    let load = Load::asking(stage, PROMPTS, |load| {
        stage.wait("some answers", 20, || load.answered() > 20);
        share(stage, "Dedicated", 2, 3);
        stage.wait("every version has workers of its own", 120, || {
            let all = deployments(stage);
            all.len() == 3 && !all.iter().any(|(name, _)| is_pools(name))
        });
        let answered = load.answered();
        stage.wait("answers of theirs", 30, || load.answered() > answered + 20);
        share(stage, "Shared", 2, 3);
        stage.wait("one Deployment again", 120, || {
            let all = deployments(stage);
            all.len() == 1 && is_pools(&all[0].0) && plans(stage) == 3
        });
        let answered = load.answered();
        stage.wait("answers of its", 30, || load.answered() > answered + 20);
    });
    assert_eq!(load.failures(), Vec::<String>::new());
    let admitted = condition(&pool(stage), "Admitted");
    assert_eq!(admitted.map(|(status, _)| status).as_deref(), Some("True"));
}
