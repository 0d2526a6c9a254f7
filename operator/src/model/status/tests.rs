use serde_json::json;
use weir_api::{Validate as _, parse};
use weir_rollout::VersionId;
use weir_rollout::decide::{Reason, StatusStage as Stage};

use super::*;
use crate::verify::{Unverified, Verified};

fn object(stage: &str) -> ModelVersion {
    parse(&json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": "m-v2", "generation": 4},
        "spec": {
            "model": "m", "version": 2, "stage": stage, "pool": "p",
            "manifest": {
                "artifact": {"uri": "file:/m"},
                "files": [{"path": "weir-manifest.json", "sha256": "a".repeat(64), "size": 1}],
                "architecture": "LlamaForCausalLM", "precision": "bf16", "contextTokens": 64, "requestSchema": 1,
            },
            "signature": {"file": "model.sig"},
        },
    }))
    .unwrap()
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "a verdict, as the code under test takes it"
)]
fn verified() -> Verdict {
    let valid = object("Production").validate().unwrap();
    Ok(Verified {
        digest: "sha256:aa".to_owned(),
        signer: "ci".to_owned(),
        claim: crate::model::claim::claim(&valid).unwrap(),
        is_read: true,
    })
}

fn rollout(stage: Stage, replicas: u32, ready: u32, doing: Option<&'static str>) -> VersionStatus {
    VersionStatus {
        id: VersionId::new(2, "sha256:aa"),
        stage,
        weight_percent: Some(0),
        step: None,
        steps: None,
        attempt: None,
        rollback_to: None,
        is_rollback_ready: false,
        rejected: None,
        evidence: Vec::new(),
        suspicion_milli: None,
        minimum_sample_in_ms: None,
        is_sole_serving: false,
        replicas,
        ready_replicas: ready,
        progressing: doing.map(|reason| Reason {
            reason,
            message: "m".to_owned(),
        }),
        is_stalled: false,
        is_orphan: false,
    }
}

struct Case {
    name: &'static str,
    stage: &'static str,
    verdict: Option<Verdict>,
    refusal: Option<&'static str>,
    rollout: Option<VersionStatus>,
    stable: Option<u32>,
    /// `Ready`'s status and reason, and which of kstatus' pair is there.
    want: (&'static str, &'static str, &'static str),
}

fn told(case: &Case) -> (String, String, String) {
    let object = object(case.stage);
    let valid = object.validate().unwrap();
    let head = Record {
        stable: case
            .stable
            .map(|number| VersionId::new(number, format!("sha256:{number}"))),
        ..Record::empty()
    };
    let facts = Facts {
        object: &object,
        valid: Ok(&valid),
        verdict: case.verdict.as_ref(),
        refusal: case.refusal.map(|reason| (reason, "why".to_owned())),
        rollout: case.rollout.as_ref().map(|rollout| (rollout, &head)),
        fetch: None,
        contested: &[],
    };
    let status = status(&facts, Timestamp::UNIX_EPOCH);
    assert_eq!(status.observed_generation, Some(4));
    let find = |type_: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
    };
    let ready = find(CONDITION_READY).unwrap();
    let pair = [CONDITION_RECONCILING, CONDITION_STALLED];
    let pair: Vec<&str> = pair
        .into_iter()
        .filter(|type_| find(type_).is_some())
        .collect();
    (ready.status.clone(), ready.reason.clone(), pair.join(" "))
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table, one row a case")]
fn ready_sums_up_what_a_version_does() {
    let refused = || {
        Some(Err(Unverified {
            reason: "FileTampered".to_owned(),
            message: "m".to_owned(),
        }))
    };
    let production = |verdict, rollout| Case {
        name: "",
        stage: "Production",
        verdict,
        refusal: None,
        rollout,
        stable: None,
        want: ("", "", ""),
    };
    let cases = [
        Case {
            name: "not looked at",
            want: ("False", "Starting", "Reconciling"),
            ..production(None, None)
        },
        Case {
            name: "tampered",
            want: ("False", "FileTampered", "Reconciling"),
            ..production(refused(), None)
        },
        Case {
            name: "no pool",
            refusal: Some("PoolNotFound"),
            want: ("False", "PoolNotFound", "Stalled"),
            ..production(Some(verified()), None)
        },
        Case {
            name: "in a step",
            want: ("False", "Baking", "Reconciling"),
            ..production(
                Some(verified()),
                Some(rollout(Stage::Canary, 1, 1, Some("Baking"))),
            )
        },
        Case {
            name: "serves",
            want: ("True", "Serving", ""),
            ..production(
                Some(verified()),
                Some(rollout(Stage::Production, 1, 1, None)),
            )
        },
        Case {
            name: "serves although its key was revoked",
            want: ("True", "Serving", ""),
            ..production(refused(), Some(rollout(Stage::Production, 1, 1, None)))
        },
        Case {
            name: "sleeps",
            want: ("True", "Asleep", ""),
            ..production(
                Some(verified()),
                Some(rollout(Stage::Production, 0, 0, None)),
            )
        },
        Case {
            name: "a higher one serves",
            stable: Some(3),
            want: ("True", "Superseded", ""),
            ..production(
                Some(verified()),
                Some(rollout(Stage::Registered, 0, 0, None)),
            )
        },
        Case {
            name: "registered",
            stage: "Registered",
            want: ("True", "Registered", ""),
            ..production(
                Some(verified()),
                Some(rollout(Stage::Registered, 0, 0, None)),
            )
        },
        Case {
            name: "retired",
            stage: "Retired",
            want: ("True", "Retired", ""),
            ..production(Some(verified()), Some(rollout(Stage::Retired, 0, 0, None)))
        },
    ];
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let (status, reason, pair) = told(case);
            let is_right = (status.as_str(), reason.as_str(), pair.as_str()) == case.want;
            (!is_right).then(|| format!("{}: {status} {reason} {pair}", case.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_adapter_is_refused_with_what_to_do_instead() {
    use crate::model::see::adapter_refusal;
    let mut adapter = object("Production");
    assert_eq!(adapter_refusal(&adapter), None);
    adapter.spec.manifest.adapter_of = Some(format!("sha256:{}", "b".repeat(64)));
    let valid = adapter.validate().unwrap();
    let verdict = verified();
    let facts = Facts {
        object: &adapter,
        valid: Ok(&valid),
        verdict: Some(&verdict),
        refusal: adapter_refusal(&adapter),
        rollout: None,
        fetch: None,
        contested: &[],
    };
    let status = status(&facts, Timestamp::UNIX_EPOCH);
    let of = |kind: &str| {
        let mut conditions = status.conditions.iter();
        conditions
            .find(|condition| condition.type_ == kind)
            .unwrap()
    };
    for kind in [conditions::ADMITTED, CONDITION_READY, CONDITION_STALLED] {
        assert_eq!(of(kind).reason, "AdaptersUnsupported", "{kind}");
        assert!(
            of(kind).message.contains("merge it into its base"),
            "{kind}"
        );
    }
    assert_eq!(of(CONDITION_READY).status, "False");
}

#[test]
fn a_version_whose_files_come_says_so_until_a_worker_has_them() {
    let object = object("Production");
    let valid = object.validate().unwrap();
    let (verdict, head) = (verified(), Record::empty());
    let starting = rollout(Stage::Registered, 1, 0, Some("Starting"));
    let told = |state: &str, have: usize| {
        let files = crate::fetches::Files {
            state: state.to_owned(),
            done_bytes: 30,
            total_bytes: 100,
            reason: Some("ArtifactDenied".to_owned()),
            message: None,
        };
        let progress = Progress {
            workers: 1,
            have,
            others: (have == 0)
                .then(|| ("w".to_owned(), files))
                .into_iter()
                .collect(),
        };
        let facts = Facts {
            object: &object,
            valid: Ok(&valid),
            verdict: Some(&verdict),
            refusal: None,
            rollout: Some((&starting, &head)),
            fetch: Some(&progress),
            contested: &[],
        };
        let all = status(&facts, Timestamp::UNIX_EPOCH).conditions;
        let find = |type_: &str| {
            let found = all.iter().find(|condition| condition.type_ == type_);
            found.map(|found| format!("{} {}", found.status, found.reason))
        };
        (find(conditions::FETCHED), find(CONDITION_READY))
    };
    let both = |one: &str, other: &str| (Some(one.to_owned()), Some(other.to_owned()));
    assert_eq!(
        told("fetching", 0),
        both("False Fetching", "False Fetching")
    );
    assert_eq!(
        told("failed", 0),
        both("False ArtifactDenied", "False ArtifactDenied")
    );
    assert_eq!(told("fetched", 1), both("True InCache", "False Starting"));
}
