//! Weir on a node, installed from `deploy/` as people install it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use weir_e2e::cluster::{Node, image_name};
use weir_e2e::repository;

/// Where everything is; pods there keep to the restricted profile or are refused.
pub(crate) const NAMESPACE: &str = "weir";

pub(crate) fn documents(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(repository().join(path)).unwrap();
    serde_yaml::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect()
}

pub(crate) fn apply(node: &Node, mut object: Value) {
    object["metadata"]["namespace"] = json!(NAMESPACE);
    node.kubectl().apply("people", &object).unwrap();
}

/// The namespace, before anything is in it.
pub(crate) fn namespace(node: &Node) {
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels},
    });
    node.kubectl().apply("people", &object).unwrap();
}

/// The kinds, the policy, accounts, operator and gateway; the claim `models` with a folder.
pub(crate) fn install(node: &Node, models: &Path) {
    node.plane().apply_crds().unwrap();
    let policy = repository().join("deploy/admission.yaml");
    let policy = policy.display().to_string();
    let kubectl = node.kubectl();
    kubectl
        .run(&["apply", "--server-side", "-f", &policy])
        .unwrap();
    namespace(node);
    node.claim(NAMESPACE, "models", models).unwrap();
    for object in documents("deploy/rbac.yaml") {
        apply(node, object);
    }
    for part in ["operator", "gateway"] {
        for mut object in documents(&format!("deploy/{part}.yaml")) {
            if object["kind"] == "Deployment" {
                use_images(
                    &mut object["spec"]["template"]["spec"]["containers"][0],
                    part,
                );
            }
            apply(node, object);
        }
    }
}

/// Pool, trust and tenants of the quickstart, without its rates.
pub(crate) fn quickstart(node: &Node) {
    for file in ["pool", "trust", "tenants"] {
        for mut object in documents(&format!("examples/quickstart/{file}.yaml")) {
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("rates");
            }
            apply(node, object);
        }
    }
}

/// The images that were made here in place of those that a registry would have.
fn use_images(container: &mut Value, part: &str) {
    container["image"] = json!(image_name(part));
    container["imagePullPolicy"] = json!("Never");
    for argument in container["args"].as_array_mut().unwrap() {
        if argument.as_str().unwrap().starts_with("--worker-image=") {
            *argument = json!(format!("--worker-image={}", image_name("worker")));
        }
    }
}

/// Versions 1 to 3 of the project's example model, and version 4: the files of version 2, which says what it must and is signed by nobody. Readable by everybody.
pub(crate) fn models() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let everybody = Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).unwrap();
    for (from, to) in [(1, 1), (2, 2), (3, 3), (2, 4)] {
        let source = repository().join(format!("examples/models/tiny-chat-v{from}"));
        let target = folder.path().join(format!("tiny-chat-v{to}"));
        std::fs::create_dir(&target).unwrap();
        for entry in std::fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            if from == to || entry.file_name() != "model.sig" {
                std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
            }
        }
        let manifest = target.join("weir-manifest.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let (before, after) = (
            format!("\"version\":{from}}}"),
            format!("\"version\":{to}}}"),
        );
        assert!(text.contains(&before), "{text}");
        std::fs::write(&manifest, text.replace(&before, &after)).unwrap();
    }
    folder
}

/// Applies a version of [`models`], to be rolled out as `rollout` says.
pub(crate) fn apply_version(node: &Node, models: &Path, number: u32, rollout: &Value) {
    apply(node, version(models, number, rollout));
}

/// The object of a version of [`models`].
pub(crate) fn version(models: &Path, number: u32, rollout: &Value) -> Value {
    let name = format!("tiny-chat-v{number}");
    let bytes = std::fs::read(models.join(&name).join("weir-manifest.json")).unwrap();
    let signed: Value = serde_json::from_slice(&bytes).unwrap();
    let mut files = signed["files"].as_array().unwrap().clone();
    files.push(json!({
        "path": "weir-manifest.json", "sha256": hex::encode(Sha256::digest(&bytes)), "size": bytes.len(),
    }));
    json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": name}, "spec": {
            "model": "tiny-chat", "version": number, "stage": "Production", "pool": "small",
            "manifest": {
                "artifact": {"uri": format!("pvc://models/{name}")}, "files": files,
                "architecture": signed["architecture"], "precision": signed["precision"],
                "contextTokens": signed["contextTokens"], "requestSchema": signed["requestSchema"],
            },
            "signature": {"file": "model.sig"},
            "rollout": rollout,
        },
    })
}
