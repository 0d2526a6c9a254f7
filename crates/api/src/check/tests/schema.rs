//! The schemas themselves: what an API server demands of them, and what we promise.

use serde_json::Value;

use crate::check::{Kind, Rules};
use crate::{CATEGORY, GpuPool, ModelVersion, TenantQuota, crds};

fn all() -> [(&'static str, &'static Rules); 3] {
    [
        ("GpuPool", GpuPool::rules()),
        ("ModelVersion", ModelVersion::rules()),
        ("TenantQuota", TenantQuota::rules()),
    ]
}

/// Calls `see` for each node of each schema with its path.
fn each(mut see: impl FnMut(&str, &Value)) {
    fn walk(path: &str, schema: &Value, see: &mut dyn FnMut(&str, &Value)) {
        see(path, schema);
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), child, see);
        }
        for (key, step) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[key].is_object() {
                walk(&format!("{path}{step}"), &schema[key], see);
            }
        }
    }
    for (kind, rules) in all() {
        walk(kind, rules.schema(), &mut see);
    }
}

fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn every_field_has_a_description() {
    let mut findings = Vec::new();
    each(|path, schema| {
        let described = schema["description"]
            .as_str()
            .is_some_and(|text| text.len() > 5);
        if !described && !path.ends_with("[]") && !path.ends_with("{}") {
            findings.push(path.to_owned());
        }
    });
    assert_none(&findings);
}

#[test]
fn every_list_map_and_string_is_bounded() {
    let mut findings = Vec::new();
    each(|path, schema| {
        let bounded = match schema["type"].as_str() {
            Some("string") => {
                schema["maxLength"].is_u64()
                    || schema["enum"].is_array()
                    || schema["format"] == "date-time"
            }
            Some("array") => {
                schema["maxItems"].is_u64() && schema["x-kubernetes-list-type"].is_string()
            }
            Some("object") => {
                schema["properties"].is_object()
                    || schema["maxProperties"].is_u64()
                    || schema["x-kubernetes-preserve-unknown-fields"] == true
            }
            Some("integer" | "boolean") => true,
            _ => schema["x-kubernetes-int-or-string"] == true && schema["maxLength"].is_u64(),
        };
        if !bounded {
            findings.push(format!("{path}: {schema}"));
        }
    });
    assert_none(&findings);
}

#[test]
fn specs_have_no_defaults_nulls_floats_or_bools() {
    let mut findings = Vec::new();
    each(|path, schema| {
        for word in [
            "default", "nullable", "anyOf", "oneOf", "allOf", "not", "title",
        ] {
            if schema.get(word).is_some() {
                findings.push(format!("{path}: {word}"));
            }
        }
        let spec = path.split('.').nth(1) == Some("spec");
        if schema["type"] == "number" || (spec && schema["type"] == "boolean") {
            findings.push(format!("{path}: {}", schema["type"]));
        }
    });
    assert_none(&findings);
}

#[test]
fn keys_of_keyed_lists_are_required_scalars() {
    let mut findings = Vec::new();
    each(|path, schema| {
        for key in schema["x-kubernetes-list-map-keys"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let name = key.as_str().unwrap();
            let required = schema["items"]["required"].as_array();
            let is_required = required.is_some_and(|names| names.contains(key));
            let scalar = ["string", "integer"]
                .map(Value::from)
                .contains(&schema["items"]["properties"][name]["type"]);
            if !is_required || !scalar {
                findings.push(format!("{path}: {name}"));
            }
        }
    });
    assert_none(&findings);
}

#[test]
fn every_pattern_compiles() {
    each(|path, schema| {
        if let Some(pattern) = schema["pattern"].as_str() {
            regex::Regex::new(pattern).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    });
}

#[test]
fn every_rule_compiles_has_a_message_and_a_row_that_sees_it() {
    for (kind, rules) in all() {
        let errors = rules.compiled.compilation_errors();
        assert!(errors.is_empty(), "{kind}: {errors:?}");
    }
    // The texts of the table; a row names the end of its problem, after the place.
    let rows: Vec<&str> = include_str!("cross_field.rs").split('"').collect();
    let row_of = |message: &str| {
        let text = |row: &&str| {
            row.split_once(": ")
                .map_or(*row, |(_, text)| text)
                .to_owned()
        };
        rows.iter()
            .map(text)
            .any(|text| text.len() > 12 && message.contains(&text))
    };
    let mut findings = Vec::new();
    let mut count = 0;
    each(|path, schema| {
        for rule in schema["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            count += 1;
            if !rule["message"].as_str().is_some_and(row_of) {
                findings.push(format!("{path}: {}", rule["rule"]));
            }
        }
    });
    assert_none(&findings);
    assert!(count >= 24, "{count} rules found: the walk has lost some");
}

#[test]
fn every_kind_has_category_short_name_status_and_columns() {
    for crd in crds() {
        let names = &crd.spec.names;
        let name = names.kind.as_str();
        assert_eq!(
            names.categories.as_deref(),
            Some([CATEGORY.to_owned()].as_slice()),
            "{name}"
        );
        assert_eq!(names.short_names.as_ref().map(Vec::len), Some(1), "{name}");
        let version = &crd.spec.versions[0];
        let subresources = version.subresources.as_ref().unwrap();
        assert!(subresources.status.is_some(), "{name}");
        assert_eq!(subresources.scale.is_some(), name == "GpuPool");
        let columns = version.additional_printer_columns.as_ref().unwrap();
        assert!(
            columns.iter().any(|column| column.name == "Ready"),
            "{name}"
        );
        assert_eq!(columns.last().unwrap().name, "Age", "{name}");
        assert!(
            columns.iter().all(|column| column.description.is_some()),
            "{name}"
        );
    }
}
