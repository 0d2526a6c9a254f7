//! The objects with their status, as `weir get` shows them.

mod pool;
mod quota;
mod version;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use weir_api::Validate;

use self::pool::pool_status;
use self::quota::quota_status;
use self::version::version_status;
use super::catalog::Entry;
use super::serve::Serving;
use super::status::{History, object};
use weir_operator::status::ConditionNow;

/// Every object with its status, in the order of kinds and names.
pub async fn objects(serving: &mut Serving, ready: &BTreeSet<String>) -> Vec<Value> {
    let now = Timestamp::now();
    let mut all = Vec::new();
    for entry in serving.catalog.pools.values() {
        let said = pool_status(serving, entry);
        all.push(shown(&mut serving.report.history, entry, said, now));
    }
    for entry in serving.catalog.versions.values() {
        let said = version_status(serving, entry, ready);
        all.push(shown(&mut serving.report.history, entry, said, now));
    }
    for entry in serving.catalog.quotas.values() {
        let said = quota_status(serving, entry, now).await;
        all.push(shown(&mut serving.report.history, entry, said, now));
    }
    all
}

/// An object with what is said about it now, and since when each condition holds.
fn shown<K: Validate>(
    history: &mut History,
    entry: &Entry<K>,
    (status, conditions): (impl Serialize, Vec<ConditionNow>),
    now: Timestamp,
) -> Value {
    let (source, generation) = (&entry.source, entry.generation);
    let conditions = history.conditions(source.kind(), source.name(), generation, conditions, now);
    let mut object = object(&source.value, generation, entry.created, &status);
    object["status"]["conditions"] = json!(conditions);
    object
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
