//! How things stand, for the console.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::core::Core;
use crate::link::LinkHandle;
use crate::snapshot::ModelRoute;

pub(super) fn state(core: &Arc<Core>) -> String {
    let directory = core.directory.load_full();
    let mut models: Vec<&ModelRoute> = directory.models.values().collect();
    models.sort_by(|one, two| one.name.cmp(&two.name));
    let mut tenants: Vec<String> = directory
        .keys
        .tenants()
        .iter()
        .map(|tenant| tenant.name.clone())
        .collect();
    tenants.sort();
    let mut workers: Vec<Value> = core
        .links
        .handles()
        .iter()
        .map(|link| worker(link, &models))
        .collect();
    workers.sort_by_key(|worker| worker["name"].as_str().unwrap_or_default().to_owned());
    let shown: Vec<Value> = models.iter().map(|route| model(core, route)).collect();
    json!({
        "atMs": now_ms(),
        "version": env!("CARGO_PKG_VERSION"),
        "replica": core.config.replica,
        "draining": core.is_draining(),
        "liveRuns": core.hub.len(),
        "openStreams": core.metrics.open_streams.get(),
        "connections": core.metrics.connections.get(),
        "workers": workers,
        "queues": queues(core, &models),
        "models": shown,
        "tenants": tenants,
    })
    .to_string()
}

/// Model and version of a digest.
fn named(models: &[&ModelRoute], digest: &str) -> Option<(String, u32)> {
    models.iter().find_map(|route| {
        let version = route.by_digest(digest)?;
        Some((version.model.clone(), version.version))
    })
}

fn worker(link: &LinkHandle, models: &[&ModelRoute]) -> Value {
    let facts = link.facts.lock().clone();
    let serves: Vec<Value> = facts
        .digests
        .iter()
        .filter_map(|digest| named(models, digest))
        .map(|(model, version)| json!({"model": model, "version": version}))
        .collect();
    let status = &facts.status;
    json!({
        "name": link.endpoint.name,
        "pool": link.endpoint.pool,
        "connected": link.connected.load(Ordering::Acquire),
        "draining": link.draining.load(Ordering::Acquire),
        "stalled": link.is_stalled(),
        "serves": serves,
        "inFlight": link.in_flight.load(Ordering::Acquire),
        "seats": link.most_seats(),
        "running": status.running,
        "waiting": status.waiting,
        "blocks": {"total": status.blocks_total, "free": status.blocks_free, "cached": status.blocks_cached},
        "kvTokens": status.kv_tokens,
        "kvTokensTotal": link.kv_tokens(),
        "promptTokens": status.prompt_tokens,
        "cachedTokens": status.cached_tokens,
        "outputTokens": status.output_tokens,
        "preemptions": status.preemptions,
        "steps": status.steps,
        "stepMicros": status.step_us_ewma,
    })
}

fn queues(core: &Core, models: &[&ModelRoute]) -> Vec<Value> {
    let mut queues = Vec::new();
    for (digest, pool, [interactive, standard, batch]) in core.queues.depths() {
        if let Some((model, version)) = named(models, &digest) {
            queues.push(json!({
                "pool": pool, "model": model, "version": version,
                "interactive": interactive, "standard": standard, "batch": batch,
            }));
        }
    }
    queues
}

fn model(core: &Core, route: &ModelRoute) -> Value {
    let totals = core.evidence.totals();
    let mut versions: Vec<Value> = Vec::new();
    for version in &route.versions {
        let counts = totals.get(&version.digest).cloned().unwrap_or_default();
        versions.push(json!({
            "version": version.version,
            "digest": version.digest,
            "pool": version.pool,
            "weightPercent": route.table.weight(&version.digest),
            "isStable": route.table.stable.digest == version.digest,
            "settled": counts.errors.runs,
            "failed": counts.errors.bad,
        }));
    }
    json!({
        "name": route.name,
        "attempt": route.table.attempt,
        "step": route.table.step,
        "versions": versions,
    })
}
