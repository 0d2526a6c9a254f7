//! One control plane, or one cluster, for all tests that change nothing but objects in a namespace of their own.

use std::sync::OnceLock;

use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Kubectl, Layer, TEST_LABEL};
use weir_e2e::repository;

/// Where objects may be: a control plane that tests share, or a cluster that exists already.
pub(crate) struct Shared {
    kubectl: Kubectl,
    // It ends with the process.
    _plane: Option<ControlPlane>,
}

impl Shared {
    /// kubectl as an administrator.
    pub(crate) fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }
}

/// The shared one with the kinds installed; `None` where the layer cannot run here.
pub(crate) fn shared(test: &str) -> Option<&'static Shared> {
    static SHARED: OnceLock<Option<Shared>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        if let Some(kubectl) = cluster::existing().unwrap() {
            return Some(Shared {
                kubectl,
                _plane: None,
            });
        }
        let binaries = cluster::layer(Layer::Api, "tests on an API server").unwrap()?;
        let plane = ControlPlane::start(&binaries).unwrap();
        plane.apply_crds().unwrap();
        Some(Shared {
            kubectl: plane.kubectl().clone(),
            _plane: Some(plane),
        })
    });
    if shared.is_none() {
        eprintln!("{test}: SKIPPED");
    }
    shared.as_ref()
}

/// A control plane of the test's own, for tests that stop or restart it.
pub(crate) fn own(test: &str) -> Option<ControlPlane> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    Some(ControlPlane::start(&binaries).unwrap())
}

/// Makes a namespace.
pub(crate) fn namespace(kubectl: &Kubectl, name: &str) {
    let labels = json!({TEST_LABEL: "true"});
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
    });
    kubectl.apply("weir-test", &object).unwrap();
}

/// The first object of a file of the quickstart, in a namespace.
pub(crate) fn example(file: &str, namespace: &str) -> Value {
    let path = repository().join("examples/quickstart").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let first = serde_yaml::Deserializer::from_str(&text).next().unwrap();
    let mut object: Value = serde::Deserialize::deserialize(first).unwrap();
    object["metadata"]["namespace"] = json!(namespace);
    object
}

/// Sets an object's status, as its controller would.
pub(crate) fn set_status(kubectl: &Kubectl, object: &str, namespace: &str, status: &Value) {
    let patch = json!({"status": status});
    let to_status = ["--subresource=status"];
    kubectl
        .merge(object, namespace, &patch, &to_status)
        .unwrap();
}
