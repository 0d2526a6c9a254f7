//! What is wrong with objects, found out once for each state of them: rules are expensive, and a pool is looked at every few seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use weir_api::{FieldProblem, Validate};

/// Proven, or what is wrong with it.
pub type Verdict<T> = Arc<Result<<T as Validate>::Valid, Vec<FieldProblem>>>;

/// The object's UID and resource version.
type State = (Option<String>, Option<String>);

/// Verdicts on objects of one kind, by name.
pub struct Verdicts<T: Validate>(Mutex<BTreeMap<String, (State, Verdict<T>)>>);

impl<T: Validate> Default for Verdicts<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Validate + Resource> Verdicts<T> {
    /// The verdict on an object as it is now.
    pub fn of(&self, object: &T) -> Verdict<T> {
        let state = (object.uid(), object.resource_version());
        let name = object.name_any();
        if let Some((known, verdict)) = self.0.lock().get(&name)
            && *known == state
        {
            return Arc::clone(verdict);
        }
        let verdict = Arc::new(object.validate());
        let kept = (state, Arc::clone(&verdict));
        self.0.lock().insert(name, kept);
        verdict
    }

    /// Of an object that is gone nothing is kept.
    pub fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_api::GpuPool;

    use super::*;

    #[test]
    fn a_verdict_is_made_once_for_each_state_of_an_object() {
        let pool = |version: &str, min: i32| -> GpuPool {
            serde_json::from_value(json!({
                "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool",
                "metadata": {"name": "p", "uid": "u", "resourceVersion": version},
                "spec": {"accelerator": {"type": "cpu"}, "replicas": {"min": min, "max": 4}},
            }))
            .unwrap()
        };
        let verdicts = Verdicts::default();
        let first = verdicts.of(&pool("1", 1));
        assert!(first.is_ok());
        assert!(Arc::ptr_eq(&first, &verdicts.of(&pool("1", 1))));
        assert!(verdicts.of(&pool("2", -1)).is_err());
        assert!(verdicts.of(&pool("3", 2)).is_ok());
        verdicts.forget("p");
        assert!(verdicts.0.lock().is_empty());
    }
}
