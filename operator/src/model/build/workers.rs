//! Workers and what goes with them: those of one version, or those of a shared pool, which hold several.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use weir_api::{Accelerator, ValidGpuPool};

use super::artifact::{artifact, artifacts, is_pods_own};
use super::{Meta, Shape, Workers};
use crate::authority;
use crate::model::template::{self, Refused};
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
/// How long a worker serves before the one it replaces is told to go: what gateways need to open sessions with it.
const BEFORE_NEXT_S: u64 = 3;
/// Memory of a worker beside weights and KV: tokenizer, masks, activations.
const OTHER_MEMORY: u64 = 256 << 20;

/// Workers that are alike.
pub(super) struct Group<'a> {
    pub(super) shape: &'a Shape,
    pub(super) pool: &'a ValidGpuPool,
    pub(super) name: String,
    pub(super) labels: BTreeMap<&'static str, String>,
    pub(super) annotations: BTreeMap<&'static str, String>,
    pub(super) selector: BTreeMap<&'static str, String>,
    /// The version that they are of; those of a shared pool are of none.
    pub(super) one: Option<&'a Meta<'a>>,
    /// Claims that the artifacts of several versions lie in.
    pub(super) claims: Vec<String>,
    /// How many versions they hold at the least.
    pub(super) held: u32,
}

impl Group<'_> {
    fn metadata(&self) -> Value {
        json!({
            "name": self.name,
            "namespace": self.shape.namespace,
            "labels": self.labels,
            "annotations": self.annotations,
        })
    }

    fn selector(&self) -> Value {
        json!({"matchLabels": self.selector})
    }

    /// Most versions that one holds: a pool that has fewer places than before has those that are taken.
    fn most(&self) -> u32 {
        let several = self.pool.max_versions.max(self.held);
        self.one.map_or(several, |_| 1)
    }
}

/// Builds all of it.
///
/// # Errors
/// See [`Refused`].
pub(super) fn group(of: &Group<'_>) -> Result<Workers, Refused> {
    Ok(Workers {
        policy: policy(of),
        service: service(of),
        disruption: disruption(of),
        deployment: deployment(of)?,
    })
}

/// Sessions come from gateways, questions on the admin port from within the namespace; a worker itself asks nobody, but for the place that
/// its files come from, which no policy can name: it may be anywhere.
fn policy(of: &Group<'_>) -> Value {
    let gateways =
        json!({"podSelector": {"matchLabels": {weir_api::LABEL_COMPONENT: names::GATEWAY}}});
    let mut policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": of.metadata(),
        "spec": {
            "podSelector": of.selector(),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [gateways], "ports": [{"protocol": "TCP", "port": "session"}]},
                {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": "admin"}]},
            ],
        },
    });
    if of
        .one
        .is_some_and(|one| one.signed.version.manifest.is_remote())
    {
        policy["spec"]["egress"] = json!([{}]);
    }
    policy
}

fn service(of: &Group<'_>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": of.metadata(),
        "spec": {
            "type": "ClusterIP",
            // Gateways choose the worker themselves.
            "clusterIP": "None",
            "selector": of.selector,
            "ports": [
                {"name": "session", "protocol": "TCP", "port": SESSION_PORT, "targetPort": "session"},
                {"name": "admin", "protocol": "TCP", "port": ADMIN_PORT, "targetPort": "admin"},
            ],
        },
    })
}

fn disruption(of: &Group<'_>) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": of.metadata(),
        "spec": {
            // One at a time: with a single replica nothing else would ever let its node be drained.
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": of.selector(),
        },
    })
}

fn deployment(of: &Group<'_>) -> Result<Value, Refused> {
    let own = json!({
        "metadata": {
            "labels": of.labels,
            "annotations": of.annotations,
        },
        "spec": pod(of),
    });
    let empty = Map::new();
    let theirs = of.pool.pod_template.as_ref().unwrap_or(&empty);
    Ok(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": of.metadata(),
        "spec": {
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 600,
            "minReadySeconds": BEFORE_NEXT_S,
            // Engine limits that change must not take a serving replica before its successor serves.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": of.selector(),
            "template": template::merge(own, theirs)?,
        },
    }))
}

fn pod(of: &Group<'_>) -> Value {
    let pool = of.pool;
    let mut volumes = vec![
        json!({"name": "plan", "configMap": {"name": of.name}}),
        json!({"name": "tmp", "emptyDir": {}}),
    ];
    let mut mounts = vec![
        json!({"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": true}),
        json!({"name": "tmp", "mountPath": "/tmp"}),
    ];
    if of.shape.is_mutual {
        // By item: the pod waits for the certificate, should it not be issued yet.
        let items = ["tls.crt", "tls.key", "ca.crt"].map(|key| json!({"key": key, "path": key}));
        volumes.push(json!({
            "name": "identity",
            "secret": {"secretName": authority::WORKERS, "defaultMode": 0o440, "items": items},
        }));
        mounts.push(json!({"name": "identity", "mountPath": IDENTITY_FOLDER, "readOnly": true}));
    }
    match of.one {
        Some(one) => artifact(one, &mut volumes, &mut mounts),
        None => artifacts(of, &mut volumes, &mut mounts),
    }
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": of.shape.drain_s + AFTER_DRAIN_S,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(of, &mounts)],
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

fn container(of: &Group<'_>, mounts: &[Value]) -> Value {
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": {"path": path, "port": "admin"},
            // The usual second is less than a busy node may need to give a worker its turn.
            "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
        })
    };
    json!({
        "name": template::WORKER,
        "image": of.shape.worker_image,
        "args": arguments(of),
        "env": environment(of.pool),
        "ports": [
            {"name": "session", "containerPort": SESSION_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        // Weights are read, hashed and mapped before a worker answers: half an hour for the largest.
        "startupProbe": probe("/healthz", 2, 900),
        "livenessProbe": probe("/healthz", 10, 6),
        "readinessProbe": probe("/readyz", 2, 2),
        "resources": resources(of),
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

fn arguments(of: &Group<'_>) -> Vec<String> {
    let engine = &of.pool.engine;
    let options = [
        match of.one {
            Some(_) => ("load-plan", format!("{PLAN_FOLDER}/plan.json")),
            None => ("versions", PLAN_FOLDER.to_owned()),
        },
        ("listen", format!("tcp:0.0.0.0:{SESSION_PORT}")),
        ("admin", format!("0.0.0.0:{ADMIN_PORT}")),
        ("max-running", engine.max_running.to_string()),
        ("max-batch-tokens", engine.max_batch_tokens.to_string()),
        ("block-tokens", engine.block_tokens.to_string()),
        ("kv-dtype", engine.kv_dtype.as_str().to_owned()),
        ("weights", engine.weights.as_str().to_owned()),
        ("drain-s", of.shape.drain_s.to_string()),
        ("log-format", "json".to_owned()),
    ];
    let kv_bytes = engine.kv_bytes.map(|bytes| ("kv-bytes", bytes.to_string()));
    let callers = if of.shape.is_mutual {
        format!("--workload-identity={IDENTITY_FOLDER}")
    } else {
        // NetworkPolicies keep others away.
        "--plain-sessions".to_owned()
    };
    let drafts = engine.draft_tokens;
    let most = of.one.is_none().then(|| of.most());
    options
        .into_iter()
        .chain(most.map(|most| ("max-versions", most.to_string())))
        .chain(kv_bytes)
        .chain(drafts.map(|tokens| ("draft-tokens", tokens.to_string())))
        .map(|(name, value)| format!("--{name}={value}"))
        .chain([callers])
        .collect()
}

fn resources(of: &Group<'_>) -> Value {
    let pool = of.pool;
    // What versions that come and go take is for the pool's template to say: workers do not start anew for one.
    let files: u64 = of.one.map_or(0, |one| {
        one.signed.claim.files.iter().map(|file| file.size).sum()
    });
    let kv_bytes = match pool.accelerator {
        Accelerator::Cpu => pool.engine.kv_bytes.unwrap_or(0),
        // Those are in its own memory.
        Accelerator::Gpu { .. } | Accelerator::Claim { .. } => 0,
    };
    let memory = files + kv_bytes + u64::from(of.most()) * OTHER_MEMORY;
    let mut resources = json!({"requests": {"memory": mebibytes(memory), "cpu": "100m"}});
    if of.one.is_some_and(is_pods_own) {
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
