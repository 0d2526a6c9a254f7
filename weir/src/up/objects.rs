//! The objects with their status, as `weir get` shows them.

mod pool;
mod quota;
mod version;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use self::pool::pool_status;
use self::quota::quota_status;
use self::version::version_status;
use super::serve::Serving;
use super::status::object;

/// Every object with its status, in the order of kinds and names.
pub async fn objects(serving: &mut Serving, ready: &BTreeSet<String>) -> Vec<Value> {
    let now = Timestamp::now();
    let mut all = Vec::new();
    for (name, entry) in &serving.catalog.pools {
        let (mut status, verdicts) = pool_status(serving, entry);
        status.conditions =
            serving
                .report
                .history
                .conditions("GpuPool", name, entry.generation, verdicts, now);
        all.push(object(
            &entry.source.value,
            entry.generation,
            entry.created,
            &status,
        ));
    }
    for (name, entry) in &serving.catalog.versions {
        let (mut status, verdicts) = version_status(serving, entry, ready);
        status.conditions = serving.report.history.conditions(
            "ModelVersion",
            name,
            entry.generation,
            verdicts,
            now,
        );
        all.push(object(
            &entry.source.value,
            entry.generation,
            entry.created,
            &status,
        ));
    }
    for (name, entry) in &serving.catalog.quotas {
        let (mut status, verdicts) = quota_status(serving, entry, now).await;
        status.conditions =
            serving
                .report
                .history
                .conditions("TenantQuota", name, entry.generation, verdicts, now);
        all.push(object(
            &entry.source.value,
            entry.generation,
            entry.created,
            &status,
        ));
    }
    all
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
