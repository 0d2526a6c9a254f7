//! From a `ModelVersion` object to what decisions are made on.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use weir_api::model_version::{self as api, Permission};
use weir_api::{ModelVersion, RolloutPlan, ValidModelVersion};

use crate::decide::{Stage, Verification, VersionSpec};
use crate::{
    Limits, OnBreach, Plan, Policy, Promote, Reserve, ShadowMode, ShadowPlan, StepPlan, VersionId,
};

/// Largest mean difference of scores of a version that says it behaves as another one.
const SAME_BEHAVIOUR_MILLI_NATS: u32 = 50;

/// Percent, pairs and tokens per second of the shadow of a version that claims to behave as another one and has no plan of its own for it.
const UNASKED_SHADOW: [u32; 3] = [10, 50, 2_000];

/// The version an object is about. `digest` is its signed manifest's.
pub fn version_spec(
    object: &ModelVersion,
    valid: &ValidModelVersion,
    digest: &str,
    verification: Verification,
) -> VersionSpec {
    VersionSpec {
        id: VersionId::new(valid.version, digest),
        spec_hash: spec_hash(object, digest),
        stage: match valid.stage {
            api::Stage::Registered => Stage::Registered,
            api::Stage::Shadow => Stage::Shadow,
            api::Stage::Canary => Stage::Canary,
            api::Stage::Production => Stage::Production,
            api::Stage::Retired => Stage::Retired,
        },
        verification,
        plan: plan(valid),
    }
}

/// Hash over what a person set and what a rejection is about. Equal YAML gives an equal hash, whoever applies it how often, and
/// whatever this program's silent values are.
fn spec_hash(object: &ModelVersion, digest: &str) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Hashed<'a> {
        format: u32,
        digest: &'a str,
        stage: Value,
        pool: &'a str,
        rollout: Value,
    }
    let spec = &object.spec;
    let value = |value: serde_json::Result<Value>| value.expect("a kind is JSON");
    let hashed = Hashed {
        format: 1,
        digest,
        stage: value(serde_json::to_value(spec.stage)),
        pool: &spec.pool,
        // By way of the type: its fields come in one order, whatever a person wrote.
        rollout: value(serde_json::to_value(&spec.rollout)),
    };
    let bytes = serde_json::to_vec(&hashed).expect("a value is JSON");
    blake3::hash(&bytes).to_hex()[..32].to_owned()
}

fn plan(valid: &ValidModelVersion) -> Plan {
    let rollout = &valid.rollout;
    let guardrails = &rollout.guardrails;
    Plan {
        shadow: shadow(valid, rollout),
        steps: rollout
            .steps
            .iter()
            .map(|step| StepPlan {
                weight_percent: step.weight_percent,
                bake_ms: millis(step.bake),
                max_wait_ms: millis(step.max_wait),
            })
            .collect(),
        limits: Limits {
            error_rate_ppm: guardrails.error_rate_ppm,
            ttft_p95_ms: guardrails.ttft_p95_ms,
            inter_token_p95_ms: guardrails.inter_token_p95_ms,
            min_requests: guardrails.min_requests,
            false_alarm_ppm: guardrails.false_alarm_ppm,
            promote_risk_ppm: guardrails.promote_risk_ppm,
        },
        on_no_data: policy(rollout.on_no_data),
        on_inconclusive: policy(rollout.on_inconclusive),
        on_breach: match rollout.on_breach {
            api::OnBreach::Rollback => OnBreach::Rollback,
            api::OnBreach::Hold => OnBreach::Hold,
        },
        promote: match rollout.promote {
            api::Promote::Fine => Promote::Fine,
            api::Promote::NoBreach => Promote::NoBreach,
        },
        final_bake_ms: millis(rollout.final_bake),
        reserve: match rollout.rollback_reserve {
            api::RollbackReserve::FullThenOne => Reserve::FullThenOne,
            api::RollbackReserve::Full => Reserve::Full,
            api::RollbackReserve::One => Reserve::One,
        },
        downtime: rollout.downtime == Permission::Allowed,
        progress_deadline_ms: millis(rollout.progress_deadline),
    }
}

fn shadow(valid: &ValidModelVersion, rollout: &RolloutPlan) -> Option<ShadowPlan> {
    let claim = valid.manifest.same_behaviour_as.as_ref();
    let score_milli_nats = claim.map(|_| SAME_BEHAVIOUR_MILLI_NATS);
    let Some(shadow) = &rollout.shadow else {
        // Signed references are asked before any user is, and a claim is checked, whatever the plan says of mirrored runs.
        let is_needed = claim.is_some() || valid.manifest.references.is_some();
        let [percent, min_requests, max_tokens_per_second] = match claim {
            Some(_) => UNASKED_SHADOW,
            None => [0; 3],
        };
        return is_needed.then_some(ShadowPlan {
            percent,
            min_requests,
            mode: ShadowMode::Generate,
            max_tokens_per_second,
            agreement_ppm: None,
            score_milli_nats,
        });
    };
    Some(ShadowPlan {
        percent: shadow.percent,
        min_requests: shadow.min_requests,
        mode: match shadow.mode {
            api::ShadowMode::Score => ShadowMode::Score,
            api::ShadowMode::Generate => ShadowMode::Generate,
        },
        max_tokens_per_second: shadow.max_tokens_per_second,
        agreement_ppm: shadow.agreement_ppm,
        score_milli_nats,
    })
}

fn policy(policy: api::Policy) -> Policy {
    match policy {
        api::Policy::Hold => Policy::Hold,
        api::Policy::Rollback => Policy::Rollback,
        api::Policy::Promote => Policy::Promote,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_api::{Validate, parse};

    use super::*;

    fn object(rollout: &Value, stage: &str) -> ModelVersion {
        parse(&written(rollout, stage)).unwrap()
    }

    fn written(rollout: &Value, stage: &str) -> Value {
        json!({
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ModelVersion",
            "metadata": {"name": "m-v2"},
            "spec": {
                "model": "m", "version": 2, "stage": stage, "pool": "p", "qualityTier": "standard",
                "manifest": {
                    "artifact": {"uri": "file:m"},
                    "files": [{"path": "weir-manifest.json", "sha256": "0".repeat(64), "size": 1}],
                    "architecture": "LlamaForCausalLM", "precision": "bf16", "contextTokens": 64, "requestSchema": 1
                },
                "signature": {"file": "m.sig"},
                "rollout": rollout
            }
        })
    }

    fn spec(object: &ModelVersion) -> VersionSpec {
        version_spec(
            object,
            &object.validate().unwrap(),
            "sha256:aa",
            Verification::Verified,
        )
    }

    #[test]
    fn a_plan_says_what_the_object_says_and_passes_its_own_check() {
        let rollout = json!({
            "steps": [{"weightPercent": 10, "bake": "5s"}, {"weightPercent": 50, "bake": "7s", "maxWait": "2m"}],
            "guardrails": {"errorRatePercent": 2, "ttftP95Ms": 300, "minRequests": 20},
            "onNoData": "Rollback", "promote": "NoBreach"
        });
        let spec = spec(&object(&rollout, "Production"));
        assert_eq!(spec.plan.problem(), None);
        assert_eq!(spec.id, VersionId::new(2, "sha256:aa"));
        assert_eq!(spec.stage, Stage::Production);
        let weights: Vec<_> = spec
            .plan
            .steps
            .iter()
            .map(|step| (step.weight_percent, step.bake_ms))
            .collect();
        assert_eq!(weights, [(10, 5_000), (50, 7_000)]);
        assert_eq!(spec.plan.steps[1].max_wait_ms, 120_000);
        assert_eq!(spec.plan.limits.error_rate_ppm, 20_000);
        assert_eq!(spec.plan.limits.ttft_p95_ms, Some(300));
        assert_eq!(spec.plan.on_no_data, Policy::Rollback);
        assert_eq!(spec.plan.promote, Promote::NoBreach);
    }

    #[test]
    fn a_claim_to_behave_as_another_version_is_scored_whether_or_not_the_plan_mirrors() {
        let claiming = |rollout: Value| {
            let mut object = written(&rollout, "Production");
            object["spec"]["manifest"]["sameBehaviourAs"] =
                json!(format!("sha256:{}", "b".repeat(64)));
            let plan = spec(&parse(&object).unwrap()).plan;
            assert!(plan.is_scored());
            plan.shadow.unwrap()
        };
        let unasked = claiming(json!({}));
        assert_eq!((unasked.percent, unasked.min_requests), (10, 50));
        let asked = claiming(json!({"shadow": {"percent": 100, "minRequests": 7}}));
        assert_eq!((asked.percent, asked.min_requests), (100, 7));
        let plan = spec(&object(&json!({"shadow": {"percent": 100}}), "Production")).plan;
        assert!(!plan.is_scored());
    }

    #[test]
    fn the_most_steps_that_a_schema_takes_fit_into_a_plan() {
        let steps: Vec<Value> = (1..=Plan::MAX_STEPS)
            .map(|n| json!({"weightPercent": n}))
            .collect();
        let one_more: Vec<Value> = (1..=Plan::MAX_STEPS + 1)
            .map(|n| json!({"weightPercent": n}))
            .collect();
        let fits = object(&json!({"steps": steps}), "Production");
        assert_eq!(spec(&fits).plan.problem(), None);
        let too_many = written(&json!({"steps": one_more}), "Production");
        assert!(parse::<ModelVersion>(&too_many).is_err());
    }

    #[test]
    fn a_hash_stands_for_what_a_person_set() {
        let hash = |rollout: Value, stage| spec(&object(&rollout, stage)).spec_hash;
        let first = hash(
            json!({"onBreach": "Hold", "promote": "NoBreach"}),
            "Production",
        );
        let reordered = hash(
            json!({"promote": "NoBreach", "onBreach": "Hold"}),
            "Production",
        );
        assert_eq!(first, reordered);
        assert_ne!(
            first,
            hash(
                json!({"onBreach": "Hold", "promote": "NoBreach"}),
                "Registered"
            )
        );
        assert_ne!(first, hash(json!({"onBreach": "Hold"}), "Production"));
    }
}
