//! From a cluster's objects to a snapshot: what pods are workers, what plans are versions.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use serde::Deserialize;
use weir_api::{LABEL_COMPONENT, LABEL_POOL};
use weir_manifest::FileEntry;
use weir_run::Price;

use crate::snapshot::{WorkerAddress, WorkerEndpoint};

/// Where workers take sessions, where their pods do not say it.
const SESSION_PORT: i32 = 7000;

/// What the operator wrote down of a version whose signature it verified.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Served {
    pub(super) model: String,
    pub(super) version: u32,
    pub(super) digest: String,
    pub(super) pool: String,
    pub(super) tier: String,
    pub(super) price: Price,
    pub(super) context_tokens: u32,
    pub(super) fallback: Vec<String>,
    pub(super) dir: PathBuf,
    /// Where the files come from, when they are elsewhere.
    #[serde(default)]
    pub(super) fetch: Option<Elsewhere>,
    /// The file of the artifact with prompts and expected answers.
    #[serde(default)]
    pub(super) references: Option<String>,
}

/// A place that files are fetched from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Elsewhere {
    pub(super) uri: String,
    /// The Secret that says how it is spoken to.
    pub(super) secret: Option<String>,
    pub(super) files: Vec<FileEntry>,
}

/// The version of a plan.
pub(super) fn served(plan: &ConfigMap) -> Option<Served> {
    let text = plan.data.as_ref()?.get("version.json")?;
    match serde_json::from_str(text) {
        Ok(served) => Some(served),
        Err(error) => {
            tracing::error!(plan = plan.name_any(), %error, "a plan cannot be read");
            None
        }
    }
}

/// A worker's endpoint. One that was ready once stays until its pod is over: sessions say best whether it works, and a probe that fails
/// under load must not end them. `ready` remembers those.
pub(super) fn worker(pod: &Pod, ready: &mut BTreeSet<String>) -> Option<WorkerEndpoint> {
    if pod.labels().get(LABEL_COMPONENT).map(String::as_str) != Some("worker") {
        return None;
    }
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    let is_ready =
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if is_ready {
        ready.insert(uid.clone());
    }
    if !ready.contains(&uid) {
        return None;
    }
    let ip = status.pod_ip.as_ref()?;
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some("session"));
    let port = port.map_or(SESSION_PORT, |port| port.container_port);
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.clone()
    };
    Some(WorkerEndpoint {
        name: pod.name_any(),
        pool: pod.labels().get(LABEL_POOL).cloned().unwrap_or_default(),
        address: WorkerAddress::Tcp(format!("{host}:{port}")),
        version: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_worker_is_taken_once_it_was_ready_and_until_its_pod_is_over() {
        let mut ready = BTreeSet::new();
        let mut pod = json!({
            "metadata": {"name": "w", "uid": "u", "labels": {"app.kubernetes.io/component": "worker", "weir.dev/pool": "p"}},
            "spec": {"containers": [{"name": "worker", "ports": [{"name": "session", "containerPort": 7001}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "False"}]},
        });
        let mut seen = |pod: &serde_json::Value| {
            worker(&serde_json::from_value(pod.clone()).unwrap(), &mut ready)
        };
        assert_eq!(seen(&pod), None, "it loads");
        pod["status"]["conditions"][0]["status"] = json!("True");
        let endpoint = seen(&pod).unwrap();
        assert_eq!((endpoint.name.as_str(), endpoint.pool.as_str()), ("w", "p"));
        assert_eq!(
            endpoint.address,
            WorkerAddress::Tcp("10.0.0.9:7001".to_owned())
        );
        pod["status"]["conditions"][0]["status"] = json!("False");
        assert!(seen(&pod).is_some(), "a probe failed");
        pod["status"]["phase"] = json!("Succeeded");
        assert_eq!(seen(&pod), None);
    }
}
