//! What the API server must refuse: a change of a good object, and a part of the refusal.

/// A change of the quickstart's object of a kind.
pub(crate) struct Row {
    /// The kind.
    pub(crate) kind: &'static str,
    /// JSON pointers and YAML values; `~` takes the field away.
    pub(crate) changes: &'static [(&'static str, &'static str)],
    /// Part of what the API server says.
    pub(crate) want: &'static str,
}

const fn version(changes: &'static [(&'static str, &'static str)], want: &'static str) -> Row {
    Row {
        kind: "ModelVersion",
        changes,
        want,
    }
}

const fn pool(changes: &'static [(&'static str, &'static str)], want: &'static str) -> Row {
    Row {
        kind: "GpuPool",
        changes,
        want,
    }
}

const fn quota(changes: &'static [(&'static str, &'static str)], want: &'static str) -> Row {
    Row {
        kind: "TenantQuota",
        changes,
        want,
    }
}

/// 64 letters: one more than a label may have.
const LONG: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// A file that is not `weir-manifest.json`, in place of all files.
const OTHER_FILE: &str = "[{path: other.json, size: 1, sha256: \
    abababababababababababababababababababababababababababababababab}]";
/// Another digest.
const DIGEST: &str = "'sha256:abababababababababababababababababababababababababababababababab'";

/// Refused when the object is new.
pub(crate) const CREATIONS: &[Row] = &[
    version(
        &[("/metadata/name", LONG)],
        "metadata.name must have at most 63 characters",
    ),
    version(
        &[("/spec/fallback", "[tiny-chat]")],
        "fallback names the model itself",
    ),
    version(
        &[("/spec/manifest/files", OTHER_FILE)],
        "files must list weir-manifest.json",
    ),
    version(
        &[("/spec/manifest/references", "unsigned.jsonl")],
        "references must name one of the files",
    ),
    version(
        &[("/spec/manifest/artifact/uri", "'ftp://host/model'")],
        "uri must start with file:, oci://",
    ),
    version(
        &[("/spec/manifest/artifact/secret", "models-s3")],
        "secret belongs to places that files are fetched from",
    ),
    version(
        &[(
            "/spec/manifest/artifact",
            "{uri: 's3://models/tiny/2', secret: weir-authority}",
        )],
        "secret must not begin with weir-",
    ),
    version(
        &[(
            "/spec/rollout",
            "{steps: [{weightPercent: 25, bake: 60s}, {weightPercent: 25, bake: 60s}]}",
        )],
        "weightPercent must rise strictly from step to step",
    ),
    version(
        &[(
            "/spec/rollout",
            "{steps: [{weightPercent: 50, bake: 60s}, {weightPercent: 25, bake: 60s}]}",
        )],
        "weightPercent must rise strictly from step to step",
    ),
    version(
        &[(
            "/spec/rollout",
            "{steps: [{weightPercent: 101, bake: 60s}]}",
        )],
        "spec.rollout.steps[0].weightPercent",
    ),
    version(
        &[("/spec/signature", "{}")],
        "signature needs exactly one of bundle and file",
    ),
    version(
        &[("/spec/signature", "{file: model.sig, bundle: AAAA}")],
        "signature needs exactly one of bundle and file",
    ),
    version(
        &[("/spec/signature", "~")],
        "spec.signature: Required value",
    ),
    version(&[("/spec/stage", "Live")], "Unsupported value: \"Live\""),
    version(&[("/spec/version", "0")], "spec.version"),
    version(
        &[("/spec/modle", "tiny-chat")],
        "field not declared in schema",
    ),
    version(
        &[("/spec/manifest/files/0/sha256", "beef")],
        "spec.manifest.files[0].sha256",
    ),
    version(
        &[("/spec/manifest/files/0/path", "'../../etc/passwd'")],
        "spec.manifest.files[0].path",
    ),
    pool(
        &[(
            "/metadata/name",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        )],
        "metadata.name must have at most 40 lower-case letters",
    ),
    pool(
        &[("/metadata/name", "a.b")],
        "metadata.name must have at most 40 lower-case letters",
    ),
    pool(
        &[("/spec/accelerator", "{type: gpu}")],
        "resourceName belongs to type gpu",
    ),
    pool(
        &[(
            "/spec/accelerator",
            "{type: cpu, resourceName: nvidia.com/gpu}",
        )],
        "resourceName belongs to type gpu",
    ),
    pool(
        &[("/spec/accelerator", "{type: cpu, count: 2}")],
        "count belongs to type gpu",
    ),
    pool(
        &[("/spec/accelerator", "{type: claim}")],
        "claimTemplate belongs to type claim",
    ),
    pool(
        &[("/spec/engine", "{maxBatchTokens: 32, maxRunning: 64}")],
        "maxRunning (64 where absent, 256 on a GPU) must not be greater than maxBatchTokens",
    ),
    pool(
        &[("/spec/engine/blockTokens", "24")],
        "blockTokens must be 8, 16, 32, 64 or 128",
    ),
    pool(
        &[(
            "/spec/promptClasses",
            "[{name: a, maxPromptTokens: 512}, {name: b, maxPromptTokens: 256}]",
        )],
        "maxPromptTokens must rise strictly from class to class",
    ),
    pool(
        &[(
            "/spec/promptClasses",
            "[{name: a}, {name: b, maxPromptTokens: 256}]",
        )],
        "maxPromptTokens must rise strictly from class to class",
    ),
    pool(
        &[("/spec/replicas", "{min: 2, max: 1}")],
        "min must not be greater than max",
    ),
    quota(
        &[("/metadata/name", LONG)],
        "metadata.name must have at most 63 characters",
    ),
    quota(
        &[("/spec/windows", "[{period: 24h}]")],
        "each window needs tokens, costMicros or both",
    ),
    quota(
        &[(
            "/spec/windows",
            "[{period: 24h, tokens: 1}, {period: 1440m, tokens: 2}]",
        )],
        "two windows have the same period",
    ),
    quota(
        &[("/spec/windows", "[{period: 10000h, tokens: 1}]")],
        "period must be from 1s to 8784h",
    ),
    quota(
        &[("/spec/priority", "first")],
        "Unsupported value: \"first\"",
    ),
    quota(
        &[(
            "/spec/keys",
            "[{name: a, secretRef: {name: a, key: a}}, {name: a, secretRef: {name: b, key: b}}]",
        )],
        "duplicate entries for key [name=\"a\"]",
    ),
];

/// Refused when the object exists already.
pub(crate) const UPDATES: &[Row] = &[
    version(&[("/spec/model", "other-chat")], "model cannot change"),
    version(&[("/spec/version", "3")], "version cannot change"),
    version(
        &[("/spec/manifest/files/0/size", "1")],
        "files cannot change",
    ),
    version(
        &[("/spec/manifest/architecture", "MistralForCausalLM")],
        "architecture and precision cannot change",
    ),
    version(
        &[("/spec/manifest/precision", "f32")],
        "architecture and precision cannot change",
    ),
    version(
        &[("/spec/manifest/contextTokens", "4096")],
        "contextTokens and requestSchema cannot change",
    ),
    version(
        &[("/spec/manifest/adapterOf", DIGEST)],
        "adapterOf cannot change",
    ),
    version(
        &[("/spec/manifest/references", "references.jsonl")],
        "references cannot change",
    ),
    version(
        &[("/spec/manifest/sameBehaviourAs", DIGEST)],
        "sameBehaviourAs cannot change",
    ),
    quota(&[("/spec/tenant", "initech")], "tenant cannot change"),
];
