//! Good objects for tests: the contract's examples, every field of them.

use serde_json::{Value, json};

pub(crate) fn pool() -> Value {
    yaml(
        r"
apiVersion: weir.dev/v1alpha1
kind: GpuPool
metadata: {name: small}
spec:
  accelerator: {type: cpu}
  replicas: {min: 1, max: 4}
  scaling: {targetKvOccupancyPercent: 80, targetQueueMs: 200, targetTokensPerSecond: 4000, scaleDownStabilization: 300s}
  sharing: Dedicated
  engine: {maxBatchTokens: 2048, maxRunning: 64, kvMemory: 1Gi, blockTokens: 16, kvDtype: bf16}
  queue: {maxDepth: 256, maxWait: 10s}
  promptClasses: [{name: short, maxPromptTokens: 512}, {name: medium, maxPromptTokens: 4096}, {name: long}]
  region: local
",
    )
}

pub(crate) fn version() -> Value {
    let mut version = yaml(
        r#"
apiVersion: weir.dev/v1alpha1
kind: ModelVersion
metadata: {name: tiny-chat-v2}
spec:
  model: tiny-chat
  version: 2
  manifest:
    artifact: {uri: "file:../models/tiny-chat-v2"}
    files: []
    architecture: LlamaForCausalLM
    precision: bf16
    contextTokens: 2048
    requestSchema: 1
  signature: {file: model.sig}
  stage: Production
  pool: small
  qualityTier: standard
  price: {promptMicrosPerToken: 1, cachedMicrosPerToken: 0, outputMicrosPerToken: 4}
  fallback: []
  rollout:
    shadow: {percent: 10, minRequests: 50}
    steps: [{weightPercent: 5, bake: 60s}, {weightPercent: 25, bake: 60s}, {weightPercent: 50, bake: 60s}]
    guardrails: {errorRatePercent: 1, ttftP95Ms: 500, interTokenP95Ms: 100, minRequests: 50}
    onNoData: Hold
    onBreach: Rollback
"#,
    );
    version["spec"]["manifest"]["files"] = json!([
        {"path": "model.safetensors", "sha256": "9f".repeat(32), "size": 6_291_456},
        {"path": "tokenizer.json", "sha256": "11".repeat(32), "size": 180_224},
        {"path": "weir-manifest.json", "sha256": "77".repeat(32), "size": 612},
    ]);
    version
}

pub(crate) fn quota() -> Value {
    yaml(
        r"
apiVersion: weir.dev/v1alpha1
kind: TenantQuota
metadata: {name: acme}
spec:
  tenant: acme
  keys: [{name: ci, secretRef: {name: acme-keys, key: ci}}]
  windows: [{period: 24h, tokens: 1000000, costMicros: 5000000}]
  rates: {requestsPerMinute: 600, tokensPerMinute: 200000}
  limits: {concurrentRuns: 64, maxPromptTokens: 2048, maxOutputTokens: 1024, kvSharePercent: 50}
  priority: interactive
  models: [{name: tiny-chat, tiers: [standard], fallback: Allowed}]
  trustScope: acme
  retention: {events: 24h, content: 24h}
",
    )
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

/// A change of an object: a JSON pointer and the new value; `null` takes the field away.
pub(crate) type Change = (&'static str, Value);

pub(crate) fn changed(mut object: Value, changes: &[Change]) -> Value {
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = object
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("no {parent} in the sample"));
        match parent {
            Value::Array(items) if name == "-" => items.push(value.clone()),
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
            Value::Object(fields) if value.is_null() => {
                fields.remove(name).unwrap();
            }
            Value::Object(fields) => {
                fields.insert(name.to_owned(), value.clone());
            }
            other => panic!("{pointer}: {other} has no fields"),
        }
    }
    object
}
