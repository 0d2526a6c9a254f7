//! From the objects in force to what the gateway serves: a pure translation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_api::{ValidModelVersion, ValidTenantQuota};
use weir_gateway::{
    Alerts, ApiKey, KeyRules, ModelPermission, ModelRoute, PromptText, SamplingDefaults,
    ServedVersion, Tenant, Webhook,
};

use weir_rollout::routing::Table;

use super::catalog::Catalog;
use super::verify::Verified;

/// A version that has workers, as the gateway sees it.
pub fn served_version(valid: &ValidModelVersion, verified: &Verified) -> ServedVersion {
    ServedVersion {
        model: valid.model.clone(),
        version: valid.version,
        digest: verified.digest.clone(),
        pool: valid.pool.clone(),
        tier: valid.quality_tier.clone(),
        price: weir_run::Price {
            prompt_micros_per_token: valid.price.prompt_micros,
            cached_micros_per_token: valid.price.cached_micros,
            output_micros_per_token: valid.price.output_micros,
        },
        context_tokens: valid
            .manifest
            .context_tokens
            .min(verified.text.context_tokens()),
        text: Arc::clone(&verified.text) as Arc<dyn PromptText>,
        fallback: valid.fallback.clone(),
        defaults: SamplingDefaults::from(&verified.text.generation),
    }
}

/// Routes of all models that have a table.
pub fn routes(
    versions: Vec<Arc<ServedVersion>>,
    tables: &BTreeMap<String, Arc<Table>>,
) -> Vec<ModelRoute> {
    let mut by_model: BTreeMap<String, Vec<Arc<ServedVersion>>> = BTreeMap::new();
    for version in versions {
        by_model
            .entry(version.model.clone())
            .or_default()
            .push(version);
    }
    let route = |(name, versions): (String, Vec<Arc<ServedVersion>>)| {
        let table = Arc::clone(tables.get(&name)?);
        Some(ModelRoute {
            name,
            versions,
            table,
        })
    };
    by_model.into_iter().filter_map(route).collect()
}

/// A tenant with the hashes of the keys whose Secrets are there. `models` are all that there are, for quotas that permit every one.
pub fn tenant(valid: &ValidTenantQuota, catalog: &Catalog, models: &BTreeSet<&str>) -> Tenant {
    let keys = valid.keys.iter().filter_map(|key| {
        Some(ApiKey {
            name: key.name.clone(),
            hash: catalog.key_hash(&key.secret, &key.entry)?.to_owned(),
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
        fallback: model.fallback == weir_api::model_version::Permission::Allowed,
        pinning: model.pinning == weir_api::model_version::Permission::Allowed,
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
        content_deletion: valid.content_deletion == weir_api::model_version::Permission::Allowed,
        alerts: Alerts {
            thresholds_percent: valid.alert_thresholds.clone(),
            webhook: valid
                .webhook
                .as_ref()
                .and_then(|webhook| webhook_of(webhook, catalog)),
        },
    }
}

/// A webhook whose secret is not there cannot sign: the list of problems says so, and alerts stay in the audit log.
fn webhook_of(webhook: &weir_api::tenant_quota::Webhook, catalog: &Catalog) -> Option<Webhook> {
    let secret = &webhook.secret_ref;
    Some(Webhook {
        url: webhook.url.clone(),
        secret: catalog.entry(&secret.name, &secret.key)?.to_owned(),
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
