use serde_json::json;

use super::*;

fn raw(value: Value) -> RawObject {
    RawObject {
        file: "a.yaml".into(),
        line: 1,
        value,
    }
}

fn pool(name: &str) -> RawObject {
    raw(
        json!({"apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": name},
        "spec": {"accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 1}}}),
    )
}

fn version(change: impl Fn(&mut Value)) -> RawObject {
    let mut value = json!({"apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": "m-v1"}, "spec": {
        "model": "m", "version": 1, "pool": "small", "stage": "Production", "signature": {"file": "model.sig"},
        "manifest": {"artifact": {"uri": "file:m"}, "architecture": "LlamaForCausalLM", "precision": "bf16",
            "contextTokens": 2048, "requestSchema": 1,
            "files": [{"path": "weir-manifest.json", "sha256": "00".repeat(32), "size": 1}]}}});
    change(&mut value);
    raw(value)
}

fn quota() -> RawObject {
    raw(
        json!({"apiVersion": "weir.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "acme"}, "spec": {
        "tenant": "acme", "models": [{"name": "m"}],
        "keys": [{"name": "ci", "secretRef": {"name": "keys", "key": "ci"}}]}}),
    )
}

fn secret() -> RawObject {
    raw(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
        "data": {"ci": "aGFzaA=="}, "stringData": {"plain": "text"}}),
    )
}

fn update(catalog: &mut Catalog, written: &[RawObject]) -> Vec<String> {
    catalog
        .update(written.iter(), Timestamp::UNIX_EPOCH)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn good_objects_come_into_force_without_a_word() {
    let mut catalog = Catalog::default();
    assert_eq!(
        update(
            &mut catalog,
            &[pool("small"), version(|_| {}), quota(), secret()]
        ),
        Vec::<String>::new()
    );
    assert_eq!(catalog.key_hash("keys", "ci"), Some("hash"));
    assert_eq!(catalog.key_hash("keys", "plain"), Some("text"));
    assert_eq!(catalog.versions["m-v1"].generation, 1);
}

#[test]
fn a_bad_change_leaves_the_last_good_form_in_force() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &str); 6] = [
        (
            "misspelt field",
            |v| v["spec"]["qualityTeir"] = json!("x"),
            "qualityTeir",
        ),
        (
            "wrong type",
            |v| v["spec"]["version"] = json!("one"),
            "spec.version",
        ),
        (
            "immutable",
            |v| v["spec"]["manifest"]["contextTokens"] = json!(4096),
            "cannot change",
        ),
        (
            "out of range",
            |v| v["spec"]["version"] = json!(0),
            "spec.version",
        ),
        (
            "missing",
            |v| drop(v["spec"].as_object_mut().unwrap().remove("pool")),
            "pool",
        ),
        (
            "api version",
            |v| v["apiVersion"] = json!("weir.dev/v2"),
            "weir.dev/v1alpha1",
        ),
    ];
    for (name, change, want) in cases {
        let mut catalog = Catalog::default();
        update(&mut catalog, &[pool("small"), version(|_| {})]);
        let problems = update(&mut catalog, &[pool("small"), version(change)]);
        assert!(
            problems.len() == 1 && problems[0].contains(want),
            "{name}: wanted {want:?} in {problems:?}"
        );
        assert!(
            problems[0].starts_with("a.yaml:1: ModelVersion \"m-v1\""),
            "{name}: {problems:?}"
        );
        if name != "api version" {
            let entry = &catalog.versions["m-v1"];
            assert_eq!(
                (entry.valid.manifest.context_tokens, entry.generation),
                (2048, 1),
                "{name}"
            );
        }
    }
}

#[test]
fn references_that_lead_nowhere_are_named() {
    let mut catalog = Catalog::default();
    let problems = update(&mut catalog, &[pool("smal"), version(|_| {}), quota()]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].contains("did you mean \"smal\"?"),
        "{problems:?}"
    );
    assert!(problems[1].contains("weir key"), "{problems:?}");
}

#[test]
fn what_is_no_object_of_ours_is_refused_by_name() {
    for (value, want) in [
        (
            json!({"kind": "ModelVersions", "metadata": {"name": "x"}}),
            "did you mean \"ModelVersion\"?",
        ),
        (
            json!({"kind": "Pod", "metadata": {"name": "x"}}),
            "it reads ModelVersion",
        ),
        (json!({"metadata": {"name": "x"}}), "kind: is missing"),
        (
            json!({"apiVersion": "v1", "kind": "Secret"}),
            "metadata.name: is missing",
        ),
    ] {
        let problems = update(&mut Catalog::default(), &[raw(value)]);
        assert!(
            problems.len() == 1 && problems[0].contains(want),
            "wanted {want:?} in {problems:?}"
        );
    }
    let twice = update(&mut Catalog::default(), &[pool("a"), pool("a")]);
    assert!(
        twice.len() == 1 && twice[0].contains("a second time"),
        "{twice:?}"
    );
}

#[test]
fn a_change_counts_as_a_new_generation_and_sameness_does_not() {
    let mut catalog = Catalog::default();
    update(&mut catalog, &[pool("small"), version(|_| {})]);
    update(&mut catalog, &[pool("small"), version(|_| {})]);
    assert_eq!(catalog.versions["m-v1"].generation, 1);
    update(
        &mut catalog,
        &[
            pool("small"),
            version(|v| v["spec"]["stage"] = json!("Registered")),
        ],
    );
    assert_eq!(catalog.versions["m-v1"].generation, 2);
    update(&mut catalog, &[pool("small")]);
    assert!(catalog.versions.is_empty());
}
