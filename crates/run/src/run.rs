//! A run and the states it can be in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Epoch, FinishReason, RunId, Sequence, Verdict};

/// Where a run is. Terminal states never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Intent and reservation are durable; not yet on a worker.
    Accepted,
    /// On a worker.
    Running,
    /// A cancellation was recorded; the worker has not confirmed yet.
    Cancelling,
    /// Terminal: the model ended or reached the ceiling.
    Completed,
    /// Terminal: cancelled by its owner.
    Cancelled,
    /// Terminal: its worker or gateway was lost; what was produced is kept and billed.
    Interrupted,
    /// Terminal: the engine or the version could not carry it out.
    Failed,
    /// Terminal: its deadline passed.
    Expired,
}

impl RunStatus {
    /// The statuses that nothing can follow.
    pub const TERMINAL: [Self; 5] = [
        Self::Completed,
        Self::Cancelled,
        Self::Interrupted,
        Self::Failed,
        Self::Expired,
    ];

    /// Whether nothing can follow.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Accepted | Self::Running | Self::Cancelling)
    }

    /// The word used in the contract.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Expired => "expired",
        }
    }
}

/// Why the run has the version it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The stable version.
    Stable,
    /// The coin chose the canary.
    Canary,
    /// The request named the version.
    Pinned,
    /// A permitted smaller model.
    Fallback,
}

/// How the version was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The model the client named.
    pub requested: String,
    /// Why this version.
    pub reason: DecisionReason,
    /// Worker that took it, once dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What was expected of it.
    #[serde(flatten)]
    pub expected: Expected,
}

/// What was known when a run was let in and sent; absent where it was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expected {
    /// Wait in the queue, as estimated at admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_ms: Option<u64>,
    /// Generation of the routing table whose coin alone chose the version: the run is evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// From its dispatch to its first token, as predicted of the worker that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<u64>,
    /// Prompt tokens that the worker was thought to have in its prefix cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_tokens: Option<u64>,
}

/// A worker took a run up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Prompt tokens whose KV it reused.
    pub cached_tokens: u64,
    /// Which worker.
    pub worker: String,
    /// As in [`Expected`].
    pub predicted_ms: Option<u64>,
    /// As in [`Expected`].
    pub affinity_tokens: Option<u64>,
}

/// Micro-units per token, fixed when the run was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    /// For prompt tokens that were computed.
    pub prompt_micros_per_token: u64,
    /// For prompt tokens whose KV was reused.
    pub cached_micros_per_token: u64,
    /// For output tokens.
    pub output_micros_per_token: u64,
}

impl Price {
    /// What a usage costs; saturates rather than wraps.
    pub fn cost(&self, prompt_tokens: u64, cached_tokens: u64, output_tokens: u64) -> u64 {
        let cached = cached_tokens.min(prompt_tokens);
        (prompt_tokens - cached)
            .saturating_mul(self.prompt_micros_per_token)
            .saturating_add(cached.saturating_mul(self.cached_micros_per_token))
            .saturating_add(output_tokens.saturating_mul(self.output_micros_per_token))
    }

    /// The most that a run can cost, whatever share of its prompt is cached: what a run reserves.
    pub fn worst_case(&self, prompt_tokens: u64, output_tokens: u64) -> u64 {
        let per_prompt_token = self
            .prompt_micros_per_token
            .max(self.cached_micros_per_token);
        prompt_tokens
            .saturating_mul(per_prompt_token)
            .saturating_add(output_tokens.saturating_mul(self.output_micros_per_token))
    }
}

/// The durable row of a run. Times are milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its identity.
    pub id: RunId,
    /// Who owns it; part of every lookup.
    pub tenant: String,
    /// The client's name for it, unique within the tenant.
    pub request_key: Option<String>,
    /// Over the canonical body without `requestKey` and `deadline`.
    pub payload_hash: [u8; 32],
    /// The model that serves it.
    pub model: String,
    /// The pinned version.
    pub model_version: u32,
    /// The pinned version's manifest.
    pub manifest_digest: String,
    /// The pool it runs in.
    pub pool: String,
    /// How the version was chosen.
    pub decision: Decision,
    /// Where it is.
    pub status: RunStatus,
    /// Its present writer.
    pub epoch: Epoch,
    /// Number of choices.
    pub choices: u32,
    /// Exact tokens of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens whose KV was reused.
    pub cached_tokens: u64,
    /// Output tokens in the event log.
    pub output_tokens: u64,
    /// Rows of worker output in the event log: the index to attach from.
    pub output_index: u64,
    /// Prompt plus ceiling over all choices.
    pub reserved_tokens: u64,
    /// Worst-case cost reserved.
    pub reserved_micros: u64,
    /// Price in force when it was accepted.
    pub price: Price,
    /// Cost, once settled.
    pub cost_micros: Option<u64>,
    /// Last event in the log.
    pub last_sequence: Sequence,
    /// Accepted at.
    pub created_at_ms: u64,
    /// Taken up by a worker at.
    pub started_at_ms: Option<u64>,
    /// First delta durable at.
    pub first_token_at_ms: Option<u64>,
    /// Terminal at.
    pub finished_at_ms: Option<u64>,
    /// Must have ended at.
    pub deadline_ms: Option<u64>,
    /// How a completed run ended.
    pub finish_reason: Option<FinishReason>,
    /// Why a run ended short of completion.
    pub error: Option<String>,
    /// The run this one replaces.
    pub replaces: Option<RunId>,
    /// The run that replaces this one.
    pub replaced_by: Option<RunId>,
    /// Events are kept until then, once terminal.
    pub events_expire_at_ms: u64,
    /// The client's labels.
    pub metadata: BTreeMap<String, String>,
    /// Which of the tenant's keys or identities asked.
    pub caller: Option<String>,
    /// What policies decided about it, each rule once.
    pub verdicts: Vec<Verdict>,
}

/// What a worker needs to carry a run out; kept until the run is terminal, so that an accepted run survives a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkOrder {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// The worker protocol's `Submit`, encoded, without run, epoch, prompt and credit.
    pub submit: Vec<u8>,
    /// 0 interactive, 1 standard, 2 batch.
    pub priority: u8,
    /// Longest wait in the queue the client accepts, from acceptance.
    pub max_queue_ms: Option<u64>,
    /// Only the client that is connected can learn of it: it ends when that one leaves.
    #[serde(default)]
    pub attended: bool,
}
