//! Checks a value against a structural schema: types, required and unknown fields, bounds, patterns, unique keys.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use regex::Regex;
use serde_json::{Map, Value};

use super::Kind;
use crate::{FieldProblem, did_you_mean};

/// What an object's head may contain beside spec and status.
const METADATA: [&str; 16] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "selfLink",
    "clusterName",
];

/// Problems of `apiVersion`, `kind` and `metadata`, which a kind's schema does not describe.
pub(super) fn header<K: Kind>(manifest: &Value) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    let mut fixed = |field: &str, want: &str| match manifest.get(field) {
        Some(Value::String(given)) if given == want => {}
        Some(given) => problems.push(FieldProblem::new(
            field,
            format!("is {given}, must be \"{want}\""),
        )),
        None => problems.push(FieldProblem::new(
            field,
            format!("is missing, must be \"{want}\""),
        )),
    };
    fixed("apiVersion", &K::api_version(&()));
    fixed("kind", &K::kind(&()));
    problems.extend(metadata(manifest.get("metadata")));
    problems
}

fn metadata(metadata: Option<&Value>) -> Vec<FieldProblem> {
    let Some(Value::Object(fields)) = metadata else {
        return vec![FieldProblem::new(
            "metadata",
            "is missing: write metadata: {name: …}",
        )];
    };
    let mut problems = Vec::new();
    for key in fields
        .keys()
        .filter(|key| !METADATA.contains(&key.as_str()))
    {
        problems.push(unknown("metadata", key, METADATA));
    }
    match fields.get("name") {
        Some(Value::String(name)) if is_object_name(name) => {}
        Some(name) => problems.push(FieldProblem::new(
            "metadata.name",
            format!(
                "{name} is no object name: lower-case letters, digits, '-' and '.', at most 253, starting and ending with a letter or digit"
            ),
        )),
        None => problems.push(FieldProblem::new(
            "metadata.name",
            "is missing: every object needs a name",
        )),
    }
    for map in ["labels", "annotations"] {
        let texts = |values: &Map<String, Value>| values.values().all(Value::is_string);
        match fields.get(map) {
            None => {}
            Some(Value::Object(values)) if texts(values) => {}
            Some(_) => problems.push(FieldProblem::new(
                format!("metadata.{map}"),
                "must map names to text: put numbers and true or false in quotes",
            )),
        }
    }
    problems
}

fn is_object_name(name: &str) -> bool {
    let label = |part: &str| {
        let inner = part
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !part.is_empty() && inner && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Every problem of a whole object.
pub(super) fn check(schema: &Value, object: &Value) -> Vec<FieldProblem> {
    let mut walk = Walk {
        path: String::new(),
        problems: Vec::new(),
    };
    walk.value(schema, object);
    walk.problems
}

struct Walk {
    path: String,
    problems: Vec<FieldProblem>,
}

impl Walk {
    fn problem(&mut self, message: impl Into<String>) {
        self.problems
            .push(FieldProblem::new(self.path.clone(), message));
    }

    fn at(&mut self, step: &str, walk: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if !step.starts_with('[') && !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(step);
        walk(self);
        self.path.truncate(length);
    }

    fn value(&mut self, schema: &Value, value: &Value) {
        if value.is_null() {
            return self.problem("must not be empty: leave the field out or give it a value");
        }
        if schema["x-kubernetes-int-or-string"] == true {
            return match value {
                Value::String(text) => self.text(schema, text),
                Value::Number(_) => self.integer(schema, value),
                other => self.wrong_type("a whole number or text", other),
            };
        }
        match (schema["type"].as_str().unwrap_or_default(), value) {
            ("object", Value::Object(fields)) => self.object(schema, fields),
            ("array", Value::Array(items)) => self.array(schema, items),
            ("string", Value::String(text)) => self.text(schema, text),
            ("integer", Value::Number(_)) => self.integer(schema, value),
            ("boolean", Value::Bool(_)) => {}
            ("object", other) => self.wrong_type("a group of fields", other),
            ("array", other) => self.wrong_type("a list", other),
            ("string", other) => self.wrong_type("text (put it in quotes)", other),
            ("integer", other) => self.wrong_type("a whole number", other),
            (_, other) => self.wrong_type("true or false", other),
        }
    }

    fn wrong_type(&mut self, want: &str, given: &Value) {
        let kind = match given {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a group of fields",
        };
        self.problem(format!("must be {want}, is {kind}"));
    }

    fn object(&mut self, schema: &Value, fields: &Map<String, Value>) {
        let at_root = self.path.is_empty();
        let properties = schema["properties"].as_object();
        let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
        for (name, value) in fields {
            if at_root && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                continue;
            }
            let known = properties.and_then(|properties| properties.get(name));
            match (known, schema.get("additionalProperties")) {
                (Some(child), _) | (None, Some(child @ Value::Object(_))) => {
                    self.at(name, |walk| walk.value(child, value));
                }
                (None, _) if open => {}
                (None, _) => {
                    let names = properties.into_iter().flat_map(Map::keys);
                    let problem = unknown(&self.path, name, names.map(String::as_str));
                    self.problems.push(problem);
                }
            }
        }
        if let Some(most) = limit(schema, "maxProperties", fields.len(), |have, most| {
            have > most
        }) {
            self.problem(format!("has {} entries, at most {most} fit", fields.len()));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let Some(name) = name.as_str() else { continue };
            if !fields.contains_key(name) {
                let about = properties.and_then(|p| p.get(name)).map(about);
                let about = about.unwrap_or_default();
                self.at(name, |walk| walk.problem(format!("is missing{about}")));
            }
        }
    }

    fn array(&mut self, schema: &Value, items: &[Value]) {
        if let Some(most) = limit(schema, "maxItems", items.len(), |have, most| have > most) {
            self.problem(format!("has {} entries, at most {most} fit", items.len()));
        }
        if let Some(least) = limit(schema, "minItems", items.len(), |have, least| have < least) {
            self.problem(format!("needs at least {least} entries"));
        }
        for (index, item) in items.iter().enumerate() {
            self.at(&format!("[{index}]"), |walk| {
                walk.value(&schema["items"], item);
            });
        }
        self.unique(schema, items);
    }

    /// Lists that are sets or maps must not name anything twice.
    fn unique(&mut self, schema: &Value, items: &[Value]) {
        let keys: Vec<&str> = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Vec::new(),
            Some("map") => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array();
                keys.into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect()
            }
            _ => return,
        };
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let mut name = String::new();
            if keys.is_empty() {
                let _ = write!(name, "{item}");
            }
            for key in &keys {
                let _ = write!(name, "{key} {}", item[key]);
            }
            if !seen.insert(name.clone()) {
                self.at(&format!("[{index}]"), |walk| {
                    walk.problem(format!("{name} is there twice: each may appear once"));
                });
            }
        }
    }

    fn text(&mut self, schema: &Value, text: &str) {
        let length = text.chars().count();
        if let Some(most) = limit(schema, "maxLength", length, |have, most| have > most) {
            return self.problem(format!(
                "has {length} characters, at most {most} fit{}",
                about(schema)
            ));
        }
        if let Some(values) = schema["enum"].as_array() {
            let names: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            if !names.contains(&text) {
                let hint = did_you_mean(text, names.iter().copied());
                let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
                self.problem(format!(
                    "\"{text}\" is not one of {}{hint}",
                    names.join(", ")
                ));
            }
            return;
        }
        let empty = limit(schema, "minLength", length, |have, least| have < least);
        if let Some(pattern) = schema["pattern"].as_str() {
            let pattern = Regex::new(pattern).expect("a test compiles every pattern");
            if !pattern.is_match(text) {
                self.problem(format!(
                    "\"{}\" is not allowed{}",
                    shown(text),
                    about(schema)
                ));
            }
        } else if schema["format"] == "date-time" {
            if text.parse::<jiff::Timestamp>().is_err() {
                self.problem(format!(
                    "\"{text}\" is no time: write RFC 3339, such as 2026-12-01T10:00:30Z"
                ));
            }
        } else if let Some(least) = empty {
            self.problem(format!(
                "needs at least {least} characters{}",
                about(schema)
            ));
        }
    }

    fn integer(&mut self, schema: &Value, value: &Value) {
        let Some(number) = value.as_i64() else {
            return self.problem(format!("must be a whole number, is {value}"));
        };
        let narrow = schema["format"] == "int32";
        let bound = |name: &str| schema[name].as_f64().map(whole);
        let least = bound("minimum").or(narrow.then_some(i64::from(i32::MIN)));
        let most = bound("maximum").or(narrow.then_some(i64::from(i32::MAX)));
        if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
            let range = match (least, most) {
                (Some(least), Some(most)) => format!("must be from {least} to {most}"),
                (Some(least), None) => format!("must be at least {least}"),
                (None, most) => format!("must be at most {}", most.unwrap_or(i64::MAX)),
            };
            self.problem(format!("is {number}, {range}{}", about(schema)));
        }
    }
}

/// Typed schemas keep bounds as floats; ours are whole and far below 2^53.
#[expect(
    clippy::cast_possible_truncation,
    reason = "bounds are whole numbers below 2^53"
)]
fn whole(bound: f64) -> i64 {
    bound as i64
}

/// The bound of a schema that a count breaks.
fn limit(schema: &Value, name: &str, have: usize, breaks: fn(u64, u64) -> bool) -> Option<u64> {
    let bound = schema[name].as_u64()?;
    breaks(have as u64, bound).then_some(bound)
}

/// The first sentence of a field's description, as a remedy.
fn about(schema: &Value) -> String {
    let description = schema["description"].as_str().unwrap_or_default();
    let sentence = description.split(". ").next().unwrap_or_default();
    let sentence = sentence.trim_end_matches('.').replace('\n', " ");
    if sentence.is_empty() {
        sentence
    } else {
        format!(" ({sentence})")
    }
}

/// Long values, such as bundles, are cut.
fn shown(text: &str) -> String {
    if text.chars().count() <= 80 {
        return text.to_owned();
    }
    text.chars().take(77).chain("...".chars()).collect()
}

fn unknown<'a>(
    path: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> FieldProblem {
    let place = if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    };
    let message = if let Some(near) = did_you_mean(name, known.clone()) {
        format!("unknown field `{name}`, did you mean `{near}`?")
    } else {
        let mut names: Vec<&str> = known.into_iter().collect();
        names.sort_unstable();
        format!("unknown field `{name}`: known are {}", names.join(", "))
    };
    FieldProblem::new(place, message)
}
