//! Shared pools: one worker process holds all their versions.

use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Signal, Site, Tenant, Weir, send};

use crate::adapters::{ask, condition, nothing, text};
use crate::rollout::{Load, assert_took_over, break_template, is_weight, rollout, version, wait};
use crate::stand::{assert_whole, slow};

/// A site with the models `random` and `other` in one pool.
fn site(sharing: &str, shape: RandomModel) -> Site {
    let models = ["random", "other", "third", "random-a"].map(|name| json!({"name": name}));
    let acme = Tenant {
        name: "acme",
        spec: json!({"models": models}),
    };
    let site = Site::random(shape, &[acme]).unwrap();
    set_sharing(&site, sharing);
    let other = RandomModel { seed: 5, ..shape };
    site.add_model("other", 1, other, "Production").unwrap();
    site
}

fn pool(site: &Site, change: impl FnOnce(&mut Value)) {
    let path = site.manifests().join("pool.yaml");
    let mut pool = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    change(&mut pool);
    site.write("pool.yaml", &pool).unwrap();
}

fn set_sharing(site: &Site, sharing: &str) {
    pool(site, |pool| pool["spec"]["sharing"] = json!(sharing));
}

/// The one process there is.
fn only_worker(weir: &Weir) -> i32 {
    let pids = weir.worker_pids();
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

fn texts(weir: &Weir) -> [String; 2] {
    ["random", "other"].map(|model| text(weir, model))
}

fn stage(weir: &Weir, number: u32) -> Value {
    version(weir, number)["status"]["stage"].clone()
}

fn pool_status(weir: &Weir) -> Value {
    let objects = Client::new(&weir.admin, "").get("/objects").unwrap().body;
    let mut objects = objects.as_array().unwrap().iter();
    let pool = objects.find(|object| object["kind"] == "GpuPool").unwrap();
    pool["status"].clone()
}

#[test]
fn one_worker_serves_all_versions_of_a_pool_while_they_are_rolled_out() {
    let site = site("Shared", RandomModel::default());
    let weir = site.up().unwrap();
    let before = texts(&weir);
    assert_ne!(before[0], before[1]);
    let worker = only_worker(&weir);

    let load = Load::during(&weir, |_| {
        site.add_prepared_model(("random", 2), &json!({"rollout": rollout()}), |_| Ok(()))
            .unwrap();
        wait("version 2 is stable", 90, || {
            stage(&weir, 2) == "Production"
        })
        .unwrap();
    });
    assert_took_over(&weir, &load);
    assert_eq!(only_worker(&weir), worker, "the same process all the time");
    assert_eq!(text(&weir, "other"), before[1]);
    let status = pool_status(&weir);
    assert_eq!(
        (&status["replicas"], &status["readyReplicas"]),
        (&json!(1), &json!(1)),
        "{status}"
    );

    // One that answers nothing is taken back, and leaves the worker.
    let plan = json!({"rollout": rollout()});
    Load::during(&weir, |load| {
        site.add_prepared_model(("random", 3), &plan, break_template)
            .unwrap();
        wait("version 3 is rejected", 90, || {
            version(&weir, 3)["status"]["rejected"]["reason"] == "GuardrailBreached"
        })
        .unwrap();
        assert!(is_weight(&weir, 3, 0));
        let answered = load.answered.load(Ordering::Relaxed);
        wait("answers after it", 30, || {
            load.answered.load(Ordering::Relaxed) > answered + 50
        })
        .unwrap();
    });
    assert_eq!(only_worker(&weir), worker);
    assert_eq!(texts(&weir), before);
    weir.stop(60).unwrap();
}

#[test]
fn a_killed_worker_of_a_shared_pool_comes_back_with_all_that_it_held() {
    let site = site("Shared", slow());
    site.add_model("random", 2, slow(), "Registered").unwrap();
    let weir = site.up().unwrap();
    let before = texts(&weir);
    let worker = only_worker(&weir);
    let client = weir.client("acme-dev-key");
    let mut streams = ["random", "other"].map(|model| {
        let body = json!({"model": model, "input": "hello", "maxOutputTokens": 1_500,
            "sampling": {"temperature": 0.0, "ignoreEos": true}});
        client.stream(&body).unwrap()
    });
    let mut seen = [Vec::new(), Vec::new()];
    for (stream, seen) in streams.iter_mut().zip(&mut seen) {
        while seen.len() < 12 {
            seen.push(stream.next_event().unwrap().expect("a long run"));
        }
    }
    send(worker, Signal::KILL);
    for (stream, mut events) in streams.into_iter().zip(seen) {
        events.extend(stream.to_end().unwrap());
        assert_whole(&events, "interrupted");
        let run = events[0].json()["runId"].as_str().unwrap().to_owned();
        assert_eq!(
            client.all_events(&run, 0).unwrap(),
            events,
            "what was acknowledged replays"
        );
    }
    assert_eq!(texts(&weir), before);
    assert_ne!(only_worker(&weir), worker);

    // `weir up` itself is killed too: the worker goes on, and is found again with what it holds.
    let worker = only_worker(&weir);
    let mut killed = weir;
    killed.kill().unwrap();
    let weir = site.up().unwrap();
    assert_eq!(texts(&weir), before);
    assert_eq!(only_worker(&weir), worker);
    site.add_prepared_model(("random", 3), &json!({}), |_| Ok(()))
        .unwrap();
    // It takes its first share as soon as its worker says that it is loaded.
    wait("version 3 has a share", 60, || is_weight(&weir, 3, 5)).unwrap();
    assert_eq!(only_worker(&weir), worker);
}

/// Its files are what was signed, and its weights not those of its configuration: only who loads them can tell.
fn one_layer_more(dir: &Path) -> anyhow::Result<()> {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    config["num_hidden_layers"] = json!(layers + 1);
    std::fs::write(path, serde_json::to_vec(&config)?)?;
    Ok(())
}

#[test]
fn a_version_that_cannot_be_loaded_leaves_the_others_serving() {
    let site = site("Shared", RandomModel::default());
    let weir = site.up().unwrap();
    let before = texts(&weir);
    let worker = only_worker(&weir);
    let load = Load::during(&weir, |_| {
        let plan = json!({"rollout": rollout()});
        site.add_prepared_model(("random", 2), &plan, one_layer_more)
            .unwrap();
        wait("version 2 is rejected", 60, || {
            version(&weir, 2)["status"]["rejected"]["reason"] == "StartFailed"
        })
        .unwrap();
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    assert_eq!(texts(&weir), before);
    assert_eq!(only_worker(&weir), worker);
    // A model joins the pool: a worker with places for it takes over from the one before.
    let load = Load::during(&weir, |_| {
        let third = RandomModel {
            seed: 6,
            ..RandomModel::default()
        };
        site.add_model("third", 1, third, "Production").unwrap();
        text(&weir, "third");
        wait("the worker before to go", 60, || {
            !weir.worker_pids().contains(&worker)
        })
        .unwrap();
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    assert_eq!(texts(&weir), before);
    let worker = only_worker(&weir);
    // An adapter lives beside its base, in the same process.
    site.add_adapter(("random-a", 1), ("random", 1), (7, &json!({})), nothing)
        .unwrap();
    let adapted = text(&weir, "random-a");
    assert_ne!(adapted, before[0]);
    assert_eq!(only_worker(&weir), worker);
}

#[test]
fn a_pool_becomes_shared_and_dedicated_again_without_a_lost_run() {
    let site = site("Dedicated", RandomModel::default());
    let weir = site.up().unwrap();
    let before = texts(&weir);
    let sorted = || {
        let mut pids = weir.worker_pids();
        pids.sort_unstable();
        pids
    };
    // So many workers, and none of those before.
    let exchanged = |count: usize, before: &[i32]| {
        wait(&format!("{count} other workers"), 60, || {
            let now = sorted();
            now.len() == count && now.iter().all(|pid| !before.contains(pid))
        })
        .unwrap();
    };
    exchanged(2, &[]);
    let load = Load::during(&weir, |load| {
        for (sharing, count) in [("Shared", 1), ("Dedicated", 2)] {
            let workers = sorted();
            set_sharing(&site, sharing);
            exchanged(count, &workers);
            let answered = load.answered.load(Ordering::Relaxed);
            wait("answers", 30, || {
                load.answered.load(Ordering::Relaxed) > answered + 20
            })
            .unwrap();
            assert_eq!(texts(&weir), before);
        }
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);

    // What cannot be is said at the objects, and changes nothing of what serves.
    let workers = sorted();
    pool(&site, |pool| {
        pool["spec"]["sharing"] = json!("Shared");
        pool["spec"]["accelerator"] = json!({"type": "gpu", "resourceName": "nvidia.com/gpu"});
    });
    for (object, said) in [
        ("small", "set `sharing: Dedicated`"),
        ("random-v1", "small"),
    ] {
        let condition = condition(&weir, object, "Admitted", "InvalidSpec");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(said), "{condition}");
    }
    assert_eq!(texts(&weir), before);
    assert_eq!(sorted(), workers);
    assert!(ask(&weir, "random").is_some());
}
