//! A quota's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use weir_api::tenant_quota::{WindowStatus, reasons};
use weir_api::{CONDITION_READY, TenantQuota, TenantQuotaStatus};

use super::count;
use crate::up::catalog::Entry;
use crate::up::serve::Serving;
use weir_operator::status::ConditionNow;

/// What is said about a quota, conditions apart.
pub(super) async fn quota_status(
    serving: &Serving,
    entry: &Entry<TenantQuota>,
    now: Timestamp,
) -> (TenantQuotaStatus, Vec<ConditionNow>) {
    let valid = &entry.valid;
    let now_ms = u64::try_from(now.as_millisecond()).unwrap_or(0);
    let hash = |key: &weir_api::TenantKey| serving.catalog.key_hash(&key.secret, &key.entry);
    let in_force = |key: &&weir_api::TenantKey| {
        hash(key).is_some() && key.not_after.is_none_or(|end| end > now)
    };
    let active = valid.keys.iter().filter(in_force).count();
    let periods = valid
        .windows
        .iter()
        .map(|window| window.period.as_secs())
        .collect();
    // A store that does not answer is reported where it matters, on requests.
    let budget = serving
        .store
        .budget(&valid.tenant, periods, now_ms)
        .await
        .unwrap_or_default();
    let written = |limit: &weir_api::Window| {
        let mut windows = entry.object.spec.windows.iter().flatten();
        let as_written = windows.find(|window| window.period.parse() == Ok(limit.period));
        as_written.map_or_else(
            || format!("{}s", limit.period.as_secs()),
            |window| window.period.0.clone(),
        )
    };
    let windows = valid.windows.iter().zip(&budget.windows);
    let windows = windows.map(|(limit, window)| window_status(limit, written(limit), window));
    let status = TenantQuotaStatus {
        observed_generation: Some(entry.generation),
        active_keys: Some(count(active)),
        windows: Some(windows.collect()),
        live_runs: i32::try_from(budget.live_runs).ok(),
        observed_at: Some(Time(now)),
        conditions: Vec::new(),
    };
    let missing: Vec<&str> = valid
        .keys
        .iter()
        .filter(|key| hash(key).is_none())
        .map(|key| key.name.as_str())
        .collect();
    let ready = match (missing.is_empty(), active) {
        (false, _) => ConditionNow::new(
            CONDITION_READY,
            false,
            reasons::SECRET_NOT_FOUND,
            format!("no hash in the Secret for keys {}", missing.join(", ")),
        ),
        (true, 0) => ConditionNow::new(
            CONDITION_READY,
            false,
            reasons::NO_KEY,
            "no API key is in force: add one with `weir key`",
        ),
        (true, _) => ConditionNow::new(
            CONDITION_READY,
            true,
            reasons::ENFORCED,
            format!("{active} keys in force"),
        ),
    };
    (status, vec![ready])
}

fn window_status(
    limit: &weir_api::Window,
    period: String,
    window: &weir_store::BudgetWindow,
) -> WindowStatus {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let at = |ms: u64| Time(Timestamp::from_millisecond(signed(ms)).unwrap_or_default());
    WindowStatus {
        period,
        start: at(window.start_ms),
        end: at(window.end_ms()),
        limit_tokens: limit.tokens.map(signed),
        used_tokens: Some(signed(window.used_tokens)),
        reserved_tokens: Some(signed(window.reserved_tokens)),
        available_tokens: limit.tokens.map(|limit| window.available_tokens(limit)),
        limit_micros: limit.micros.map(signed),
        used_micros: Some(signed(window.used_micros)),
        reserved_micros: Some(signed(window.reserved_micros)),
        available_micros: limit.micros.map(|limit| window.available_micros(limit)),
    }
}
