//! Traffic that moves between versions in steps, while clients are served.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use weir_e2e::{
    Client, RandomModel, Site, Tenant, Weir, reference_lines, weir_command, write_other_weights,
};

/// Clients that ask one after the other for as long as a rollout takes.
const CLIENTS: usize = 4;

/// What clients saw.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    asked: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) of_candidate: AtomicU64,
    pub(crate) failed: AtomicU64,
    first_failure: OnceLock<Instant>,
}

impl Load {
    fn ask(&self, client: &Client) {
        while !self.stop.load(Ordering::Relaxed) {
            // A prompt that comes again would be mirrored once.
            let place = self.asked.fetch_add(1, Ordering::Relaxed);
            let body =
                json!({"model": "random", "input": format!("hello {place}"), "maxOutputTokens": 2});
            let reply = client.post("/inference", &body).unwrap();
            if reply.status != 202 {
                self.fail();
                continue;
            }
            if reply.body["modelVersion"] == 2 {
                self.of_candidate.fetch_add(1, Ordering::Relaxed);
            }
            let events = client.all_events(&reply.run_id(), 0).unwrap();
            if events.last().is_some_and(|event| event.kind == "completed") {
                self.answered.fetch_add(1, Ordering::Relaxed);
            } else {
                self.fail();
            }
        }
    }

    fn fail(&self) {
        self.first_failure.get_or_init(Instant::now);
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs `story` while clients ask.
    pub(crate) fn during(weir: &Weir, story: impl FnOnce(&Self)) -> Self {
        let load = Self::default();
        let client = weir.client("acme-dev-key");
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| load.ask(&client));
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

pub(crate) fn wait(what: &str, seconds: u64, holds: impl Fn() -> bool) -> Result<()> {
    weir_e2e::wait_for(what, seconds, || holds().then_some(()))
}

pub(crate) fn version(weir: &Weir, number: u32) -> Value {
    let objects = Client::new(&weir.admin, "").get("/objects").unwrap().body;
    let all = objects.as_array().cloned().unwrap_or_default();
    let is_it =
        |object: &Value| object["kind"] == "ModelVersion" && object["spec"]["version"] == number;
    all.into_iter().find(is_it).unwrap_or_default()
}

pub(crate) fn is_weight(weir: &Weir, number: u32, percent: u64) -> bool {
    version(weir, number)["status"]["weightPercent"] == percent
}

fn site() -> Site {
    let tenant = Tenant {
        name: "acme",
        spec: json!({"models": [{"name": "random", "pinning": "Allowed"}]}),
    };
    Site::random(RandomModel::default(), &[tenant]).unwrap()
}

pub(crate) fn rollout() -> Value {
    json!({
        "steps": [{"weightPercent": 20, "bake": "1s"}, {"weightPercent": 50, "bake": "1s"}],
        "guardrails": {"errorRatePercent": 5, "minRequests": 10},
        "promote": "NoBreach", "finalBake": "1s",
    })
}

/// A template that refuses every conversation: the version answers nothing.
pub(crate) fn break_template(dir: &std::path::Path) -> Result<()> {
    let path = dir.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["chat_template"] = json!("{{ raise_exception('nothing is good enough') }}");
    std::fs::write(path, serde_json::to_vec(&config)?)?;
    Ok(())
}

/// Version 2 took over from version 1: it was asked, nobody was failed, and the version before stays warm.
pub(crate) fn assert_took_over(weir: &Weir, load: &Load) {
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    assert!(load.of_candidate.load(Ordering::Relaxed) > 0);
    let kept = &version(weir, 2)["status"]["rollbackTo"];
    assert_eq!(
        (&kept["version"], &kept["readyReplicas"]),
        (&json!(1), &json!(1)),
        "the version before stays warm"
    );
}

#[test]
fn a_healthy_version_takes_over_in_steps_and_no_request_fails() {
    let site = site();
    let weir = site.up().unwrap();
    let load = Load::during(&weir, |load| {
        wait("some answers", 10, || {
            load.answered.load(Ordering::Relaxed) > 20
        })
        .unwrap();
        assert_eq!(load.of_candidate.load(Ordering::Relaxed), 0);
        site.add_prepared_model(("random", 2), &json!({"rollout": rollout()}), |_| Ok(()))
            .unwrap();
        for percent in [20, 50, 100] {
            wait(&format!("{percent} percent"), 60, || {
                is_weight(&weir, 2, percent)
            })
            .unwrap();
        }
        wait("version 2 is stable", 30, || {
            version(&weir, 2)["status"]["stage"] == "Production"
        })
        .unwrap();
    });
    assert_took_over(&weir, &load);
}

#[test]
fn a_version_that_fails_is_taken_back_and_stays_out() {
    let site = site();
    let weir = site.up().unwrap();
    let load = Load::during(&weir, |load| {
        site.add_prepared_model(
            ("random", 2),
            &json!({"rollout": rollout()}),
            break_template,
        )
        .unwrap();
        wait("version 2 is rejected", 60, || {
            version(&weir, 2)["status"]["rejected"]["reason"] == "GuardrailBreached"
        })
        .unwrap();
        // How many requests fail until then depends on how fast they come; how long it takes does not.
        let noticed = load.first_failure.get().unwrap().elapsed();
        assert!(
            noticed < Duration::from_secs(8),
            "noticed after {noticed:?}"
        );
        assert!(is_weight(&weir, 2, 0));
        let failed = load.failed.load(Ordering::Relaxed);
        let answered = load.answered.load(Ordering::Relaxed);
        wait("answers after it", 10, || {
            load.answered.load(Ordering::Relaxed) > answered + 50
        })
        .unwrap();
        // One request may have been on its way.
        assert!(load.failed.load(Ordering::Relaxed) <= failed + CLIENTS as u64);
    });
    let (failed, answered) = (&load.failed, &load.answered);
    let (failed, answered) = (
        failed.load(Ordering::Relaxed),
        answered.load(Ordering::Relaxed),
    );
    assert!(
        failed < answered,
        "{failed} failed, {answered} were answered: its share was a fifth"
    );

    weir.stop(30).unwrap();
    let weir = site.up().unwrap();
    let load = Load::during(&weir, |load| {
        wait("answers", 10, || load.answered.load(Ordering::Relaxed) > 50).unwrap();
    });
    assert_eq!(
        load.failed.load(Ordering::Relaxed),
        0,
        "it is not tried again"
    );
    let printed = weir_command()
        .args(["rollout", "history", "--admin", &weir.admin])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(
        printed.contains("rejected v2: GuardrailBreached"),
        "{printed}"
    );
}

/// Fast, error-free and wrong: only the references that its signer gave with it can tell.
#[test]
fn a_version_that_answers_its_signed_references_wrong_never_gets_a_user() {
    let site = site();
    let weir = site.up().unwrap();
    let right = reference_lines(&weir.client("acme-dev-key"), 24).unwrap();
    let load = Load::during(&weir, |load| {
        wait("some answers", 10, || {
            load.answered.load(Ordering::Relaxed) > 20
        })
        .unwrap();
        let other_weights = |dir: &std::path::Path| {
            write_other_weights(dir)?;
            std::fs::write(dir.join("references.jsonl"), &right)?;
            Ok(())
        };
        site.add_prepared_model(("random", 2), &json!({"rollout": rollout()}), other_weights)
            .unwrap();
        wait("version 2 is rejected", 60, || {
            version(&weir, 2)["status"]["rejected"]["reason"] == "ShadowRegression"
        })
        .unwrap();
        assert_eq!(
            version(&weir, 2)["status"]["rejected"]["guardrail"],
            "references"
        );
        // The same weights as the version that serves, mirrored too: it passes, and takes its first share.
        let mut plan = rollout();
        plan["shadow"] = json!({"percent": 100, "minRequests": 20, "agreementPercent": "90"});
        site.add_prepared_model(("random", 3), &json!({"rollout": plan}), |dir| {
            std::fs::write(dir.join("references.jsonl"), &right)?;
            Ok(())
        })
        .unwrap();
        wait("version 3 takes its first share", 60, || {
            is_weight(&weir, 3, 20)
        })
        .unwrap();
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    assert_eq!(
        load.of_candidate.load(Ordering::Relaxed),
        0,
        "no user of version 2"
    );
    let usage = weir.client("acme-dev-key").get("/usage").unwrap().body;
    let by_version = usage["byModel"].as_array().unwrap();
    assert!(by_version.iter().all(|row| row["version"] != 2), "{usage}");
    assert_eq!(usage["consistent"], true);
    // Beside the load, only the references were asked for by the test itself: what was mirrored is no run.
    let runs: u64 = by_version
        .iter()
        .filter_map(|row| row["runs"]["completed"].as_u64())
        .sum();
    assert_eq!(runs, load.answered.load(Ordering::Relaxed) + 24, "{usage}");
}

/// Whoever says that nothing changes is taken at their word: by how probable the candidate finds what stable says.
#[test]
fn a_claim_to_behave_as_the_version_that_serves_is_checked() {
    let site = site();
    let weir = site.up().unwrap();
    let mut plan = rollout();
    plan["shadow"] = json!({"percent": 100, "minRequests": 20});
    let claim = json!({"rollout": plan, "sameBehaviourAs": format!("sha256:{}", "0".repeat(64))});
    let load = Load::during(&weir, |_| {
        site.add_prepared_model(("random", 2), &claim, write_other_weights)
            .unwrap();
        let is_held = || {
            let status = version(&weir, 2)["status"].clone();
            let conditions = status["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            conditions.any(|condition| condition["reason"] == "ShadowDiffers")
        };
        wait("version 2 is held", 60, is_held).unwrap();
        site.add_prepared_model(("random", 3), &claim, |_| Ok(()))
            .unwrap();
        wait("version 3 takes its first share", 60, || {
            is_weight(&weir, 3, 20)
        })
        .unwrap();
    });
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    assert_eq!(
        load.of_candidate.load(Ordering::Relaxed),
        0,
        "no user of version 2"
    );
}

#[test]
fn people_steer_a_rollout() {
    let site = site();
    let weir = site.up().unwrap();
    let steer = |words: &[&str]| {
        let output = weir_command()
            .arg("rollout")
            .args(words)
            .args(["--admin", &weir.admin])
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.success(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    // No load: it waits for runs in its first step.
    site.add_prepared_model(("random", 2), &json!({"rollout": rollout()}), |_| Ok(()))
        .unwrap();
    wait("20 percent", 60, || is_weight(&weir, 2, 20)).unwrap();
    let (shown, tree) = steer(&["status", "random"]);
    assert!(
        shown && tree.contains("step 1 of 2  attempt v2-1"),
        "{tree}"
    );
    let (paused, said) = steer(&["pause", "random"]);
    assert!(
        paused && said.contains("random version 2: Paused"),
        "{said}"
    );
    let (resumed, said) = steer(&["resume", "random"]);
    assert!(resumed, "{said}");
    let (promoted, said) = steer(&["promote", "random", "--full"]);
    assert!(promoted, "{said}");
    wait("version 2 is stable", 30, || {
        version(&weir, 2)["status"]["stage"] == "Production"
    })
    .unwrap();
    let (undone, said) = steer(&["undo", "random"]);
    assert!(undone, "{said}");
    wait("version 1 is stable", 60, || {
        version(&weir, 1)["status"]["stage"] == "Production"
    })
    .unwrap();
    let (known, said) = steer(&["abort", "nothing"]);
    assert!(!known && said.contains("no rollout of model"), "{said}");
}
