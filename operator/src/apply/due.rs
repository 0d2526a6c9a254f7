//! What differs from what it should be, and whether it is to be written now.

use std::sync::Arc;
use std::time::Instant;

use kube::Resource;
use serde::Serialize;
use serde_json::Value;

use crate::compare::difference;
use crate::model::memory::Writes;

/// What is written again and again, because somebody else writes it too.
pub(super) struct Contested<'a> {
    pub(super) places: Vec<String>,
    pub(super) writes: &'a mut Writes,
    pub(super) is_new: bool,
}

impl Contested<'_> {
    /// Whether an object that differs at a place is to be written now.
    pub(super) fn is_due(&mut self, place: Option<String>, wanted: &Value) -> bool {
        let Some(place) = place else {
            return false;
        };
        let child = format!("{} {}", wanted["kind"], wanted["metadata"]["name"]);
        if self.is_new || self.writes.may(&child, Instant::now()) {
            return true;
        }
        let kind = wanted["kind"].as_str().unwrap_or_default();
        self.places.push(format!("{kind}{place}"));
        false
    }
}

/// The cached object that has the name of a wanted one.
pub(super) fn cached<'a, K: Resource>(all: &'a [Arc<K>], wanted: &Value) -> Option<&'a Arc<K>> {
    let name = wanted["metadata"]["name"].as_str();
    all.iter().find(|live| live.meta().name.as_deref() == name)
}

/// The first place where the cached object is not as wanted; the whole of it where it is not there.
pub(super) fn missing<K: Resource + Serialize>(all: &[Arc<K>], wanted: &Value) -> Option<String> {
    let Some(live) = cached(all, wanted) else {
        return Some(String::new());
    };
    let mut wanted = wanted.clone();
    // The cache's objects do not say what they are.
    if let Some(fields) = wanted.as_object_mut() {
        fields.retain(|field, _| !matches!(field.as_str(), "apiVersion" | "kind"));
    }
    difference(&wanted, &serde_json::to_value(&**live).unwrap_or_default())
}
