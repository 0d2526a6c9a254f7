//! What a run was billed: one link of its tenant's ledger.

use serde::{Deserialize, Serialize};
use weir_run::{Price, Run, RunId, RunStatus, Usage};

use crate::{Day, rfc3339};

/// What a run was billed. Written once, in the commit that ends the run and settles its reservation; never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageRecord {
    /// The run.
    pub run: RunId,
    /// Who pays.
    pub tenant: String,
    /// Who called: the key's name or the subject of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The model that served it.
    pub model: String,
    /// The version that served it.
    pub version: u32,
    /// That version's manifest.
    pub manifest: String,
    /// How it ended.
    pub status: RunStatus,
    /// What it consumed, and what that cost.
    #[serde(flatten)]
    pub usage: Usage,
    /// The prices it was accepted under.
    pub price: Price,
    /// When it was accepted: the windows of this moment bear it.
    pub accepted_at: String,
    /// When it ended.
    pub settled_at: String,
}

impl UsageRecord {
    /// Of a run that has just ended.
    pub fn of(run: &Run) -> Self {
        Self {
            run: run.id,
            tenant: run.tenant.clone(),
            caller: run.caller.clone(),
            model: run.model.clone(),
            version: run.model_version,
            manifest: run.manifest_digest.clone(),
            status: run.status,
            usage: run.usage(),
            price: run.price,
            accepted_at: rfc3339(run.created_at_ms),
            settled_at: rfc3339(run.finished_at_ms.unwrap_or(run.created_at_ms)),
        }
    }

    /// The UTC day on which it was accepted.
    pub fn day(&self) -> Option<Day> {
        self.accepted_at.get(..10)?.parse().ok()
    }

    /// The line.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is names and numbers")
    }

    /// From its line.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}
