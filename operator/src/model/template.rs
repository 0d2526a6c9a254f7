//! What a pool may change of its workers' pods: a list of what is allowed, since everything else could undo what keeps tenants apart.

use serde_json::{Map, Value};

/// The container that a template may change.
pub const WORKER: &str = "worker";

/// Fields of a pod's spec that a pool may set.
const POD: &[&str] = &[
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
    "volumes",
    "containers",
];
/// Fields of the worker's container that a pool may set.
const CONTAINER: &[&str] = &[
    "name",
    "image",
    "imagePullPolicy",
    "resources",
    "env",
    "volumeMounts",
];
/// Kinds of volumes that the restricted profile allows.
const VOLUMES: &[&str] = &[
    "name",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What a template asks for and may not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.podTemplate.{0} may not be set: {1}")]
pub struct Refused(pub String, pub &'static str);

/// The operator's template with the pool's fields over it.
///
/// # Errors
/// The first field that may not be set.
pub fn merge(mut own: Value, theirs: &Map<String, Value>) -> Result<Value, Refused> {
    check(theirs)?;
    over(&mut own, &Value::Object(theirs.clone()));
    Ok(own)
}

fn check(theirs: &Map<String, Value>) -> Result<(), Refused> {
    only(theirs, &["metadata", "spec"], "")?;
    if let Some(Value::Object(metadata)) = theirs.get("metadata") {
        only(metadata, &["labels", "annotations"], "metadata.")?;
        for (field, value) in metadata {
            let keys = value.as_object().into_iter().flat_map(Map::keys);
            if let Some(key) = keys
                .into_iter()
                .find(|key| key.contains("weir.dev/") || key.starts_with("app.kubernetes.io/"))
            {
                let why = "the operator finds its workers by it";
                return Err(Refused(format!("metadata.{field}[{key:?}]"), why));
            }
        }
    }
    let Some(Value::Object(spec)) = theirs.get("spec") else {
        return Ok(());
    };
    only(spec, POD, "spec.")?;
    for container in list(spec, "containers") {
        if container["name"] != WORKER {
            let why = "the only container that can be changed is \"worker\"";
            return Err(Refused("spec.containers".to_owned(), why));
        }
        only(fields(container), CONTAINER, "spec.containers[worker].")?;
    }
    for volume in list(spec, "volumes") {
        only(fields(volume), VOLUMES, "spec.volumes[].")?;
    }
    Ok(())
}

fn list<'a>(of: &'a Map<String, Value>, field: &str) -> impl Iterator<Item = &'a Value> {
    of.get(field)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn fields(value: &Value) -> &Map<String, Value> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.as_object().unwrap_or(&NONE)
}

fn only(of: &Map<String, Value>, allowed: &[&str], place: &str) -> Result<(), Refused> {
    match of.keys().find(|key| !allowed.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let why = "it is not among the fields that keep a worker within the restricted profile";
            Err(Refused(format!("{place}{key}"), why))
        }
    }
}

/// Objects are merged, lists of named things by name, everything else is replaced.
fn over(own: &mut Value, theirs: &Value) {
    match (own, theirs) {
        (Value::Object(own), Value::Object(theirs)) => {
            for (key, value) in theirs {
                match own.get_mut(key) {
                    Some(mine) => over(mine, value),
                    None => drop(own.insert(key.clone(), value.clone())),
                }
            }
        }
        (Value::Array(own), Value::Array(theirs)) => {
            for value in theirs {
                let name = value.get("name");
                match own
                    .iter_mut()
                    .find(|mine| name.is_some() && mine.get("name") == name)
                {
                    Some(mine) => over(mine, value),
                    None => own.push(value.clone()),
                }
            }
        }
        (own, theirs) => *own = theirs.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own() -> Value {
        json!({
            "metadata": {"labels": {"weir.dev/model": "m"}},
            "spec": {
                "securityContext": {"runAsNonRoot": true},
                "containers": [{"name": "worker", "image": "a", "env": [{"name": "A", "value": "1"}]}],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        })
    }

    #[test]
    fn what_a_pool_may_change_lies_over_what_the_operator_says() {
        let theirs = json!({
            "metadata": {"labels": {"team": "search"}},
            "spec": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "containers": [{"name": "worker", "image": "b", "env": [{"name": "B", "value": "2"}]}],
                "volumes": [{"name": "cache", "emptyDir": {}}],
            },
        });
        let merged = merge(own(), theirs.as_object().unwrap()).unwrap();
        let spec = &merged["spec"];
        assert_eq!(
            merged["metadata"]["labels"],
            json!({"weir.dev/model": "m", "team": "search"})
        );
        assert_eq!(spec["containers"][0]["image"], "b");
        assert_eq!(spec["containers"][0]["env"].as_array().unwrap().len(), 2);
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 2);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    }

    #[test]
    fn what_would_undo_the_restricted_profile_is_refused_by_name() {
        for (theirs, place) in [
            (json!({"spec": {"hostNetwork": true}}), "spec.hostNetwork"),
            (
                json!({"spec": {"serviceAccountName": "weir-operator"}}),
                "spec.serviceAccountName",
            ),
            (
                json!({"spec": {"securityContext": {"runAsUser": 0}}}),
                "spec.securityContext",
            ),
            (
                json!({"spec": {"initContainers": []}}),
                "spec.initContainers",
            ),
            (
                json!({"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}),
                "spec.volumes[].hostPath",
            ),
            (
                json!({"spec": {"containers": [{"name": "other"}]}}),
                "spec.containers",
            ),
            (
                json!({"spec": {"containers": [{"name": "worker", "securityContext": {"privileged": true}}]}}),
                "spec.containers[worker].securityContext",
            ),
            (
                json!({"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}),
                "spec.containers[worker].command",
            ),
            (
                json!({"metadata": {"labels": {"weir.dev/model": "x"}}}),
                "metadata.labels[\"weir.dev/model\"]",
            ),
            (json!({"metadata": {"name": "x"}}), "metadata.name"),
        ] {
            let refused = merge(own(), theirs.as_object().unwrap()).unwrap_err();
            assert_eq!(refused.0, place);
        }
    }
}
