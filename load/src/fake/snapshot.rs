//! The file that tells `weir-gateway` to serve one model from the worker here, to one tenant whom nothing limits.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use weir_manifest::ApiKeyHash;

#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// Socket of the worker.
    #[arg(long)]
    worker: PathBuf,
    /// Folder with a tokenizer and a template.
    #[arg(long)]
    text: PathBuf,
    /// Digest of the version that the worker says it serves.
    #[arg(long)]
    digest: String,
    /// The tenant's key.
    #[arg(long)]
    key: String,
    /// The model's name.
    #[arg(long, default_value = "fake")]
    model: String,
}

pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<Value> {
    let model = &args.model;
    let queue = json!({"maxDepth": 1_000_000, "maxWaitMs": 3_600_000});
    let text = std::fs::canonicalize(&args.text)
        .with_context(|| format!("no folder {}", args.text.display()))?;
    Ok(json!({
        "tenants": [{
            "name": "bench", "priority": "interactive", "models": [{"name": model}], "trustScope": "bench", "retentionMs": 3_600_000,
            "keys": [{"name": "dev", "hash": ApiKeyHash::of(&args.key)?.to_string()}],
        }],
        "models": [{"name": model, "stable": 1, "versions": [{
            "version": 1, "digest": args.digest, "pool": "small", "tier": "standard", "path": text, "contextTokens": 1_000_000,
            "price": {"promptMicrosPerToken": 1, "cachedMicrosPerToken": 0, "outputMicrosPerToken": 4},
        }]}],
        "pools": [{"name": "small", "interactive": queue, "standard": queue, "batch": queue, "classBounds": [512, 4096]}],
        "workers": [{"name": "w0", "pool": "small", "address": format!("unix:{}", args.worker.display())}],
    }))
}
