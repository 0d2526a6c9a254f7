//! One control plane for all tests that change nothing but objects in a namespace of their own.

use std::sync::OnceLock;

use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Kubectl, Layer};
use weir_e2e::repository;

/// The shared control plane with the kinds installed; `None` where the layer cannot run here.
pub(crate) fn shared(test: &str) -> Option<&'static ControlPlane> {
    static PLANE: OnceLock<Option<ControlPlane>> = OnceLock::new();
    let plane = PLANE.get_or_init(|| {
        let binaries = cluster::layer(Layer::Api, "tests on an API server").unwrap()?;
        let plane = ControlPlane::start(&binaries).unwrap();
        plane.apply_crds().unwrap();
        Some(plane)
    });
    if plane.is_none() {
        eprintln!("{test}: SKIPPED");
    }
    plane.as_ref()
}

/// A control plane of the test's own, for tests that stop or restart it.
pub(crate) fn own(test: &str) -> Option<ControlPlane> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    Some(ControlPlane::start(&binaries).unwrap())
}

/// Makes a namespace.
pub(crate) fn namespace(kubectl: &Kubectl, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
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
    let patch = json!({"status": status}).to_string();
    let arguments = [
        "patch",
        object,
        "-n",
        namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    kubectl.run(&[&arguments[..], &[&patch]].concat()).unwrap();
}
