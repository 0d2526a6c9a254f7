//! The events of a run. An event's JSON is made once, stored, and sent as it is: replay is the same bytes by construction.

use serde::{Deserialize, Serialize};

use crate::{RunId, Sequence};

/// How a completed run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token, a stop id or a stop string.
    Stop,
    /// The output ceiling or the end of the context.
    Length,
}

/// What a run consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens whose KV was reused.
    pub cached_tokens: u64,
    /// Tokens generated, over all choices.
    pub output_tokens: u64,
    /// Price of it all.
    pub cost_micros: u64,
}

/// A token's log-probability in a delta.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenLogprob {
    /// The token's text; lossy where its bytes are not UTF-8.
    pub token: String,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// From the raw logits.
    pub logprob: f32,
    /// The best alternatives, best first, each without alternatives of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TokenLogprob>,
}

/// What happened. The variant's name in snake case is the SSE `event`, its fields with `sequence` are the SSE `data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum EventKind {
    /// Intent and reservation are durable.
    Accepted {
        /// The run.
        run_id: RunId,
        /// The pinned version.
        model_version: u32,
        /// Prompt plus output ceiling over all choices.
        reserved_tokens: u64,
    },
    /// A worker took it up.
    Started {
        /// From accepted to the worker's first step for it.
        queue_ms: u64,
    },
    /// Output. Every billed token is in exactly one delta.
    Delta {
        /// May be empty: an end token, text held back.
        text: String,
        /// Billed tokens in it.
        tokens: u32,
        /// Which choice, absent for the first.
        #[serde(default, skip_serializing_if = "is_zero")]
        choice: u32,
        /// One entry per token, where asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
        /// Set on the last delta of a choice when the run has several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        choice_finish_reason: Option<FinishReason>,
    },
    /// The model ended or reached the ceiling.
    Completed {
        /// Always `completed`.
        status: String,
        /// Why.
        finish_reason: FinishReason,
        /// What it consumed.
        usage: Usage,
    },
    /// Ended short of completion: `cancelled`, `interrupted`, `failed` or `expired`, as `status` says.
    Ended {
        /// The terminal status.
        status: String,
        /// Why, for people.
        reason: String,
        /// What it consumed until then.
        usage: Usage,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(choice: &u32) -> bool {
    *choice == 0
}

/// A numbered event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// From 1, without gaps.
    pub sequence: Sequence,
    /// What happened.
    pub kind: EventKind,
}
