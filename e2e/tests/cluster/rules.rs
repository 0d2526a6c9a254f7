//! The rules of the kinds, on a live API server: each refuses what it should, and none is without a row in `refusals`.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_e2e::repository;

use crate::plane::{example, namespace, shared};
use crate::refusals::{CREATIONS, Row, UPDATES};

/// The object that a row begins with.
fn good(kind: &str, namespace: &str) -> Value {
    let file = match kind {
        "ModelVersion" => "model.yaml",
        "GpuPool" => "pool.yaml",
        _ => "tenants.yaml",
    };
    example(file, namespace)
}

/// A good object with a row's changes: JSON pointers and YAML values; `~` takes the field away.
fn changed(mut object: Value, row: &Row) -> Value {
    for (pointer, text) in row.changes {
        let value: Value = serde_yaml::from_str(text).unwrap();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = value,
            Value::Object(fields) if value.is_null() => {
                fields.remove(name).unwrap();
            }
            _ => parent[name] = value,
        }
    }
    object
}

/// Tries every row and reports all that are not refused with the text they name.
fn try_all(rows: &[Row], namespace: &str, refusal: impl Fn(&Value) -> Option<String>) {
    let mut wrong = Vec::new();
    for row in rows {
        let object = changed(good(row.kind, namespace), row);
        match refusal(&object) {
            Some(said) if said.contains(row.want) => {}
            said => wrong.push(format!("{} {:?}: {said:?}", row.kind, row.changes)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_refuses_a_new_object_that_breaks_it() {
    let Some(plane) = shared("every_rule_refuses_a_new_object_that_breaks_it") else {
        return;
    };
    let kubectl = plane.kubectl();
    namespace(kubectl, "rules-new");
    for kind in ["ModelVersion", "GpuPool", "TenantQuota"] {
        let object = good(kind, "rules-new");
        assert_eq!(kubectl.refusal(&object).unwrap(), None, "the good {kind}");
    }
    try_all(CREATIONS, "rules-new", |object| {
        kubectl.refusal(object).unwrap()
    });
}

#[test]
fn what_must_not_change_cannot_be_changed() {
    let Some(plane) = shared("what_must_not_change_cannot_be_changed") else {
        return;
    };
    let kubectl = plane.kubectl();
    namespace(kubectl, "rules-change");
    for kind in ["ModelVersion", "GpuPool", "TenantQuota"] {
        let object = good(kind, "rules-change");
        kubectl.apply("weir-test", &object).unwrap();
        // What may change, may.
        let mut relabelled = object;
        relabelled["metadata"]["labels"] = serde_json::json!({"team": "b"});
        assert_eq!(kubectl.refusal(&relabelled).unwrap(), None, "{kind}");
    }
    try_all(UPDATES, "rules-change", |object| {
        kubectl.refusal(object).unwrap()
    });
}

/// The messages of all rules in `crds/`.
fn messages(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for rule in fields
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                found.insert(rule["message"].as_str().unwrap().to_owned());
            }
            fields.values().for_each(|value| messages(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| messages(value, found)),
        _ => {}
    }
}

#[test]
fn no_rule_is_without_a_row() {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(repository().join("crds")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        messages(&serde_yaml::from_str(&text).unwrap(), &mut all);
    }
    assert!(all.len() > 20, "{all:?}");
    let tried: Vec<&str> = CREATIONS
        .iter()
        .chain(UPDATES)
        .map(|row| row.want)
        .collect();
    let untried: Vec<&String> = all
        .iter()
        .filter(|message| !tried.iter().any(|want| message.contains(want)))
        .collect();
    assert!(untried.is_empty(), "no row in refusals.rs: {untried:#?}");
}
