//! Who changed what: one link of the audit log.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rfc3339;

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Actor {
    /// `manifests`, `admin`, `command`, `tenant` or `weir`.
    pub kind: String,
    /// The user, the tenant, or what else names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl Actor {
    /// Who.
    pub fn new(kind: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// A field's old and new value; null where it was or is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Names joined by dots.
    pub field: String,
    /// Before.
    pub old: Value,
    /// After.
    pub new: Value,
}

/// One thing that somebody did. Holds no secret and no text of a prompt or an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditLine {
    /// When.
    pub at: String,
    /// Who.
    pub actor: Actor,
    /// What: `changed`, `contentDeleted`, `budgetRepaired`, `budgetThreshold`, …
    pub action: String,
    /// To what: a kind and a name, such as `TenantQuota acme`.
    pub object: String,
    /// Fields that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// What else there is to say.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl AuditLine {
    /// Without changes and details.
    pub fn new(now_ms: u64, actor: Actor, action: &str, object: &str) -> Self {
        Self {
            at: rfc3339(now_ms),
            actor,
            action: action.to_owned(),
            object: object.to_owned(),
            changes: Vec::new(),
            details: Value::Null,
        }
    }

    /// With changes.
    pub fn changes(mut self, changes: Vec<Change>) -> Self {
        self.changes = changes;
        self
    }

    /// With details.
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// The line.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a line is names and values of JSON")
    }
}

/// The leaves in which two values differ, in the order of their names. Lists are leaves: a change of one is shown whole.
pub fn diff(old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    walk("", old, new, &mut changes);
    changes
}

fn walk(path: &str, old: &Value, new: &Value, changes: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let empty = serde_json::Map::new();
    let (old_map, new_map) = match (old, new) {
        (Value::Object(old), Value::Object(new)) => (old, new),
        (Value::Object(old), Value::Null) => (old, &empty),
        (Value::Null, Value::Object(new)) => (&empty, new),
        _ => {
            changes.push(Change {
                field: path.to_owned(),
                old: old.clone(),
                new: new.clone(),
            });
            return;
        }
    };
    let names: BTreeSet<&String> = old_map.keys().chain(new_map.keys()).collect();
    for name in names {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let at = |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or_default();
        walk(&path, &at(old_map), &at(new_map), changes);
    }
}
