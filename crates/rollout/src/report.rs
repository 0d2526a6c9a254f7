//! What a gateway tells whoever decides: its tables, its counts, its workers. Only integers about runs, never text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evidence::Snapshot;
use crate::routing::Table;
use crate::statistics::ShadowCounts;

/// Everything that one gateway says when it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayReport {
    /// Its name among the gateways of one store.
    pub replica: String,
    /// By model.
    #[serde(default)]
    pub models: BTreeMap<String, ModelReport>,
    /// By the worker's name.
    #[serde(default)]
    pub workers: BTreeMap<String, WorkerReport>,
    /// By pool.
    #[serde(default)]
    pub pools: BTreeMap<String, PoolReport>,
}

/// What it does with new runs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelReport {
    /// The table in force: persisted before it was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// For how long it has been in force, by the gateway's own clock.
    #[serde(default)]
    pub age_ms: u64,
    /// Runs that wait for a worker, by digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub waiting: BTreeMap<String, u64>,
    /// What was counted, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Snapshot>,
    /// What was counted in the shadow, where it was asked for and a version is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowReport>,
}

/// What was counted of a version in the shadow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowReport {
    /// The attempt it belongs to.
    pub attempt: String,
    /// Cumulative counts.
    pub counts: ShadowCounts,
}

/// A worker as the gateway sees it. Several gateways see the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerReport {
    /// Whose it is.
    pub pool: String,
    /// Versions it serves.
    pub digests: Vec<String>,
    /// Whether there is a session with it.
    pub connected: bool,
    /// Whether it takes no new runs.
    pub draining: bool,
    /// Runs of this gateway on it.
    pub in_flight: u32,
    /// KV positions it has.
    pub kv_total: u64,
    /// KV positions that running sequences hold.
    pub kv_held: u64,
    /// Prompt tokens it took in since it started, and those of them whose KV was reused.
    pub prompt_tokens: [u64; 2],
    /// Tokens it sampled since it started.
    pub output_tokens: u64,
}

impl WorkerReport {
    /// Whether new runs of a version may be sent to it.
    pub fn serves(&self, digest: &str) -> bool {
        self.connected && !self.draining && self.digests.iter().any(|held| held == digest)
    }
}

/// Runs that wait for a pool's workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReport {
    /// How many wait.
    pub queue_depth: u64,
    /// How long the one that has waited longest has.
    #[serde(default)]
    pub queue_ms: u64,
}
