//! What documents say people can write, taken as it stands there.

use serde_json::{Value, json};
use weir_api::Validate as _;
use weir_gateway::Settings;
use weir_manifest::Reference;

/// The blocks of a language in a document.
fn blocks(file: &str, language: &str) -> Vec<String> {
    weir_e2e::documents::blocks(&format!("docs/{file}"), language).unwrap()
}

/// A part of an object's spec, put over a whole one.
fn merged(mut object: Value, part: &str) -> Value {
    let part: Value = serde_yaml::from_str(part).unwrap();
    for (field, value) in part["spec"].as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

#[test]
fn the_settings_in_the_documents_are_settings() {
    let identity = blocks("identity.md", "yaml");
    let settings: Vec<&String> = identity
        .iter()
        .filter(|b| b.starts_with("aliases"))
        .collect();
    assert_eq!(settings.len(), 1);
    Settings::from_yaml(settings[0]).unwrap();
    let safety = blocks("safety.md", "yaml");
    assert_eq!(safety.len(), 1);
    Settings::from_yaml(&safety[0]).unwrap();
}

#[test]
fn the_objects_in_the_documents_are_objects() {
    let quotas = blocks("identity.md", "yaml")
        .into_iter()
        .filter(|b| b.contains("TenantQuota"));
    let bare = json!({"apiVersion": "weir.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "acme"}, "spec": {"tenant": "acme"}});
    for quota in quotas {
        let object: weir_api::TenantQuota = weir_api::parse(&merged(bare.clone(), &quota)).unwrap();
        object.validate().unwrap();
    }
    let bare = json!({"apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": "m-v2"}, "spec": {
        "model": "m", "version": 2, "stage": "Production", "pool": "p", "qualityTier": "standard", "signature": {"file": "m.sig"},
        "manifest": {"artifact": {"uri": "file:m"}, "files": [{"path": "weir-manifest.json", "sha256": "0".repeat(64), "size": 1}],
            "architecture": "LlamaForCausalLM", "precision": "bf16", "contextTokens": 64, "requestSchema": 1},
    }});
    for version in blocks("rollouts.md", "yaml") {
        let object: weir_api::ModelVersion =
            weir_api::parse(&merged(bare.clone(), &version)).unwrap();
        object.validate().unwrap();
    }
    let references = blocks("rollouts.md", "json");
    assert_eq!(Reference::parse(references[0].as_bytes()).unwrap().len(), 4);
}
