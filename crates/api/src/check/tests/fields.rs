//! Structure: types, required and unknown fields, bounds, patterns, unique keys.

use serde_json::json;

use super::{accepted, creations, refused};
use crate::samples::{changed, pool, quota, version};
use crate::{GpuPool, ModelVersion, TenantQuota, parse};

#[test]
fn fields_of_a_model_version_are_checked_with_place_and_remedy() {
    creations::<ModelVersion>(
        &version(),
        vec![
            refused(
                "group",
                [("/apiVersion", json!("weir.dev/v1"))],
                "apiVersion: is \"weir.dev/v1\", must be \"weir.dev/v1alpha1\"",
            ),
            refused(
                "kind",
                [("/kind", json!(null))],
                "kind: is missing, must be \"ModelVersion\"",
            ),
            refused(
                "no name",
                [("/metadata", json!({}))],
                "metadata.name: is missing",
            ),
            refused(
                "bad name",
                [("/metadata/name", json!("Tiny_Chat"))],
                "metadata.name: \"Tiny_Chat\" is no object name",
            ),
            refused(
                "metadata typo",
                [("/metadata/lables", json!({}))],
                "metadata.lables: unknown field `lables`, did you mean `labels`?",
            ),
            refused(
                "number label",
                [("/metadata/labels", json!({"a": 1}))],
                "metadata.labels: must map names to text",
            ),
            accepted("labels", [("/metadata/labels", json!({"a": "1"}))]),
            refused(
                "typo",
                [("/spec/stages", json!("x"))],
                "spec.stages: unknown field `stages`, did you mean `stage`?",
            ),
            refused(
                "deep typo",
                [("/spec/rollout/steps/0/weight", json!(1))],
                "spec.rollout.steps[0].weight: unknown field `weight`, did you mean `weightPercent`?",
            ),
            refused(
                "stranger",
                [("/spec/signature/zzz", json!(1))],
                "spec.signature.zzz: unknown field `zzz`: known are bundle, file",
            ),
            refused(
                "root stranger",
                [("/specs", json!(1))],
                "specs: unknown field `specs`, did you mean `spec`?",
            ),
            refused(
                "missing",
                [("/spec/pool", json!(null))],
                "spec.pool: is missing (The GpuPool, in the same namespace, that serves this version)",
            ),
            refused(
                "enum",
                [("/spec/stage", json!("production"))],
                "spec.stage: \"production\" is not one of Registered, Shadow, Canary, Production, Retired; did you mean Production?",
            ),
            refused(
                "text number",
                [("/spec/version", json!("2"))],
                "spec.version: must be a whole number, is text",
            ),
            refused(
                "fraction",
                [("/spec/version", json!(1.5))],
                "spec.version: must be a whole number, is 1.5",
            ),
            refused(
                "zero version",
                [("/spec/version", json!(0))],
                "spec.version: is 0, must be from 1 to 2147483647",
            ),
            refused(
                "huge version",
                [("/spec/version", json!(3_000_000_000_i64))],
                "spec.version: is 3000000000, must be from 1",
            ),
            refused(
                "bare list",
                [("/spec/manifest", json!([]))],
                "spec.manifest: must be a group of fields, is a list",
            ),
            refused(
                "bad model",
                [("/spec/model", json!("tiny@2"))],
                "spec.model: \"tiny@2\" is not allowed (The name clients use",
            ),
            accepted(
                "slashed model",
                [("/spec/model", json!("meta/Llama-3.1:8b"))],
            ),
            refused(
                "traversal",
                [("/spec/manifest/files/0/path", json!("../x"))],
                "spec.manifest.files[0].path: \"../x\" is not allowed",
            ),
            refused(
                "inner traversal",
                [("/spec/manifest/files/0/path", json!("a/../x"))],
                "is not allowed",
            ),
            refused(
                "absolute",
                [("/spec/manifest/files/0/path", json!("/x"))],
                "is not allowed",
            ),
            accepted(
                "hidden",
                [("/spec/manifest/files/0/path", json!(".cache/.a-b"))],
            ),
            refused(
                "short digest",
                [("/spec/manifest/files/0/sha256", json!("9f2c"))],
                "spec.manifest.files[0].sha256: \"9f2c\" is not allowed (SHA-256",
            ),
            refused(
                "twice",
                [("/spec/manifest/files/1/path", json!("model.safetensors"))],
                "spec.manifest.files[1]: path \"model.safetensors\" is there twice",
            ),
            refused(
                "empty step",
                [("/spec/rollout/steps/0/weightPercent", json!(0))],
                "spec.rollout.steps[0].weightPercent: is 0, must be from 1 to 99",
            ),
            refused(
                "whole step",
                [("/spec/rollout/steps/2/weightPercent", json!(100))],
                "is 100, must be from 1 to 99",
            ),
            refused(
                "duration",
                [("/spec/rollout/steps/0/bake", json!("1 minute"))],
                "spec.rollout.steps[0].bake: \"1 minute\" is not allowed",
            ),
            accepted(
                "mixed duration",
                [("/spec/rollout/steps/0/bake", json!("1m30s"))],
            ),
            accepted(
                "small share",
                [("/spec/rollout/guardrails/errorRatePercent", json!("0.1"))],
            ),
            refused(
                "large share",
                [("/spec/rollout/guardrails/errorRatePercent", json!(101))],
                "errorRatePercent: is 101, must be from 0 to 100",
            ),
            refused(
                "large text",
                [("/spec/rollout/guardrails/errorRatePercent", json!("100.5"))],
                "errorRatePercent: \"100.5\" is not allowed",
            ),
            refused(
                "float share",
                [("/spec/rollout/guardrails/errorRatePercent", json!(0.1))],
                "errorRatePercent: must be a whole number, is 0.1",
            ),
            refused(
                "same fallback",
                [("/spec/fallback", json!(["a", "a"]))],
                "spec.fallback[1]: \"a\" is there twice",
            ),
        ],
    );
}

#[test]
fn fields_of_a_pool_are_checked() {
    creations::<GpuPool>(
        &pool(),
        vec![
            refused(
                "kv words",
                [("/spec/engine/kvMemory", json!("1 GB"))],
                "spec.engine.kvMemory: \"1 GB\" is not allowed (KV memory per worker",
            ),
            accepted(
                "kv bytes",
                [("/spec/engine/kvMemory", json!(1_073_741_824))],
            ),
            refused(
                "sharing",
                [("/spec/sharing", json!(true))],
                "spec.sharing: must be text (put it in quotes), is true or false",
            ),
            refused(
                "empty",
                [("/spec/region", json!({}))],
                "spec.region: must be text",
            ),
            accepted(
                "any pod fields",
                [("/spec/podTemplate", json!({"spec": {"anything": [1]}}))],
            ),
            accepted(
                "selector",
                [("/spec/accelerator/nodeSelector", json!({"a/b": "c"}))],
            ),
            refused(
                "selector number",
                [("/spec/accelerator/nodeSelector", json!({"a": 1}))],
                "spec.accelerator.nodeSelector.a: must be text",
            ),
            refused(
                "priority twice",
                [(
                    "/spec/queue/priorities",
                    json!([{"priority": "batch"}, {"priority": "batch"}]),
                )],
                "spec.queue.priorities[1]: priority \"batch\" is there twice",
            ),
            refused(
                "too many",
                [("/spec/replicas/max", json!(20_000))],
                "spec.replicas.max: is 20000, must be from 1 to 10000",
            ),
        ],
    );
}

#[test]
fn fields_of_a_quota_are_checked() {
    creations::<TenantQuota>(
        &quota(),
        vec![
            refused(
                "time",
                [("/spec/keys/0/notAfter", json!("tomorrow"))],
                "spec.keys[0].notAfter: \"tomorrow\" is no time",
            ),
            accepted(
                "rfc 3339",
                [("/spec/keys/0/notAfter", json!("2027-01-01T00:00:00Z"))],
            ),
            refused(
                "negative",
                [("/spec/windows/0/tokens", json!(-1))],
                "spec.windows[0].tokens: is -1, must be from 0",
            ),
            refused(
                "no rate",
                [("/spec/rates/requestsPerMinute", json!(0))],
                "is 0, must be from 1",
            ),
            refused(
                "share",
                [("/spec/limits/kvSharePercent", json!(101))],
                "is 101, must be from 1 to 100",
            ),
            accepted("every model", [("/spec/models/0/name", json!("*"))]),
            refused(
                "glob",
                [("/spec/models/0/name", json!("tiny-*"))],
                "spec.models[0].name: \"tiny-*\" is not allowed",
            ),
            refused(
                "no tiers",
                [("/spec/models/0/tiers", json!([]))],
                "spec.models[0].tiers: needs at least 1 entries",
            ),
            refused(
                "key twice",
                [("/spec/keys/-", quota()["spec"]["keys"][0].clone())],
                "spec.keys[1]: name \"ci\" is there twice",
            ),
        ],
    );
}

#[test]
fn nulls_and_nothing_are_refused_where_they_stand() {
    let mut object = quota();
    object["spec"]["rates"] = json!(null);
    let problems = parse::<TenantQuota>(&object).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].path, "spec.rates");
    assert_eq!(parse::<TenantQuota>(&json!("text")).unwrap_err().len(), 4);
}

#[test]
fn all_problems_are_reported_at_once() {
    let broken = changed(
        version(),
        &[
            ("/spec/stage", json!("Live")),
            ("/spec/version", json!(-1)),
            ("/spec/manifest/files/0/size", json!("big")),
            ("/spec/signature/extra", json!(1)),
            ("/spec/pool", json!(null)),
        ],
    );
    let problems = parse::<ModelVersion>(&broken).unwrap_err();
    let mut places: Vec<&str> = problems.iter().map(|p| p.path.as_str()).collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "spec.manifest.files[0].size",
            "spec.pool",
            "spec.signature.extra",
            "spec.stage",
            "spec.version"
        ]
    );
}

#[test]
fn an_operator_tolerates_fields_it_does_not_know() {
    let newer = changed(pool(), &[("/spec/fromTheFuture", json!({"a": 1}))]);
    assert!(parse::<GpuPool>(&newer).is_err());
    let read: GpuPool = serde_json::from_value(newer).unwrap();
    crate::check(&read).unwrap();
}
