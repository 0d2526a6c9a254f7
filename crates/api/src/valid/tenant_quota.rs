//! A proven `TenantQuota`: what a gateway enforces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Problems, Validate, identity, unsigned, unsigned_64};
use crate::gpu_pool::Priority;
use crate::model_version::Permission;
use crate::tenant_quota::{
    Alerts, Key, KeyLimits, Limits, PermittedModel, Rates, TenantQuota, Webhook,
};

/// A proven `TenantQuota`.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidTenantQuota {
    /// The object's name.
    pub name: String,
    /// The object's namespace, if it has one.
    pub namespace: Option<String>,
    /// The object's generation, 0 where nobody counts.
    pub generation: i64,
    /// The tenant.
    pub tenant: String,
    /// Where the hashes of its keys are.
    pub keys: Vec<TenantKey>,
    /// Budget windows by period, no two of the same.
    pub windows: Vec<Window>,
    /// Bounds per minute.
    pub rates: RateLimits,
    /// Bounds of single runs and of runs at once.
    pub limits: RunLimits,
    /// The highest priority it may ask for.
    pub priority: Priority,
    /// The models it may use, by name.
    pub models: BTreeMap<String, TenantModel>,
    /// What holds for models that `models` does not name, if it may use them.
    pub every_model: Option<TenantModel>,
    /// Who shares cached prefixes with it.
    pub trust_scope: String,
    /// How long events of ended runs are kept.
    pub retain_events: Duration,
    /// How long prompts and outputs of ended runs are kept.
    pub retain_content: Duration,
    /// Whether its own keys may delete its content.
    pub content_deletion: Permission,
    /// Percent of each window's limits at which it is told, rising.
    pub alert_thresholds: Vec<u8>,
    /// Where it is told.
    pub webhook: Option<Webhook>,
    /// Whether its runs may be mirrored.
    pub shadow: Permission,
}

impl ValidTenantQuota {
    /// What holds for a model, if the tenant may use it.
    pub fn model(&self, name: &str) -> Option<&TenantModel> {
        self.models.get(name).or(self.every_model.as_ref())
    }

    /// Whether it may ask for a priority.
    pub fn permits_priority(&self, priority: Priority) -> bool {
        priority >= self.priority
    }
}

/// Where the hash of an API key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantKey {
    /// Its name, for people and for the audit log.
    pub name: String,
    /// The Secret.
    pub secret: String,
    /// The entry in the Secret's data.
    pub entry: String,
    /// When it ends.
    pub not_after: Option<Timestamp>,
    /// When it begins.
    pub not_before: Option<Timestamp>,
    /// What it may less than its tenant.
    pub limits: Option<TenantKeyLimits>,
}

/// What a key may less than its tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantKeyLimits {
    /// A budget window of its own.
    pub window: Option<Window>,
    /// Bounds per minute.
    pub rates: RateLimits,
    /// Runs at once.
    pub concurrent_runs: Option<u64>,
    /// The highest priority it may ask for.
    pub priority: Option<Priority>,
    /// Models it may use.
    pub models: Option<Vec<String>>,
}

/// A budget window; at least one of its limits is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its length, whole seconds, at least one.
    pub period: Duration,
    /// Tokens per window.
    pub tokens: Option<u64>,
    /// Micro-units per window.
    pub micros: Option<u64>,
}

/// Bounds per minute; absent means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Accepted runs.
    pub requests_per_minute: Option<u64>,
    /// Reserved tokens.
    pub tokens_per_minute: Option<u64>,
}

/// Bounds of single runs and of runs at once; absent means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// Runs that are not terminal.
    pub concurrent_runs: Option<u64>,
    /// Longest prompt.
    pub max_prompt_tokens: Option<u32>,
    /// Longest output.
    pub max_output_tokens: Option<u32>,
    /// Share of a pool's KV memory, 1 to 100; 100 is no limit.
    pub kv_share_percent: u32,
}

/// What holds for a model that a tenant may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantModel {
    /// Quality tiers it may use; none means all.
    pub tiers: Option<BTreeSet<String>>,
    /// Whether a smaller model may answer when the request permits it.
    pub fallback: Permission,
    /// Whether requests may name a version.
    pub pinning: Permission,
}

impl TenantModel {
    /// Whether a version of this quality tier may be used.
    pub fn permits_tier(&self, tier: &str) -> bool {
        self.tiers.as_ref().is_none_or(|tiers| tiers.contains(tier))
    }
}

/// A day, as the contract says.
const SILENT_RETENTION: Duration = Duration::from_hours(24);
/// Time to act, time to hurry, too late.
const SILENT_THRESHOLDS: [u8; 4] = [50, 80, 95, 100];
/// Nobody replays after a year, and a longer time would be a typing error.
const LONGEST_RETENTION: Duration = Duration::from_hours(24 * 366);

impl Validate for TenantQuota {
    type Valid = ValidTenantQuota;

    fn resolve(&self, problems: &mut Problems) -> ValidTenantQuota {
        let (name, namespace, generation) = identity(self);
        let spec = &self.spec;
        let keys = spec.keys.as_deref().unwrap_or_default();
        let retention = spec.retention.clone().unwrap_or_default();
        let mut retain = |field: &str, text| {
            let path = format!("spec.retention.{field}");
            let kept = problems.duration(&path, text, SILENT_RETENTION);
            if kept > LONGEST_RETENTION {
                problems.push(path, "must be at most 8784h (366 days)");
            }
            kept
        };
        let retain_events = retain("events", retention.events.as_ref());
        let retain_content = retain("content", retention.content.as_ref());
        let permitted = spec.models.as_deref().unwrap_or_default();
        let mut models: BTreeMap<String, TenantModel> = permitted
            .iter()
            .map(|m| (m.name.clone(), model(m)))
            .collect();
        ValidTenantQuota {
            name,
            namespace,
            generation,
            tenant: spec.tenant.clone(),
            keys: keys
                .iter()
                .enumerate()
                .map(|(index, given)| key(index, given, problems))
                .collect(),
            windows: windows(self, problems),
            rates: rates(&spec.rates.clone().unwrap_or_default()),
            limits: limits(&spec.limits.clone().unwrap_or_default()),
            priority: spec.priority.unwrap_or(Priority::Standard),
            every_model: models.remove("*"),
            models,
            trust_scope: spec
                .trust_scope
                .clone()
                .unwrap_or_else(|| spec.tenant.clone()),
            retain_events,
            retain_content,
            content_deletion: retention.deletion.unwrap_or(Permission::Denied),
            alert_thresholds: thresholds(spec.alerts.as_ref()),
            webhook: spec
                .alerts
                .as_ref()
                .and_then(|alerts| alerts.webhook.clone()),
            shadow: spec.shadow.unwrap_or(Permission::Allowed),
        }
    }
}

/// The schema has the range.
fn thresholds(alerts: Option<&Alerts>) -> Vec<u8> {
    let given = alerts.and_then(|alerts| alerts.thresholds_percent.as_deref());
    let mut percents: Vec<u8> = given.map_or_else(
        || SILENT_THRESHOLDS.to_vec(),
        |given| given.iter().filter_map(|p| u8::try_from(*p).ok()).collect(),
    );
    percents.sort_unstable();
    percents
}

fn key(index: usize, key: &Key, problems: &mut Problems) -> TenantKey {
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    let (not_before, not_after) = (time(&key.not_before), time(&key.not_after));
    if let (Some(begin), Some(end)) = (not_before, not_after)
        && end <= begin
    {
        let path = format!("spec.keys[{index}].notAfter");
        problems.push(path, "must be later than notBefore");
    }
    TenantKey {
        not_before,
        limits: key
            .limits
            .as_ref()
            .map(|limits| key_limits(index, limits, problems)),
        name: key.name.clone(),
        secret: key.secret_ref.name.clone(),
        entry: key.secret_ref.key.clone(),
        not_after,
    }
}

fn key_limits(index: usize, limits: &KeyLimits, problems: &mut Problems) -> TenantKeyLimits {
    let window = limits.window.as_ref().map(|given| {
        let path = format!("spec.keys[{index}].limits.window");
        if given.tokens.is_none() && given.cost_micros.is_none() {
            problems.push(path.clone(), "needs tokens, costMicros or both");
        }
        window(&format!("{path}.period"), given, problems)
    });
    TenantKeyLimits {
        window,
        rates: RateLimits {
            requests_per_minute: limits.requests_per_minute.map(unsigned_64),
            tokens_per_minute: limits.tokens_per_minute.map(unsigned_64),
        },
        concurrent_runs: limits.concurrent_runs.map(unsigned).map(u64::from),
        priority: limits.priority,
        models: limits.models.clone(),
    }
}

fn window(path: &str, given: &crate::tenant_quota::Window, problems: &mut Problems) -> Window {
    let period = problems.period(path, Some(&given.period), Duration::from_secs(1));
    if period.subsec_nanos() != 0 {
        problems.push(path.to_owned(), "must be whole seconds");
    }
    Window {
        period,
        tokens: given.tokens.map(unsigned_64),
        micros: given.cost_micros.map(unsigned_64),
    }
}

fn windows(quota: &TenantQuota, problems: &mut Problems) -> Vec<Window> {
    let given = quota.spec.windows.as_deref().unwrap_or_default();
    let mut windows = Vec::new();
    for (index, given) in given.iter().enumerate() {
        let path = format!("spec.windows[{index}].period");
        windows.push(window(&path, given, problems));
    }
    windows.sort_by_key(|window| window.period);
    windows
}

fn rates(rates: &Rates) -> RateLimits {
    RateLimits {
        requests_per_minute: rates.requests_per_minute.map(unsigned_64),
        tokens_per_minute: rates.tokens_per_minute.map(unsigned_64),
    }
}

fn limits(limits: &Limits) -> RunLimits {
    RunLimits {
        concurrent_runs: limits.concurrent_runs.map(unsigned).map(u64::from),
        max_prompt_tokens: limits.max_prompt_tokens.map(unsigned),
        max_output_tokens: limits.max_output_tokens.map(unsigned),
        kv_share_percent: unsigned(limits.kv_share_percent.unwrap_or(100)),
    }
}

fn model(model: &PermittedModel) -> TenantModel {
    TenantModel {
        tiers: model.tiers.clone().map(BTreeSet::from_iter),
        fallback: model.fallback.unwrap_or(Permission::Denied),
        pinning: model.pinning.unwrap_or(Permission::Denied),
    }
}
