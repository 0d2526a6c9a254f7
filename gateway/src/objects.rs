//! From proven quotas to tenants: a pure translation, the same on a cluster as on one machine.

use std::collections::BTreeSet;

use weir_api::ValidTenantQuota;
use weir_api::model_version::Permission;

use crate::alerts::{Alerts, Webhook};
use crate::snapshot::{ApiKey, KeyRules, ModelPermission, Tenant};

/// An entry of a Secret, by the Secret's name and the entry's.
pub type Secrets<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

/// A tenant with the hashes of the keys whose Secrets are there. `models` are all that there are, for quotas that permit every one.
pub fn tenant(valid: &ValidTenantQuota, secrets: Secrets<'_>, models: &BTreeSet<&str>) -> Tenant {
    let keys = valid.keys.iter().filter_map(|key| {
        Some(ApiKey {
            name: key.name.clone(),
            hash: secrets(&key.secret, &key.entry)?,
            not_after_ms: key
                .not_after
                .map(|end| u64::try_from(end.as_millisecond()).unwrap_or(0)),
            not_before_ms: key
                .not_before
                .map(|begin| u64::try_from(begin.as_millisecond()).unwrap_or(0)),
            rules: key.limits.as_ref().map(key_rules),
        })
    });
    let permission = |name: &str, model: &weir_api::TenantModel| ModelPermission {
        name: name.to_owned(),
        tiers: model.tiers.iter().flatten().cloned().collect(),
        fallback: model.fallback == Permission::Allowed,
        pinning: model.pinning == Permission::Allowed,
    };
    let named = valid
        .models
        .iter()
        .map(|(name, model)| permission(name, model));
    let others = models
        .iter()
        .filter(|name| !valid.models.contains_key(**name));
    let every = others.filter_map(|name| Some(permission(name, valid.every_model.as_ref()?)));
    Tenant {
        caller: None,
        name: valid.tenant.clone(),
        keys: keys.collect(),
        limits: weir_budget::Limits {
            windows: valid.windows.iter().map(window).collect(),
            requests_per_minute: valid.rates.requests_per_minute,
            tokens_per_minute: valid.rates.tokens_per_minute,
            concurrent_runs: valid.limits.concurrent_runs,
            pool_kv_tokens: None,
            key: None,
        },
        kv_share_percent: u8::try_from(valid.limits.kv_share_percent)
            .ok()
            .filter(|percent| *percent < 100),
        max_prompt_tokens: valid.limits.max_prompt_tokens,
        max_output_tokens: valid.limits.max_output_tokens,
        priority: valid.priority,
        models: named.chain(every).collect(),
        trust_scope: valid.trust_scope.clone(),
        // Events are content.
        retention_ms: u64::try_from(valid.retain_events.min(valid.retain_content).as_millis())
            .unwrap_or(u64::MAX),
        content_deletion: valid.content_deletion == Permission::Allowed,
        shadow: valid.shadow == Permission::Allowed,
        alerts: Alerts {
            thresholds_percent: valid.alert_thresholds.clone(),
            webhook: valid
                .webhook
                .as_ref()
                .and_then(|webhook| webhook_of(webhook, secrets)),
        },
    }
}

/// A webhook whose secret is not there cannot sign: the list of problems says so, and alerts stay in the audit log.
fn webhook_of(webhook: &weir_api::tenant_quota::Webhook, secrets: Secrets<'_>) -> Option<Webhook> {
    let secret = &webhook.secret_ref;
    Some(Webhook {
        url: webhook.url.clone(),
        secret: secrets(&secret.name, &secret.key)?,
    })
}

fn key_rules(limits: &weir_api::TenantKeyLimits) -> KeyRules {
    KeyRules {
        limits: weir_budget::Limits {
            windows: limits.window.iter().map(window).collect(),
            requests_per_minute: limits.rates.requests_per_minute,
            tokens_per_minute: limits.rates.tokens_per_minute,
            concurrent_runs: limits.concurrent_runs,
            ..weir_budget::Limits::default()
        },
        models: limits.models.clone(),
        priority: limits.priority,
    }
}

fn window(window: &weir_api::Window) -> weir_budget::WindowLimit {
    weir_budget::WindowLimit {
        period_s: window.period.as_secs(),
        tokens: window.tokens,
        micros: window.micros,
    }
}
