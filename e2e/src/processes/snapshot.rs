//! What a gateway of a test serves, as the file it follows.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::Plan;
use crate::{Site, weir_command};

/// A tenant as a snapshot has it, with a day's tokens; `more` is merged over it.
///
/// # Errors
/// Its key cannot be hashed.
pub fn snapshot_tenant(name: &str, tokens: u64, more: &Value) -> Result<Value> {
    let key = format!("{name}-dev-key");
    let output = weir_command()
        .args(["key", "--json", "--key", &key])
        .output()?;
    let hash = serde_json::from_slice::<Value>(&output.stdout)?["hash"].clone();
    let mut tenant = json!({
        "name": name, "keys": [{"name": "dev", "hash": hash}], "windows": [{"periodSeconds": 86_400, "tokens": tokens}],
        "priority": "interactive", "models": [{"name": "random"}], "trustScope": name, "retentionMs": 86_400_000,
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        tenant[field] = value.clone();
    }
    Ok(tenant)
}

/// Writes what a gateway serves, or several do: the site's model, these tenants, and workers by name and address.
///
/// # Errors
/// The file cannot be written.
pub fn write_snapshot(
    (site, plan): (&Site, &Plan),
    name: &str,
    tenants: &[Value],
    workers: &[(&str, String)],
) -> Result<PathBuf> {
    let queue = json!({"maxDepth": 256, "maxWaitMs": 60_000});
    let worker = |(name, address): &(&str, String)| json!({"name": name, "pool": "small", "address": address});
    let workers: Vec<Value> = workers.iter().map(worker).collect();
    let snapshot = json!({
        "tenants": tenants,
        "models": [{"name": "random", "stable": 1, "versions": [{
            "version": 1, "digest": plan.digest, "pool": "small", "tier": "standard", "contextTokens": 2048,
            "price": {"promptMicrosPerToken": 1, "cachedMicrosPerToken": 0, "outputMicrosPerToken": 4},
            "path": site.model_dir("random", 1),
        }]}],
        "pools": [{"name": "small", "interactive": queue, "standard": queue, "batch": queue, "classBounds": [512, 4096]}],
        "workers": workers,
    });
    let path = site.path().join(format!("{name}.json"));
    let partial = path.with_extension("partial");
    std::fs::write(&partial, snapshot.to_string())?;
    std::fs::rename(partial, &path)?;
    Ok(path)
}
