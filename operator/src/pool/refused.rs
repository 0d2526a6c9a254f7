//! Workers that the API server does not let come into being: a quota, a limit range or the namespace's pod security is in the way.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use weir_api::LABEL_POOL;

/// What the API server says to a pool's Deployments that get no pods, each once; `None` where all do.
pub(super) fn refusals<'a>(
    deployments: impl Iterator<Item = &'a Deployment>,
    pool: &str,
) -> Option<String> {
    let of_pool =
        deployments.filter(|one| one.labels().get(LABEL_POOL).is_some_and(|of| of == pool));
    let mut said: Vec<String> = of_pool
        .filter_map(|deployment| {
            let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
            let failure = conditions
                .iter()
                .find(|one| one.type_ == "ReplicaFailure" && one.status == "True")?;
            let why = words(failure.message.as_deref().unwrap_or_default());
            Some(format!("{}: {why}", deployment.name_any()))
        })
        .collect();
    said.sort();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Without the pod's name: it is made up anew for each attempt, and would be news every time.
fn words(message: &str) -> &str {
    let named = message.split_once("\" is forbidden: ");
    named.map_or(message, |(_, why)| why)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use weir_api::gpu_pool::{conditions, reasons};
    use weir_api::{CONDITION_READY, GpuPool, Validate as _};

    use super::super::measure::Measured;
    use super::super::status::{Facts, Pods, status};
    use super::*;

    fn deployment(name: &str, pool: &str, kind: &str, message: &str) -> Deployment {
        let condition = json!({"type": kind, "status": "True", "message": message});
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {LABEL_POOL: pool}},
            "status": {"conditions": [condition]},
        }))
        .unwrap()
    }

    #[test]
    fn what_the_api_server_says_to_workers_is_told_without_what_changes_with_each_attempt() {
        let quota = |pod: &str| {
            format!(
                "pods \"{pod}\" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1"
            )
        };
        let said = |pod: &str| {
            let all = [
                deployment("b", "p", "ReplicaFailure", "no such class"),
                deployment("a", "p", "ReplicaFailure", &quota(pod)),
                deployment("c", "other", "ReplicaFailure", "not of this pool"),
                deployment("d", "p", "Available", "all is well"),
            ];
            refusals(all.iter(), "p")
        };
        let want = "a: exceeded quota: gpus, requested: nvidia.com/gpu=1; b: no such class";
        assert_eq!(said("a-5d8f-x2x7q").as_deref(), Some(want));
        assert_eq!(said("a-5d8f-x2x7q"), said("a-5d8f-77z4k"));
        assert_eq!(refusals([].iter(), "p"), None);
    }

    #[test]
    fn a_pool_whose_workers_are_refused_is_not_idle_and_says_why() {
        let object: GpuPool = serde_json::from_value(json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "p"},
            "spec": {
                "accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 1},
                "queue": {"maxDepth": 8, "maxWait": "1s"},
            },
        }))
        .unwrap();
        let valid = object.validate();
        let facts = |forbidden: Option<&str>| Facts {
            object: &object,
            valid: valid.as_ref().map_err(Vec::as_slice),
            refused: None,
            forbidden: forbidden.map(str::to_owned),
            pods: Pods::default(),
            measured: Measured::default(),
            models: Vec::new(),
            orphans: Vec::new(),
            waiting: Vec::new(),
            apart: None,
        };
        let told = |forbidden, kind: &str| {
            let status = status(&facts(forbidden), Timestamp::UNIX_EPOCH);
            let mut all = status.conditions.into_iter();
            let found = all.find(|one| one.type_ == kind).unwrap();
            (found.status, found.reason, found.message)
        };
        let words = "a: exceeded quota: gpus".to_owned();
        let refused = (
            "False".to_owned(),
            reasons::WORKERS_REFUSED.to_owned(),
            words.clone(),
        );
        for kind in [conditions::CAPACITY_AVAILABLE, CONDITION_READY] {
            assert_eq!(told(Some(words.as_str()), kind), refused);
        }
        assert_eq!(told(None, CONDITION_READY).1, reasons::IDLE);
    }
}
