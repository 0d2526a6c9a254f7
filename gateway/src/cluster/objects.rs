//! From a cluster's objects to a snapshot: what pods are workers, what plans are versions.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use serde::Deserialize;
use weir_api::{
    ANNOTATION_DIGEST, ANNOTATION_REPLICAS, LABEL_COMPONENT, LABEL_POOL, LABEL_SHARING,
};
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

/// A version that workers of a shared pool hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seat {
    /// The plan's name.
    plan: String,
    pool: String,
    digest: String,
}

/// The version of a plan that workers of its pool are counted on for, if there are any.
pub(super) fn seat(plan: &ConfigMap) -> Option<Seat> {
    let replicas = plan.annotations().get(ANNOTATION_REPLICAS)?;
    let is_held = replicas.parse::<u32>().is_ok_and(|replicas| replicas > 0);
    let annotation = |name: &str| plan.annotations().get(name).cloned();
    is_held.then_some(())?;
    Some(Seat {
        plan: plan.name_any(),
        pool: plan.labels().get(LABEL_POOL)?.clone(),
        digest: annotation(ANNOTATION_DIGEST)?,
    })
}

/// The endpoints of a worker: one, or one for each version where it holds those of a pool.
pub(super) fn endpoints(pod: &Pod, worker: WorkerEndpoint, seats: &[Seat]) -> Vec<WorkerEndpoint> {
    if !pod.labels().contains_key(LABEL_SHARING) {
        return vec![worker];
    }
    let of_pool = seats.iter().filter(|seat| seat.pool == worker.pool);
    let endpoint = |seat: &Seat| WorkerEndpoint {
        name: format!("{}/{}", worker.name, seat.plan),
        version: Some(seat.digest.clone()),
        ..worker.clone()
    };
    of_pool.map(endpoint).collect()
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
    fn a_worker_of_a_shared_pool_has_a_session_for_each_version_that_it_is_counted_on_for() {
        let plan = |name: &str, pool: &str, replicas: Option<&str>| -> ConfigMap {
            let mut plan = json!({"metadata": {"name": name, "labels": {"weir.dev/pool": pool}, "annotations": {"weir.dev/digest": format!("sha256:{name}")}}});
            if let Some(replicas) = replicas {
                plan["metadata"]["annotations"]["weir.dev/replicas"] = json!(replicas);
            }
            serde_json::from_value(plan).unwrap()
        };
        let plans = [
            plan("a", "p", Some("2")),
            plan("b", "p", Some("0")),
            plan("c", "other", Some("1")),
            plan("d", "p", None),
            plan("e", "p", Some("1")),
        ];
        let seats: Vec<Seat> = plans.iter().filter_map(seat).collect();
        let mut pod = json!({
            "metadata": {"name": "w", "uid": "u", "labels": {"app.kubernetes.io/component": "worker", "weir.dev/pool": "p"}},
            "status": {"podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let names = |pod: &serde_json::Value| -> Vec<(String, Option<String>)> {
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            let worker = worker(&pod, &mut BTreeSet::new()).unwrap();
            let all = endpoints(&pod, worker, &seats).into_iter();
            all.map(|one| (one.name, one.version)).collect()
        };
        assert_eq!(names(&pod), [("w".to_owned(), None)], "a version's own");
        pod["metadata"]["labels"]["weir.dev/sharing"] = json!("Shared");
        let of = |name: &str| (format!("w/{name}"), Some(format!("sha256:{name}")));
        assert_eq!(names(&pod), [of("a"), of("e")]);
    }

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
