//! The events of a run. An event's JSON is made once, stored, and sent as it is: replay is the same bytes by construction.

use serde::{Deserialize, Serialize};

use crate::{RunId, RunStatus, Sequence};

/// How a completed run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token, a stop id or a stop string.
    Stop,
    /// The output ceiling or the end of the context.
    Length,
    /// A policy stopped the output.
    ContentFilter,
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

/// Tokens of a run that were computed before the ones in front of them were known. They are no part of what is billed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Guesses {
    /// Guessed and computed.
    pub drafted_tokens: u64,
    /// Those that came true: each saved a step, and is one of the output tokens.
    pub accepted_tokens: u64,
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

/// A token of the prompt, and what the model expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptLogprob {
    /// The token's text; lossy where its bytes are not UTF-8.
    pub token: String,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// From the raw logits; null for the first, before which there is nothing.
    pub logprob: Option<f32>,
    /// The best alternatives, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TokenLogprob>,
}

/// A piece of a call of a tool in a delta. `id` and `name` come with the first piece of each index, then parts of the arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallDelta {
    /// Which call of the choice, from 0.
    pub index: u32,
    /// The call's id, in its first piece.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The tool, in its first piece.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// A part of the arguments' JSON.
    #[serde(default)]
    pub arguments: String,
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
        /// The next tokens of the prompt, where asked for; all come before the first token of output of the first choice.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        prompt_logprobs: Vec<PromptLogprob>,
        /// Pieces of calls of tools, where the run has tools.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCallDelta>,
        /// Set on the last delta of a choice when the run has several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        choice_finish_reason: Option<FinishReason>,
    },
    /// The model ended or reached the ceiling.
    Completed {
        /// Always [`RunStatus::Completed`].
        status: RunStatus,
        /// Why.
        finish_reason: FinishReason,
        /// What it consumed.
        usage: Usage,
        /// Where tokens were guessed ahead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guesses: Option<Guesses>,
    },
    /// Ended short of completion: `cancelled`, `interrupted`, `failed` or `expired`, as `status` says.
    Ended {
        /// A terminal status, not [`RunStatus::Completed`].
        status: RunStatus,
        /// Why, for people.
        reason: String,
        /// What it consumed until then.
        usage: Usage,
    },
}

impl EventKind {
    /// The SSE `event`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Started { .. } => "started",
            Self::Delta { .. } => "delta",
            Self::Completed { .. } => RunStatus::Completed.as_str(),
            Self::Ended { status, .. } => status.as_str(),
        }
    }

    /// The end of a run that the model finished.
    pub fn completed(finish_reason: FinishReason, usage: Usage) -> Self {
        Self::Completed {
            status: RunStatus::Completed,
            finish_reason,
            usage,
            guesses: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(choice: &u32) -> bool {
    *choice == 0
}

/// A numbered event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// From 1, without gaps.
    pub sequence: Sequence,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Stored bytes are not an event.
#[derive(Debug, thiserror::Error)]
pub enum DecodeEventError {
    /// Not JSON of any kind of event.
    #[error("cannot read an event of kind {kind:?}")]
    Json {
        /// The kind it was stored with.
        kind: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The JSON is of another kind than it was stored with.
    #[error("an event stored as {stored:?} reads as {found:?}")]
    Kind {
        /// The kind it was stored with.
        stored: String,
        /// What the fields say.
        found: &'static str,
    },
}

impl Event {
    /// The SSE `data`: one line of JSON, `sequence` first.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an event has string keys and no failing field")
    }

    /// The event whose SSE `event` and `data` these are.
    ///
    /// # Errors
    /// When the two do not make an event.
    pub fn decode(kind: &str, data: &[u8]) -> Result<Self, DecodeEventError> {
        let event: Self =
            serde_json::from_slice(data).map_err(|source| DecodeEventError::Json {
                kind: kind.to_owned(),
                source,
            })?;
        let found = event.kind.name();
        if found == kind {
            Ok(event)
        } else {
            Err(DecodeEventError::Kind {
                stored: kind.to_owned(),
                found,
            })
        }
    }
}

/// The name of an event as it is kept in memory, `None` if there is no such kind.
pub fn event_name(text: &str) -> Option<&'static str> {
    ["accepted", "started", "delta"]
        .into_iter()
        .chain(RunStatus::TERMINAL.map(RunStatus::as_str))
        .find(|name| *name == text)
}

#[cfg(test)]
mod tests;
