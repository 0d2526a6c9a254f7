//! The operator on a real API server, with real gateways and workers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Layer};

use crate::stage::{NAMESPACE, OPERATOR, Stage, condition};

fn stage(test: &str) -> Option<Stage> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    Some(Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap())
}

/// Clients that ask one after the other for as long as a story takes.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
}

impl Load {
    fn during(stage: &Stage, story: impl FnOnce(&Self)) -> Self {
        let (load, client) = (Self::default(), stage.client());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 2});
                    while !load.stop.load(Ordering::Relaxed) {
                        let is_done = client.post("/inference", &body).is_ok_and(|reply| {
                            reply.status == 202
                                && client.all_events(&reply.run_id(), 0).is_ok_and(|events| {
                                    events.last().is_some_and(|end| end.kind == "completed")
                                })
                        });
                        let counter = if is_done {
                            &load.answered
                        } else {
                            &load.failed
                        };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(&load)));
            load.stop.store(true, Ordering::Relaxed);
            if let Err(panic) = told {
                std::panic::resume_unwind(panic);
            }
        });
        load
    }
}

fn rollout() -> Value {
    json!({"rollout": {
        "steps": [{"weightPercent": 20, "bake": "1s"}, {"weightPercent": 50, "bake": "1s"}],
        "guardrails": {"errorRatePercent": 5, "minRequests": 10},
        "promote": "NoBreach", "finalBake": "1s",
    }})
}

/// A template that refuses every conversation: the version answers nothing.
fn break_template(dir: &std::path::Path) -> Result<()> {
    let path = dir.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["chat_template"] = json!("{{ raise_exception('nothing is good enough') }}");
    std::fs::write(path, serde_json::to_vec(&config)?)?;
    Ok(())
}

#[test]
fn a_healthy_version_is_promoted_a_regressed_one_is_taken_back_and_the_pointers_survive_the_operators_death()
 {
    let Some(stage) = stage("a whole rollout") else {
        return;
    };
    stage.start_operator("a").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 60);
    let load = Load::during(&stage, |load| {
        stage.wait("some answers", 20, || {
            load.answered.load(Ordering::Relaxed) > 20
        });
        stage
            .site
            .add_prepared_model(("random", 2), &rollout(), |_| Ok(()))
            .unwrap();
        stage.apply("model-random-v2.yaml").unwrap();
        // Whatever it was doing, another one goes on with it.
        for (before, next, percent) in [("a", "b", 20), ("b", "a", 50)] {
            stage.wait(&format!("{percent} percent"), 90, || {
                stage.version(2)["status"]["weightPercent"] == percent
            });
            stage.kill_operator(before);
            stage.start_operator(next).unwrap();
        }
        stage.wait("version 2 is stable", 90, || {
            stage.head()["stable"]["version"] == 2
        });
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    stage.wait("version 2 says that it serves", 30, || {
        stage.version(2)["status"]["stage"] == "Production"
    });
    assert_eq!(stage.version(2)["status"]["rollbackTo"]["version"], 1);

    let load = Load::during(&stage, |_| {
        stage
            .site
            .add_prepared_model(("random", 3), &rollout(), break_template)
            .unwrap();
        stage.apply("model-random-v3.yaml").unwrap();
        stage.wait("version 3 is rejected", 120, || {
            stage.version(3)["status"]["rejected"]["reason"] == "GuardrailBreached"
        });
    });
    let failed = load.failed.load(Ordering::Relaxed);
    assert!(
        failed < 100,
        "{failed} requests failed before it was noticed"
    );
    stage.kill_operator("a");
    stage.start_operator("b").unwrap();
    // The object is replaced by force: it is the same version with the same digest, which stays rejected.
    let path = stage.site.manifests().join("model-random-v3.yaml");
    stage
        .kubectl()
        .run(&[
            "replace",
            "--force",
            "-n",
            NAMESPACE,
            "-f",
            path.to_str().unwrap(),
        ])
        .unwrap();
    stage.wait("it is rejected as before", 60, || {
        stage.version(3)["status"]["rejected"]["reason"] == "GuardrailBreached"
    });
    assert_eq!(stage.head()["stable"]["version"], 2);
    let load = Load::during(&stage, |load| {
        stage.wait("answers", 20, || load.answered.load(Ordering::Relaxed) > 50);
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_not_signed_as_it_is_makes_nothing() {
    let Some(stage) = stage("unsigned and tampered versions") else {
        return;
    };
    stage.start_operator("a").unwrap();
    // The files were changed after they were signed.
    stage
        .site
        .add_changed_model(
            "random",
            1,
            weir_e2e::RandomModel::default(),
            "Production",
            |dir| {
                let path = dir.join("generation_config.json");
                Ok(std::fs::write(
                    &path,
                    [std::fs::read(&path)?, b" ".to_vec()].concat(),
                )?)
            },
        )
        .unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait("version 1 is refused", 60, || {
        condition(&stage.version(1), "Verified").is_some_and(|(status, _)| status == "False")
    });
    assert_eq!(
        condition(&stage.version(1), "Verified").unwrap().1,
        "FileTampered"
    );
    // The object says another digest than the signature.
    stage
        .site
        .add_prepared_model(("random", 2), &json!({}), |_| Ok(()))
        .unwrap();
    let file = stage.site.manifests().join("model-random-v2.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let digest = text.split("sha256: ").nth(1).unwrap()[..64].to_owned();
    std::fs::write(&file, text.replacen(&digest, &"ab".repeat(32), 1)).unwrap();
    stage.apply("model-random-v2.yaml").unwrap();
    stage.wait("version 2 is refused", 60, || {
        condition(&stage.version(2), "Verified").is_some_and(|(status, _)| status == "False")
    });
    // No signature at all.
    stage
        .site
        .add_prepared_model(("random", 3), &json!({}), |_| Ok(()))
        .unwrap();
    std::fs::remove_file(stage.site.model_dir("random", 3).join("model.sig")).unwrap();
    stage.apply("model-random-v3.yaml").unwrap();
    stage.wait("version 3 is refused", 60, || {
        condition(&stage.version(3), "Verified").is_some_and(|(status, _)| status == "False")
    });
    for kind in ["deployments", "configmaps", "services"] {
        assert_eq!(stage.children(kind), Vec::<Value>::new(), "{kind}");
    }
    assert_eq!(stage.head()["stable"], Value::Null, "nothing serves");
}

#[test]
fn two_operators_take_turns_and_a_quiet_cluster_is_not_written_to() {
    let Some(stage) = stage("two operators") else {
        return;
    };
    stage.start_operator("a").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 60);
    stage.start_operator("b").unwrap();
    let holder = || {
        stage
            .kubectl()
            .get(&["lease", "weir-operator", "-n", NAMESPACE])
            .unwrap()["spec"]["holderIdentity"]
            .clone()
    };
    assert_eq!(holder(), "a");
    // Given back by one that ends in order, taken after its duration from one that is killed.
    stage.stop_operator("a");
    stage.wait("b leads", 8, || holder() == "b");
    stage.start_operator("a").unwrap();
    stage.kill_operator("b");
    stage.wait("a leads", 30, || holder() == "a");
    // A replica that somebody takes away is put back, by the one that leads.
    let name = stage.children("deployments")[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    stage
        .kubectl()
        .run(&[
            "scale",
            "deployment",
            &name,
            "-n",
            NAMESPACE,
            "--replicas=3",
        ])
        .unwrap();
    stage.wait("one worker again", 30, || {
        stage.children("deployments")[0]["spec"]["replicas"] == 1
    });
    stage.wait_ready(1, 30);
    let seconds: u64 = std::env::var("WEIR_QUIET_S")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    stage.rest(true);
    std::thread::sleep(Duration::from_secs(2));
    let mark = stage.plane.audit().mark();
    std::thread::sleep(Duration::from_secs(seconds));
    let writes = stage.plane.audit().writes_since(mark, OPERATOR).unwrap();
    assert!(writes.is_empty(), "{writes:#?}");
    let calls = stage.plane.audit().since(mark).unwrap();
    let renews = |call: &cluster::Call| {
        call.user == OPERATOR && call.resource == "leases" && call.is_write()
    };
    assert!(calls.iter().any(renews), "the lease is renewed");
}

#[test]
fn traffic_goes_on_while_the_api_server_is_away_and_nothing_is_lost_when_it_returns() {
    let Some(stage) = stage("an API server that is away") else {
        return;
    };
    stage.start_operator("a").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 60);
    let seconds: u64 = std::env::var("WEIR_AWAY_S")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let load = Load::during(&stage, |load| {
        stage.wait("answers", 20, || load.answered.load(Ordering::Relaxed) > 20);
        stage.rest(true);
        stage.plane.apiserver().stop().unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        // What watches know is too old afterwards: everything is listed again.
        stage.plane.compact().unwrap();
        stage.plane.start_apiserver().unwrap();
        stage.rest(false);
        let name = stage.children("deployments")[0]["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        stage
            .kubectl()
            .run(&["delete", "service", &name, "-n", NAMESPACE])
            .unwrap();
        stage.wait("the Service is back", 60, || {
            !stage.children("services").is_empty()
        });
        // The log is lost: gateways and workers know what it said.
        let records = [
            "delete",
            "controllerrevisions",
            "-n",
            NAMESPACE,
            "-l",
            "weir.dev/log=rollout",
        ];
        stage.kubectl().run(&records).unwrap();
        stage.wait("the log is made anew", 60, || {
            stage.head()["stamp"]["epoch"] == 2 && stage.head()["stable"]["version"] == 1
        });
        let answered = load.answered.load(Ordering::Relaxed);
        stage.wait("answers after it", 30, || {
            load.answered.load(Ordering::Relaxed) > answered + 20
        });
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    assert_eq!(stage.head()["stable"]["version"], 1);
}

#[test]
fn a_foreign_manager_is_put_right_but_not_fought() {
    let Some(stage) = stage("a foreign manager") else {
        return;
    };
    stage.start_operator("a").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 60);
    let name = stage.children("poddisruptionbudgets")[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let budget = || stage.children("poddisruptionbudgets")[0]["spec"]["maxUnavailable"].clone();
    let change = || {
        let patch = json!({"spec": {"maxUnavailable": 7}}).to_string();
        let words = [
            "patch",
            "poddisruptionbudget",
            &name,
            "-n",
            NAMESPACE,
            "--field-manager=foreign",
            "--type=merge",
            "-p",
            &patch,
        ];
        stage.kubectl().run(&words).unwrap();
    };
    change();
    stage.wait("it is put right", 20, || budget() == 1);
    let mark = stage.plane.audit().mark();
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if budget() == 1 {
            change();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let writes = stage.plane.audit().writes_since(mark, OPERATOR).unwrap();
    let ours = writes
        .iter()
        .filter(|call| format!("{call:?}").contains("poddisruptionbudgets"))
        .count();
    assert!(ours <= 8, "{ours} writes in 20 seconds");
    stage.wait("it is told who", 20, || {
        condition(&stage.version(1), "Contested").is_some()
    });
    stage.wait("it is put right in the end", 60, || budget() == 1);
}
