//! CEL rules: each refuses what it should and accepts a good object, on creation and on update.

use serde_json::json;

use super::{accepted, creations, refused, updates};
use crate::samples::{pool, quota, version};
use crate::{GpuPool, ModelVersion, TenantQuota};

#[test]
fn rules_of_a_new_model_version_refuse_what_they_should() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    creations::<ModelVersion>(
        &version(),
        vec![
            accepted("the contract's example", []),
            refused(
                "long name",
                [("/metadata/name", json!("a".repeat(64)))],
                "metadata.name must have at most 63",
            ),
            accepted(
                "name of a label's length",
                [("/metadata/name", json!("a".repeat(63)))],
            ),
            refused(
                "fallback to itself",
                [("/spec/fallback", json!(["tiny-chat"]))],
                "fallback names the model itself",
            ),
            accepted(
                "fallback to another",
                [("/spec/fallback", json!(["tinier-chat"]))],
            ),
            refused(
                "both signatures",
                [("/spec/signature/bundle", json!("AAAA"))],
                "spec.signature: signature needs exactly one of bundle and file",
            ),
            refused(
                "no signature",
                [("/spec/signature", json!({}))],
                "spec.signature: signature needs exactly one of bundle and file",
            ),
            accepted(
                "bundle instead of file",
                [("/spec/signature", json!({"bundle": "AAAA"}))],
            ),
            refused(
                "ftp",
                [("/spec/manifest/artifact/uri", json!("ftp://host/x"))],
                "spec.manifest.artifact.uri: uri must start with file:",
            ),
            refused(
                "space in uri",
                [("/spec/manifest/artifact/uri", json!("oci://host/a b"))],
                "uri must start with",
            ),
            refused(
                "a Secret for a folder",
                [("/spec/manifest/artifact/secret", json!("models-s3"))],
                "spec.manifest.artifact.secret: secret belongs to places that files are fetched from",
            ),
            refused(
                "a Secret of the install's own",
                [(
                    "/spec/manifest/artifact",
                    json!({"uri": "s3://models/tiny/2", "secret": "weir-authority"}),
                )],
                "spec.manifest.artifact.secret: secret must not begin with weir-",
            ),
            accepted(
                "a Secret for a bucket",
                [(
                    "/spec/manifest/artifact",
                    json!({"uri": "s3://models/tiny/2", "secret": "models-s3"}),
                )],
            ),
            accepted(
                "oci",
                [(
                    "/spec/manifest/artifact/uri",
                    json!("oci://host/models/tiny:2"),
                )],
            ),
            accepted(
                "absolute file",
                [("/spec/manifest/artifact/uri", json!("file:///models/tiny"))],
            ),
            refused(
                "no weir-manifest.json",
                [("/spec/manifest/files/2/path", json!("other.json"))],
                "files must list weir-manifest.json",
            ),
            refused(
                "references unsigned",
                [("/spec/manifest/references", json!("references.jsonl"))],
                "references must name one of the files",
            ),
            accepted(
                "references signed",
                [("/spec/manifest/references", json!("tokenizer.json"))],
            ),
            accepted("adapter", [("/spec/manifest/adapterOf", json!(digest))]),
            refused(
                "equal weights",
                [("/spec/rollout/steps/1/weightPercent", json!(5))],
                "spec.rollout.steps: weightPercent must rise strictly",
            ),
            refused(
                "falling weights",
                [("/spec/rollout/steps/2/weightPercent", json!(10))],
                "spec.rollout.steps: weightPercent must rise strictly",
            ),
            accepted(
                "one step",
                [("/spec/rollout/steps", json!([{"weightPercent": 99}]))],
            ),
            accepted("no steps", [("/spec/rollout/steps", json!([]))]),
            accepted("no rollout", [("/spec/rollout", json!(null))]),
        ],
    );
}

#[test]
fn what_is_signed_cannot_change() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    updates::<ModelVersion>(
        &version(),
        vec![
            accepted("nothing", []),
            accepted(
                "a mirror",
                [("/spec/manifest/artifact/uri", json!("https://mirror/tiny"))],
            ),
            accepted(
                "another signature",
                [("/spec/signature", json!({"bundle": "AAAA"}))],
            ),
            accepted("stage", [("/spec/stage", json!("Retired"))]),
            accepted(
                "pool and price",
                [("/spec/pool", json!("large")), ("/spec/price", json!(null))],
            ),
            accepted(
                "rollout",
                [("/spec/rollout/steps/0/weightPercent", json!(1))],
            ),
            refused(
                "model",
                [("/spec/model", json!("other"))],
                "spec.model: model cannot change",
            ),
            refused(
                "version",
                [("/spec/version", json!(3))],
                "spec.version: version cannot change",
            ),
            refused(
                "a digest",
                [("/spec/manifest/files/0/sha256", json!("00".repeat(32)))],
                "files cannot change",
            ),
            refused(
                "one more file",
                [(
                    "/spec/manifest/files/-",
                    json!({"path": "x", "sha256": "00".repeat(32), "size": 1}),
                )],
                "files cannot change",
            ),
            refused(
                "architecture",
                [("/spec/manifest/architecture", json!("Qwen2ForCausalLM"))],
                "architecture and precision cannot change",
            ),
            refused(
                "precision",
                [("/spec/manifest/precision", json!("f32"))],
                "architecture and precision cannot change",
            ),
            refused(
                "context",
                [("/spec/manifest/contextTokens", json!(4096))],
                "contextTokens and requestSchema cannot change",
            ),
            refused(
                "request schema",
                [("/spec/manifest/requestSchema", json!(2))],
                "contextTokens and requestSchema cannot change",
            ),
            refused(
                "becoming an adapter",
                [("/spec/manifest/adapterOf", json!(digest))],
                "adapterOf cannot change",
            ),
            refused(
                "new references",
                [("/spec/manifest/references", json!("tokenizer.json"))],
                "references cannot change",
            ),
            refused(
                "new likeness",
                [("/spec/manifest/sameBehaviourAs", json!(digest))],
                "sameBehaviourAs cannot change",
            ),
        ],
    );
}

#[test]
fn what_is_signed_cannot_be_taken_away() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let mut adapter = version();
    adapter["spec"]["manifest"]["adapterOf"] = json!(digest);
    adapter["spec"]["manifest"]["references"] = json!("tokenizer.json");
    adapter["spec"]["manifest"]["sameBehaviourAs"] = json!(digest);
    let other = format!("sha256:{}", "cd".repeat(32));
    updates::<ModelVersion>(
        &adapter,
        vec![
            accepted("nothing", []),
            refused(
                "no adapter",
                [("/spec/manifest/adapterOf", json!(null))],
                "adapterOf cannot change",
            ),
            refused(
                "another base",
                [("/spec/manifest/adapterOf", json!(other))],
                "adapterOf cannot change",
            ),
            refused(
                "no references",
                [("/spec/manifest/references", json!(null))],
                "references cannot change",
            ),
            refused(
                "others",
                [("/spec/manifest/references", json!("model.safetensors"))],
                "references cannot change",
            ),
            refused(
                "no likeness",
                [("/spec/manifest/sameBehaviourAs", json!(null))],
                "sameBehaviourAs cannot change",
            ),
            refused(
                "another likeness",
                [("/spec/manifest/sameBehaviourAs", json!(other))],
                "sameBehaviourAs cannot change",
            ),
        ],
    );
}

#[test]
fn rules_of_a_pool_refuse_what_they_should() {
    let gpu = json!({"type": "gpu", "resourceName": "nvidia.com/gpu", "count": 2});
    creations::<GpuPool>(
        &pool(),
        vec![
            accepted("the contract's example", []),
            refused(
                "long name",
                [("/metadata/name", json!("a".repeat(41)))],
                "metadata.name must have at most 40",
            ),
            refused(
                "dotted name",
                [("/metadata/name", json!("a.b"))],
                "metadata.name must have at most 40",
            ),
            accepted("gpu", [("/spec/accelerator", gpu)]),
            refused(
                "gpu of what",
                [("/spec/accelerator", json!({"type": "gpu"}))],
                "resourceName belongs to type gpu and is required there",
            ),
            refused(
                "cpu with a resource",
                [("/spec/accelerator/resourceName", json!("nvidia.com/gpu"))],
                "resourceName belongs to type gpu",
            ),
            refused(
                "counted cpu",
                [("/spec/accelerator/count", json!(2))],
                "count belongs to type gpu",
            ),
            accepted(
                "claim",
                [(
                    "/spec/accelerator",
                    json!({"type": "claim", "claimTemplate": "h200"}),
                )],
            ),
            refused(
                "claim of what",
                [("/spec/accelerator", json!({"type": "claim"}))],
                "claimTemplate belongs to type claim and is required there",
            ),
            refused(
                "cpu with a claim",
                [("/spec/accelerator/claimTemplate", json!("h200"))],
                "claimTemplate belongs to type claim",
            ),
            refused(
                "min above max",
                [("/spec/replicas/min", json!(5))],
                "spec.replicas: min must not be greater than max",
            ),
            accepted("fixed", [("/spec/replicas/min", json!(4))]),
            refused(
                "more running than tokens",
                [("/spec/engine/maxRunning", json!(4096))],
                "maxRunning (64 where absent, 256 on a GPU) must not be greater",
            ),
            refused(
                "silently more running",
                [("/spec/engine", json!({"maxBatchTokens": 32}))],
                "maxRunning (64 where absent, 256 on a GPU) must not be greater",
            ),
            accepted(
                "small engine",
                [(
                    "/spec/engine",
                    json!({"maxBatchTokens": 16, "maxRunning": 16}),
                )],
            ),
            refused(
                "odd blocks",
                [("/spec/engine/blockTokens", json!(17))],
                "spec.engine.blockTokens: blockTokens must be 8, 16, 32, 64 or 128",
            ),
            refused(
                "falling classes",
                [("/spec/promptClasses/1/maxPromptTokens", json!(100))],
                "maxPromptTokens must rise strictly",
            ),
            refused(
                "equal classes",
                [("/spec/promptClasses/1/maxPromptTokens", json!(512))],
                "maxPromptTokens must rise strictly",
            ),
            refused(
                "unbounded in the middle",
                [("/spec/promptClasses/1/maxPromptTokens", json!(null))],
                "maxPromptTokens must rise strictly",
            ),
            accepted("no classes", [("/spec/promptClasses", json!(null))]),
        ],
    );
}

#[test]
fn a_pool_may_change_in_everything() {
    updates::<GpuPool>(
        &pool(),
        vec![
            accepted("scaled", [("/spec/replicas/min", json!(3))]),
            accepted(
                "other engine",
                [("/spec/engine", json!({"blockTokens": 32}))],
            ),
        ],
    );
}

#[test]
fn rules_of_a_quota_refuse_what_they_should() {
    creations::<TenantQuota>(
        &quota(),
        vec![
            accepted("the contract's example", []),
            refused(
                "long name",
                [("/metadata/name", json!("a".repeat(64)))],
                "metadata.name must have at most 63",
            ),
            refused(
                "limitless window",
                [("/spec/windows", json!([{"period": "1h"}]))],
                "spec.windows: each window needs tokens, costMicros or both",
            ),
            accepted(
                "cost only",
                [("/spec/windows", json!([{"period": "1h", "costMicros": 0}]))],
            ),
            refused(
                "one period in two forms",
                [("/spec/windows/-", json!({"period": "1440m", "tokens": 1}))],
                "two windows have the same period",
            ),
            accepted(
                "two periods",
                [("/spec/windows/-", json!({"period": "1h", "tokens": 1}))],
            ),
            refused(
                "no length",
                [("/spec/windows/0/period", json!("0s"))],
                "period must be from 1s to 8784h",
            ),
            refused(
                "ages",
                [("/spec/windows/0/period", json!("8785h"))],
                "period must be from 1s to 8784h",
            ),
        ],
    );
}

#[test]
fn a_quota_keeps_its_tenant() {
    updates::<TenantQuota>(
        &quota(),
        vec![
            accepted("other limits", [("/spec/windows/0/tokens", json!(5))]),
            accepted("no limits", [("/spec/windows", json!(null))]),
            refused(
                "another tenant",
                [("/spec/tenant", json!("globex"))],
                "spec.tenant: tenant cannot change",
            ),
        ],
    );
}
