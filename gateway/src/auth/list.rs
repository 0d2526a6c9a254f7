//! The keys in force, as people who rotate them want to see them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::clock::rfc3339;
use crate::snapshot::{ApiKey, Tenant};

/// A key, without anything that could be used in its place.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyView {
    tenant: String,
    name: String,
    state: KeyState,
    not_before: Option<String>,
    not_after: Option<String>,
    last_used_at: Option<String>,
    /// Keys of the same tenant that count at the same time, now or later: those that clients can move to or from without a gap.
    overlaps: Vec<String>,
}

/// Whether a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum KeyState {
    Pending,
    InForce,
    Expired,
}

/// From when and until when a key counts.
fn span(key: &ApiKey) -> (u64, u64) {
    let begin = key.not_before_ms.unwrap_or(0);
    (begin, key.not_after_ms.unwrap_or(u64::MAX))
}

/// The keys of a tenant, in the order of its quota.
pub(crate) fn views(tenant: &Tenant, last: &BTreeMap<String, u64>, now_ms: u64) -> Vec<KeyView> {
    let meet = |one: &ApiKey, other: &ApiKey| {
        let ((a, b), (c, d)) = (span(one), span(other));
        a.max(c).max(now_ms) < b.min(d)
    };
    let view = |key: &ApiKey| {
        let (begin, end) = span(key);
        let others = tenant.keys.iter().filter(|other| other.name != key.name);
        KeyView {
            tenant: tenant.name.clone(),
            name: key.name.clone(),
            state: if end <= now_ms {
                KeyState::Expired
            } else if begin > now_ms {
                KeyState::Pending
            } else {
                KeyState::InForce
            },
            not_before: key.not_before_ms.map(rfc3339),
            not_after: key.not_after_ms.map(rfc3339),
            last_used_at: last.get(&key.name).copied().map(rfc3339),
            overlaps: others
                .filter(|other| meet(key, other))
                .map(|other| other.name.clone())
                .collect(),
        }
    };
    tenant.keys.iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_its_state_and_which_others_it_can_be_exchanged_for_without_a_gap() {
        let key = |name: &str, begin: Option<u64>, end: Option<u64>| ApiKey {
            name: name.to_owned(),
            not_before_ms: begin,
            not_after_ms: end,
            ..ApiKey::default()
        };
        let tenant = Tenant {
            name: "acme".to_owned(),
            keys: vec![
                key("gone", None, Some(100)),
                key("old", None, Some(2_000)),
                key("new", Some(1_500), None),
                key("later", Some(2_000), None),
            ],
            ..Tenant::default()
        };
        let last = BTreeMap::from([("old".to_owned(), 900)]);
        let shown = views(&tenant, &last, 1_000);
        let of = |place: usize| (shown[place].state, shown[place].overlaps.join(","));
        assert_eq!(of(0), (KeyState::Expired, String::new()));
        assert_eq!(of(1), (KeyState::InForce, "new".to_owned()));
        assert_eq!(of(2), (KeyState::Pending, "old,later".to_owned()));
        assert_eq!(of(3), (KeyState::Pending, "new".to_owned()));
        assert!(shown[1].last_used_at.is_some() && shown[2].last_used_at.is_none());
    }
}
