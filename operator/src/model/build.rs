//! Every child of a version, from proven objects: a pure translation.

mod artifact;

use serde_json::{Map, Value, json};
use weir_api::{Accelerator, SignatureSource, ValidGpuPool, ValidModelVersion};
use weir_manifest::{TrustPolicySpec, VersionClaim};
use weir_rollout::VersionId;

pub use self::artifact::CACHE;
use self::artifact::{artifact, fetch, is_pods_own};
use super::template::{self, Refused};
use crate::authority;
use crate::names;

/// Where workers take sessions.
pub const SESSION_PORT: u16 = 7000;
/// Where workers serve probes and metrics.
pub const ADMIN_PORT: u16 = 9090;
/// Where a worker finds what it is to load.
const PLAN_FOLDER: &str = "/etc/weir";
/// Where it finds what it proves itself with.
const IDENTITY_FOLDER: &str = "/etc/weir-identity";
/// Beyond the drain: time to flush frames and end.
const AFTER_DRAIN_S: u64 = 10;
/// Memory of a worker beside weights and KV: tokenizer, masks, activations.
const OTHER_MEMORY: u64 = 256 << 20;

/// What all children of an operator share.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The namespace.
    pub namespace: String,
    /// Image of the worker.
    pub worker_image: String,
    /// Where volumes with artifacts are mounted, in workers as in gateways and operator.
    pub artifacts: String,
    /// The folder of every node that fetched artifacts are kept in, where there is one.
    pub node_cache: Option<String>,
    /// How long a worker may take to finish its runs.
    pub drain_s: u64,
    /// Whether gateways and workers prove themselves to each other.
    pub is_mutual: bool,
}

/// A version whose signature holds.
#[derive(Clone, Debug)]
pub struct Signed<'a> {
    /// The object.
    pub version: &'a ValidModelVersion,
    /// Its number and digest.
    pub id: &'a VersionId,
    /// What the object says of the artifact.
    pub claim: &'a VersionClaim,
    /// Who may sign, for the worker's own check.
    pub trust: &'a TrustPolicySpec,
}

/// All children of a version. A new one must be given its place in `apply`, which takes this apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// What to load, and what gateways need to know of the version.
    pub plan: Value,
    /// Who may talk to its workers.
    pub policy: Value,
    /// A name for its workers.
    pub service: Value,
    /// How many of its workers maintenance may take away at once.
    pub disruption: Value,
    /// Its workers, but for their number.
    pub deployment: Value,
}

/// Builds them.
///
/// # Errors
/// The pool's template asks for what the restricted profile or this operator does not allow.
pub fn children(
    shape: &Shape,
    signed: &Signed<'_>,
    pool: &ValidGpuPool,
) -> Result<Children, Refused> {
    let meta = Meta {
        shape,
        signed,
        pool,
    };
    Ok(Children {
        plan: plan(&meta),
        policy: policy(&meta),
        service: service(&meta),
        disruption: disruption(&meta),
        deployment: deployment(&meta)?,
    })
}

struct Meta<'a> {
    shape: &'a Shape,
    signed: &'a Signed<'a>,
    pool: &'a ValidGpuPool,
}

impl Meta<'_> {
    fn model(&self) -> &str {
        &self.signed.version.model
    }

    fn name(&self) -> String {
        names::child(self.model(), self.signed.id)
    }

    fn metadata(&self) -> Value {
        json!({
            "name": self.name(),
            "namespace": self.shape.namespace,
            "labels": names::labels(self.model(), self.signed.id, &self.pool.name),
            "annotations": names::annotations(self.model(), self.signed.id),
        })
    }

    fn selector(&self) -> Value {
        json!({"matchLabels": names::selector(self.model(), self.signed.id)})
    }
}

/// `plan.json` is what the worker loads; `version.json` is what a gateway serves, should the object be gone or edited.
fn plan(meta: &Meta<'_>) -> Value {
    let Signed {
        version,
        id,
        claim,
        trust,
    } = meta.signed;
    let manifest = &version.manifest;
    let dir = manifest.mounted_path(&meta.shape.artifacts);
    let dir = dir.unwrap_or_default();
    let signature = match &version.signature {
        SignatureSource::Bundle(text) => json!({"bundle": text}),
        SignatureSource::File(name) => json!({"file": name}),
    };
    let mut plan = json!({
        "dir": dir, "digest": id.digest, "claim": claim, "signature": signature, "trust": trust,
    });
    let mut served = json!({
        "model": version.model,
        "version": version.version,
        "digest": id.digest,
        "pool": version.pool,
        "tier": version.quality_tier,
        "price": {
            "promptMicrosPerToken": version.price.prompt_micros,
            "cachedMicrosPerToken": version.price.cached_micros,
            "outputMicrosPerToken": version.price.output_micros,
        },
        "contextTokens": manifest.context_tokens,
        "fallback": version.fallback,
        "dir": dir,
        "files": claim.files,
        "references": manifest.references,
    });
    if manifest.is_remote() {
        plan["fetch"] = fetch(meta);
        let secret = &manifest.artifact_secret;
        served["fetch"] =
            json!({"uri": manifest.artifact_uri, "secret": secret, "files": claim.files});
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta.metadata(),
        "data": {"plan.json": plan.to_string(), "version.json": served.to_string()},
    })
}

/// Sessions come from gateways, questions on the admin port from within the namespace; a worker itself asks nobody, but for the place that
/// its files come from, which no policy can name: it may be anywhere.
fn policy(meta: &Meta<'_>) -> Value {
    let gateways =
        json!({"podSelector": {"matchLabels": {weir_api::LABEL_COMPONENT: names::GATEWAY}}});
    let mut policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta.metadata(),
        "spec": {
            "podSelector": meta.selector(),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [gateways], "ports": [{"protocol": "TCP", "port": "session"}]},
                {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": "admin"}]},
            ],
        },
    });
    if meta.signed.version.manifest.is_remote() {
        policy["spec"]["egress"] = json!([{}]);
    }
    policy
}

fn service(meta: &Meta<'_>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": meta.metadata(),
        "spec": {
            "type": "ClusterIP",
            // Gateways choose the worker themselves.
            "clusterIP": "None",
            "selector": names::selector(meta.model(), meta.signed.id),
            "ports": [
                {"name": "session", "protocol": "TCP", "port": SESSION_PORT, "targetPort": "session"},
                {"name": "admin", "protocol": "TCP", "port": ADMIN_PORT, "targetPort": "admin"},
            ],
        },
    })
}

fn disruption(meta: &Meta<'_>) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta.metadata(),
        "spec": {
            // One at a time: with a single replica nothing else would ever let its node be drained.
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": meta.selector(),
        },
    })
}

fn deployment(meta: &Meta<'_>) -> Result<Value, Refused> {
    let own = json!({
        "metadata": {
            "labels": names::labels(meta.model(), meta.signed.id, &meta.pool.name),
            "annotations": names::annotations(meta.model(), meta.signed.id),
        },
        "spec": pod(meta),
    });
    let empty = Map::new();
    let theirs = meta.pool.pod_template.as_ref().unwrap_or(&empty);
    Ok(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta.metadata(),
        "spec": {
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 600,
            // Engine limits that change must not take a serving replica before its successor serves.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": meta.selector(),
            "template": template::merge(own, theirs)?,
        },
    }))
}

fn pod(meta: &Meta<'_>) -> Value {
    let pool = meta.pool;
    let mut volumes = vec![
        json!({"name": "plan", "configMap": {"name": meta.name()}}),
        json!({"name": "tmp", "emptyDir": {}}),
    ];
    let mut mounts = vec![
        json!({"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": true}),
        json!({"name": "tmp", "mountPath": "/tmp"}),
    ];
    if meta.shape.is_mutual {
        // By item: the pod waits for the certificate, should it not be issued yet.
        let items = ["tls.crt", "tls.key", "ca.crt"].map(|key| json!({"key": key, "path": key}));
        volumes.push(json!({
            "name": "identity",
            "secret": {"secretName": authority::WORKERS, "defaultMode": 0o440, "items": items},
        }));
        mounts.push(json!({"name": "identity", "mountPath": IDENTITY_FOLDER, "readOnly": true}));
    }
    artifact(meta, &mut volumes, &mut mounts);
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": meta.shape.drain_s + AFTER_DRAIN_S,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(meta, &mounts)],
        "volumes": volumes,
    });
    if !pool.node_selector.is_empty() {
        spec["nodeSelector"] = json!(pool.node_selector);
    }
    if let Accelerator::Claim { template } = &pool.accelerator {
        spec["resourceClaims"] =
            json!([{"name": "accelerator", "resourceClaimTemplateName": template}]);
    }
    spec
}

fn container(meta: &Meta<'_>, mounts: &[Value]) -> Value {
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": {"path": path, "port": "admin"},
            // The usual second is less than a busy node may need to give a worker its turn.
            "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
        })
    };
    json!({
        "name": template::WORKER,
        "image": meta.shape.worker_image,
        "args": arguments(meta),
        "env": environment(meta.pool),
        "ports": [
            {"name": "session", "containerPort": SESSION_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        // Weights are read, hashed and mapped before a worker answers: half an hour for the largest.
        "startupProbe": probe("/healthz", 2, 900),
        "livenessProbe": probe("/healthz", 10, 6),
        "readinessProbe": probe("/readyz", 2, 2),
        "resources": resources(meta),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    })
}

/// What the pool's template may replace by name.
fn environment(pool: &ValidGpuPool) -> Value {
    let mut all = vec![
        json!({"name": "WEIR_WORKER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    ];
    if pool.accelerator != Accelerator::Cpu {
        // By itself a worker takes the processor, and one that was given a GPU would leave it idle.
        all.push(json!({"name": "WEIR_DEVICE", "value": "cuda"}));
    }
    json!(all)
}

fn arguments(meta: &Meta<'_>) -> Vec<String> {
    let engine = &meta.pool.engine;
    let options = [
        ("load-plan", format!("{PLAN_FOLDER}/plan.json")),
        ("listen", format!("tcp:0.0.0.0:{SESSION_PORT}")),
        ("admin", format!("0.0.0.0:{ADMIN_PORT}")),
        ("max-running", engine.max_running.to_string()),
        ("max-batch-tokens", engine.max_batch_tokens.to_string()),
        ("block-tokens", engine.block_tokens.to_string()),
        ("kv-dtype", engine.kv_dtype.as_str().to_owned()),
        ("weights", engine.weights.as_str().to_owned()),
        ("drain-s", meta.shape.drain_s.to_string()),
        ("log-format", "json".to_owned()),
    ];
    let kv_bytes = engine.kv_bytes.map(|bytes| ("kv-bytes", bytes.to_string()));
    let callers = if meta.shape.is_mutual {
        format!("--workload-identity={IDENTITY_FOLDER}")
    } else {
        // NetworkPolicies keep others away.
        "--plain-sessions".to_owned()
    };
    let drafts = engine.draft_tokens;
    options
        .into_iter()
        .chain(kv_bytes)
        .chain(drafts.map(|tokens| ("draft-tokens", tokens.to_string())))
        .map(|(name, value)| format!("--{name}={value}"))
        .chain([callers])
        .collect()
}

fn resources(meta: &Meta<'_>) -> Value {
    let pool = meta.pool;
    let files: u64 = meta.signed.claim.files.iter().map(|file| file.size).sum();
    let kv_bytes = match pool.accelerator {
        Accelerator::Cpu => pool.engine.kv_bytes.unwrap_or(0),
        // Those are in its own memory.
        Accelerator::Gpu { .. } | Accelerator::Claim { .. } => 0,
    };
    let memory = files + kv_bytes + OTHER_MEMORY;
    let mut resources = json!({"requests": {"memory": mebibytes(memory), "cpu": "100m"}});
    if is_pods_own(meta) {
        // What a pod fetches for itself takes room of the node.
        resources["requests"]["ephemeral-storage"] = json!(mebibytes(files));
    }
    match &pool.accelerator {
        Accelerator::Cpu => {}
        Accelerator::Gpu {
            resource_name,
            count,
        } => {
            resources["limits"] = json!({resource_name: count.to_string()});
        }
        Accelerator::Claim { .. } => resources["claims"] = json!([{"name": "accelerator"}]),
    }
    resources
}

/// As the API server writes it, so that what is read back is what was sent.
fn mebibytes(bytes: u64) -> String {
    let mebi = bytes.div_ceil(1 << 20);
    if mebi.is_multiple_of(1024) {
        format!("{}Gi", mebi / 1024)
    } else {
        format!("{mebi}Mi")
    }
}

#[cfg(test)]
mod tests;
