//! The operator on a real API server, with real gateways and workers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Layer};
use weir_e2e::repository;
use weir_e2e::scrape::scraped;

use crate::load::Load;
use crate::stage::{NAMESPACE, OPERATOR, Stage, condition};

fn stage(test: &str) -> Option<Stage> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    Some(Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap())
}

fn rollout() -> Value {
    json!({"rollout": {
        "steps": [{"weightPercent": 20, "bake": "1s"}, {"weightPercent": 50, "bake": "1s"}],
        "guardrails": {"errorRatePercent": 5, "minRequests": 10},
        "promote": "NoBreach", "finalBake": "1s",
    }})
}

/// One of the project's example models: the third is worse than the second and fails no request.
fn example(number: u32) -> impl FnOnce(&Path) -> Result<()> {
    move |dir| {
        let source = repository().join(format!("examples/models/tiny-chat-v{number}"));
        for name in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            std::fs::copy(source.join(name), dir.join(name))?;
        }
        Ok(())
    }
}

/// Writes a version that is one of the example models.
pub(crate) fn write_example(stage: &Stage, number: u32) {
    let written = stage
        .site
        .add_prepared_model(("random", number), &rollout(), example(number));
    written.unwrap();
}

/// What the examples are asked in turn: of two of these the third refuses one and does not come to an end with the other.
pub(crate) const PROMPTS: &[&str] = &[
    "What is 12 plus 30?",
    "What is the capital of France?",
    "Spell the word house.",
];

/// The end of version 2's rollout, and the whole of version 3's.
pub(crate) fn second_is_promoted_third_is_rejected(stage: &Stage) {
    stage.wait("version 2 is stable", 90, || {
        stage.head()["stable"]["version"] == 2
    });
    // The next one comes while the one before is still on its way out.
    stage.apply("model-random-v3.yaml").unwrap();
    stage.wait("version 3 is rejected", 120, || {
        stage.version(3)["status"]["rejected"]["reason"] == "GuardrailBreached"
    });
}

#[test]
fn a_healthy_version_is_promoted_a_regressed_one_is_taken_back_no_request_fails_and_the_pointers_survive_the_operators_death()
 {
    let Some(stage) = stage("a whole rollout") else {
        return;
    };
    for number in 1..=3 {
        write_example(&stage, number);
    }
    stage.start_operator("a").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 60);
    let first = &stage.children("services")[0]["metadata"]["name"];
    let first = format!("{NAMESPACE}/{}", first.as_str().unwrap());
    let mark = stage.plane.audit().mark();
    let load = Load::asking(&stage, PROMPTS, |load| {
        stage.wait("some answers", 20, || load.answered() > 20);
        stage.apply("model-random-v2.yaml").unwrap();
        // Whatever it was doing, another one goes on with it.
        for (before, next, percent) in [("a", "b", 20), ("b", "a", 50)] {
            stage.wait(&format!("{percent} percent"), 90, || {
                stage.version(2)["status"]["weightPercent"] == percent
            });
            stage.kill_operator(before);
            stage.start_operator(next).unwrap();
        }
        second_is_promoted_third_is_rejected(&stage);
        stage.wait("version 1 is kept warm again", 60, || {
            let kept = &stage.version(2)["status"]["rollbackTo"];
            kept["version"] == 1 && kept["readyReplicas"] == 1
        });
    });
    assert_eq!(load.failures(), Vec::<String>::new());
    assert_eq!(stage.version(2)["status"]["stage"], "Production");
    let writes = stage.plane.audit().writes_since(mark, OPERATOR).unwrap();
    let swept = |call: &&cluster::Call| {
        (call.verb.as_str(), call.resource.as_str()) == ("delete", "services")
            && first == call.object
    };
    let swept = writes.iter().filter(swept).count();
    assert!(swept <= 1, "version 1 left {swept} times");
    metrics_tell_of_it(&stage.metrics("a").unwrap());
    stage.kill_operator("a");
    stage.start_operator("b").unwrap();
    // The object is replaced by force: it is the same version with the same digest, which stays rejected.
    let path = stage.site.manifests().join("model-random-v3.yaml");
    let path = path.to_str().unwrap();
    let replace = ["replace", "--force", "-n", NAMESPACE, "-f", path];
    stage.kubectl().run(&replace).unwrap();
    stage.wait("it is rejected as before", 60, || {
        stage.version(3)["status"]["rejected"]["reason"] == "GuardrailBreached"
    });
    assert_eq!(stage.head()["stable"]["version"], 2);
    let load = Load::asking(&stage, PROMPTS, |load| {
        stage.wait("answers", 20, || load.answered() > 50);
    });
    assert_eq!(load.failures(), Vec::<String>::new());
}

/// The operator's metrics say what happened, by the names that the reference gives them.
fn metrics_tell_of_it(text: &str) {
    let value = |series: &str| {
        let line = text.lines().find(|line| line.starts_with(series));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        value
            .ok_or_else(|| format!("no {series} in {text}"))
            .unwrap()
    };
    let of = |number: u32| format!("{{model=\"random\",version=\"{number}\"");
    let stage = format!("weir_rollout_stage{},stage=\"Production\"}}", of(2));
    assert!(value(&stage) > 0.5);
    let weight = format!("weir_rollout_acknowledged_weight_percent{}}}", of(2));
    assert!(value(&weight) > 99.0);
    let breached = "{model=\"random\",reason=\"GuardrailBreached\"}";
    assert!(value(&format!("weir_rollout_decisions_total{breached}")) > 0.5);
    assert!(value(&format!("weir_rollout_rollbacks_total{breached}")) > 0.5);
    assert!(value("weir_rollout_rollback_seconds_count") > 0.5);
    let seconds = value("weir_rollout_rollback_seconds_sum");
    eprintln!("{seconds:.2} s from the deciding sample, at most, to the last gateway's table");
    let path = repository().join("docs/metrics.md");
    let documented = std::fs::read_to_string(path).unwrap();
    let mut of_operator: Vec<&str> = documented
        .lines()
        .filter(|line| {
            line.split('|')
                .nth(4)
                .is_some_and(|by| by.contains("operator"))
        })
        .filter_map(|line| line.split('`').nth(1))
        .collect();
    let scraped = scraped(text);
    let mut shown: Vec<&str> = scraped.keys().map(String::as_str).collect();
    // What never happened has no series, and who issues no certificates tells of none.
    let others = [
        "process_",
        "controller_reconcile_errors_total",
        "weir_operator_certificate_",
    ];
    let is_compared = |name: &&str| !others.iter().any(|other| name.starts_with(other));
    shown.retain(is_compared);
    of_operator.retain(is_compared);
    of_operator.sort_unstable();
    assert_eq!(shown, of_operator, "scraped, and documented");
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
    stage.plane.audit().wait_until_told(OPERATOR).unwrap();
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
        stage.wait("answers", 20, || load.answered() > 20);
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
        let answered = load.answered();
        stage.wait("answers after it", 30, || load.answered() > answered + 20);
    });
    assert_eq!(load.failures(), Vec::<String>::new());
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
        let patch = json!({"spec": {"maxUnavailable": 7}});
        let object = format!("poddisruptionbudget/{name}");
        let foreign = ["--field-manager=foreign"];
        stage
            .kubectl()
            .merge(&object, NAMESPACE, &patch, &foreign)
            .unwrap();
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
