//! What silent fields mean, and what only code can refuse.

use std::time::Duration;

use serde_json::json;

use super::{Accelerator, Validate};
use crate::gpu_pool::{KvDtype, Priority, Sharing, WeightFormat};
use crate::model_version::{OnBreach, Permission, Policy, Promote, RollbackReserve, ShadowMode};
use crate::samples::{Change, changed, pool, quota, version};
use crate::{FieldProblem, GpuPool, Kind, ModelVersion, TenantQuota, parse};

fn validate<K: Validate>(
    sample: serde_json::Value,
    changes: &[Change],
) -> Result<K::Valid, Vec<FieldProblem>> {
    parse::<K>(&changed(sample, changes)).unwrap().validate()
}

#[test]
fn the_contracts_model_version_means_what_it_says() {
    let valid = validate::<ModelVersion>(version(), &[]).unwrap();
    assert_eq!((valid.model.as_str(), valid.version), ("tiny-chat", 2));
    assert_eq!(valid.manifest.local_path(), Some("../models/tiny-chat-v2"));
    assert_eq!(valid.manifest.files[0].sha256, [0x9f; 32]);
    assert_eq!(valid.price.output_micros, 4);
    let steps: Vec<u32> = valid
        .rollout
        .steps
        .iter()
        .map(|s| s.weight_percent)
        .collect();
    assert_eq!(steps, [5, 25, 50]);
    assert_eq!(valid.rollout.guardrails.error_rate_ppm, 10_000);
    assert_eq!(valid.rollout.guardrails.ttft_p95_ms, Some(500));
}

#[test]
fn a_silent_model_version_gets_safe_values() {
    let silent = [
        ("/spec/rollout", json!(null)),
        ("/spec/price", json!(null)),
        ("/spec/qualityTier", json!(null)),
        ("/spec/fallback", json!(null)),
    ];
    let valid = validate::<ModelVersion>(version(), &silent).unwrap();
    assert_eq!(valid.quality_tier, "standard");
    assert_eq!(valid.price, crate::TokenPrice::default());
    let plan = valid.rollout;
    assert_eq!(plan.shadow, None);
    let steps: Vec<_> = plan
        .steps
        .iter()
        .map(|s| (s.weight_percent, s.bake.as_secs(), s.max_wait.as_secs()))
        .collect();
    assert_eq!(steps, [(5, 60, 1800), (25, 60, 1800), (50, 60, 1800)]);
    assert_eq!(plan.final_bake, Duration::from_mins(1));
    assert_eq!(plan.progress_deadline, Duration::from_mins(10));
    assert_eq!(
        (plan.on_no_data, plan.on_inconclusive),
        (Policy::Hold, Policy::Hold)
    );
    assert_eq!(
        (plan.on_breach, plan.promote),
        (OnBreach::Rollback, Promote::Fine)
    );
    assert_eq!(
        (plan.rollback_reserve, plan.downtime),
        (RollbackReserve::FullThenOne, Permission::Denied)
    );
    let rails = plan.guardrails;
    assert_eq!(
        (
            rails.error_rate_ppm,
            rails.false_alarm_ppm,
            rails.promote_risk_ppm
        ),
        (10_000, 10_000, 50_000)
    );
    assert_eq!((rails.ttft_p95_ms, rails.min_requests), (None, 50));
}

#[test]
fn derived_values_follow_what_is_given() {
    let changes = [
        (
            "/spec/rollout/steps",
            json!([{"weightPercent": 10, "bake": "3m"}]),
        ),
        (
            "/spec/rollout/shadow",
            json!({"percent": 5, "agreementPercent": "97.5"}),
        ),
        ("/spec/price", json!({"promptMicrosPerToken": 3})),
    ];
    let valid = validate::<ModelVersion>(version(), &changes).unwrap();
    assert_eq!(valid.rollout.steps[0].max_wait, Duration::from_hours(1));
    assert_eq!(valid.rollout.final_bake, Duration::from_mins(3));
    let shadow = valid.rollout.shadow.unwrap();
    assert_eq!(
        (shadow.mode, shadow.agreement_ppm),
        (ShadowMode::Generate, Some(975_000))
    );
    assert_eq!(
        valid.price.cached_micros, 3,
        "a cached token is no free one"
    );
    let none = validate::<ModelVersion>(version(), &[("/spec/rollout/steps", json!([]))]).unwrap();
    assert!(
        none.rollout.steps.is_empty(),
        "an empty list is no silent one"
    );
}

/// Each row passes the schema and is refused by code, with its place.
#[test]
fn what_a_schema_cannot_say_is_refused() {
    let version_cases = [
        (
            "/spec/rollout/guardrails/errorRatePercent",
            json!(0),
            "spec.rollout.guardrails.errorRatePercent",
        ),
        (
            "/spec/rollout/guardrails/falseAlarmPercent",
            json!(0),
            "spec.rollout.guardrails.falseAlarmPercent",
        ),
        (
            "/spec/rollout/guardrails/promoteRiskPercent",
            json!(60),
            "spec.rollout.guardrails.promoteRiskPercent",
        ),
        (
            "/spec/rollout/progressDeadline",
            json!("0s"),
            "spec.rollout.progressDeadline",
        ),
        (
            "/spec/rollout/steps/1/maxWait",
            json!("1s"),
            "spec.rollout.steps[1].maxWait",
        ),
        (
            "/spec/rollout/shadow",
            json!({"percent": 1, "mode": "Score", "agreementPercent": 90}),
            "spec.rollout.shadow.mode",
        ),
    ];
    for (pointer, value, place) in version_cases {
        assert_refused::<ModelVersion>(version(), pointer, value, place);
    }
    let pool_cases = [
        (
            "/spec/engine/kvMemory",
            json!("1Ki"),
            "spec.engine.kvMemory",
        ),
        (
            "/spec/engine/kvMemory",
            json!("999999999999999Ti"),
            "spec.engine.kvMemory",
        ),
        ("/spec/queue/maxWait", json!("0ms"), "spec.queue.maxWait"),
        (
            "/spec/fetch",
            json!({"bytesPerSecond": "0"}),
            "spec.fetch.bytesPerSecond",
        ),
        (
            "/spec/queue/priorities",
            json!([{"priority": "batch", "maxWait": "0s"}]),
            "spec.queue.priorities[0].maxWait",
        ),
    ];
    for (pointer, value, place) in pool_cases {
        assert_refused::<GpuPool>(pool(), pointer, value, place);
    }
    let quota_cases = [
        (
            "/spec/windows/0/period",
            json!("1500ms"),
            "spec.windows[0].period",
        ),
        (
            "/spec/retention/events",
            json!("9000h"),
            "spec.retention.events",
        ),
    ];
    for (pointer, value, place) in quota_cases {
        assert_refused::<TenantQuota>(quota(), pointer, value, place);
    }
}

fn assert_refused<K: Validate>(
    sample: serde_json::Value,
    pointer: &'static str,
    value: serde_json::Value,
    place: &str,
) {
    let Err(problems) = validate::<K>(sample, &[(pointer, value)]) else {
        panic!("{place} was accepted");
    };
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].path, place, "{problems:?}");
}

#[test]
fn an_object_that_no_schema_has_seen_is_checked_too() {
    let mut pool: GpuPool = parse(&pool()).unwrap();
    pool.spec.replicas.min = -1;
    let problems = pool.validate().unwrap_err();
    assert_eq!(problems[0].path, "spec.replicas.min");
}

#[test]
fn a_silent_pool_gets_the_contracts_values() {
    let silent = [
        "scaling",
        "sharing",
        "engine",
        "queue",
        "promptClasses",
        "region",
    ];
    let mut object = pool();
    for field in silent {
        object["spec"]
            .as_object_mut()
            .unwrap()
            .remove(field)
            .unwrap();
    }
    let valid = validate::<GpuPool>(object, &[]).unwrap();
    assert_eq!(valid.accelerator, Accelerator::Cpu);
    assert_eq!((valid.min_replicas, valid.max_replicas), (1, 4));
    assert_eq!(valid.sharing, Sharing::Dedicated);
    let engine = valid.engine;
    assert_eq!(
        (
            engine.max_batch_tokens,
            engine.max_running,
            engine.block_tokens
        ),
        (2048, 64, 16)
    );
    assert_eq!(
        (engine.kv_bytes, engine.kv_dtype),
        (Some(1 << 30), KvDtype::Bf16)
    );
    assert_eq!(engine.weights, WeightFormat::Stored);
    assert_eq!(
        valid.scaling.scale_down_stabilization,
        Duration::from_mins(5)
    );
    for priority in Priority::ALL {
        let bound = valid.queue.of(priority);
        assert_eq!(
            (bound.max_depth, bound.max_wait),
            (256, Duration::from_secs(10))
        );
    }
    assert_eq!(valid.prompt_classes.len(), 1);
    assert_eq!(valid.prompt_classes[0].max_prompt_tokens, u32::MAX);
    assert_eq!(valid.largest_prompt(), None);
}

#[test]
fn single_priorities_have_their_own_queue_bounds_and_a_bounded_last_class_takes_nothing_longer() {
    let changes = [
        (
            "/spec/queue/priorities",
            json!([{"priority": "batch", "maxDepth": 9000, "maxWait": "1h"}]),
        ),
        (
            "/spec/promptClasses",
            json!([{"name": "short", "maxPromptTokens": 100}]),
        ),
    ];
    let valid = validate::<GpuPool>(pool(), &changes).unwrap();
    assert_eq!(valid.queue.batch.max_depth, 9000);
    assert_eq!(valid.queue.batch.max_wait, Duration::from_hours(1));
    assert_eq!(valid.queue.standard.max_depth, 256);
    let names: Vec<&str> = valid
        .prompt_classes
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(names, ["short"]);
    assert_eq!(valid.largest_prompt(), Some(100));
}

#[test]
fn a_silent_quota_lets_nobody_in_and_limits_nothing() {
    let bare = json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "TenantQuota",
        "metadata": {"name": "acme"}, "spec": {"tenant": "acme"}
    });
    let valid = validate::<TenantQuota>(bare, &[]).unwrap();
    assert!(valid.keys.is_empty() && valid.model("tiny-chat").is_none());
    assert!(valid.windows.is_empty());
    assert_eq!(valid.rates.requests_per_minute, None);
    assert_eq!(
        (valid.limits.concurrent_runs, valid.limits.kv_share_percent),
        (None, 100)
    );
    assert_eq!(
        (valid.priority, valid.trust_scope.as_str()),
        (Priority::Standard, "acme")
    );
    assert_eq!(
        (valid.retain_events, valid.retain_content),
        (Duration::from_hours(24), Duration::from_hours(24))
    );
}

#[test]
fn a_tenant_may_ask_for_its_priority_and_less_urgent_ones() {
    let changes = [("/spec/priority", json!("standard"))];
    let valid = validate::<TenantQuota>(quota(), &changes).unwrap();
    let permitted = Priority::ALL.map(|priority| valid.permits_priority(priority));
    assert_eq!(permitted, [false, true, true]);
}

#[test]
fn a_named_model_comes_before_the_entry_for_every_model() {
    let changes = [(
        "/spec/models",
        json!([{"name": "*"}, {"name": "big", "tiers": ["gold"], "fallback": "Allowed", "pinning": "Allowed"}]),
    )];
    let valid = validate::<TenantQuota>(quota(), &changes).unwrap();
    let (big, other) = (valid.model("big").unwrap(), valid.model("tiny").unwrap());
    assert!(big.permits_tier("gold") && !big.permits_tier("standard"));
    assert!(other.permits_tier("anything"));
    assert_eq!(
        (big.fallback, big.pinning),
        (Permission::Allowed, Permission::Allowed)
    );
    assert_eq!(
        (other.fallback, other.pinning),
        (Permission::Denied, Permission::Denied)
    );
}

#[test]
fn every_valid_object_survives_a_round_trip() {
    fn round<K: Kind + PartialEq + std::fmt::Debug>(value: &serde_json::Value) {
        let object: K = parse(value).unwrap();
        let again: K = parse(&serde_json::to_value(&object).unwrap()).unwrap();
        assert_eq!(object, again);
    }
    round::<GpuPool>(&pool());
    round::<ModelVersion>(&version());
    round::<TenantQuota>(&quota());
}
