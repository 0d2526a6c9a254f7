//! Pieces of a worker's rows as events have them.

use weir_protocol::worker::{Logprob, PromptToken, ToolCall, logprob::Top};
use weir_run::{PromptLogprob, TokenLogprob, ToolCallDelta};

/// A row that cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {found} came where row {expected} was due")]
pub(crate) struct RowGap {
    pub(super) expected: u64,
    pub(super) found: u64,
}

pub(super) fn tool_call(given: ToolCall) -> ToolCallDelta {
    let ToolCall {
        index,
        id,
        name,
        arguments,
    } = given;
    ToolCallDelta {
        index,
        id,
        name,
        arguments,
    }
}

pub(super) fn token_logprob(given: Logprob) -> TokenLogprob {
    TokenLogprob {
        token: given.token,
        bytes: given.token_bytes.to_vec(),
        logprob: given.logprob,
        top: alternatives(given.top),
    }
}

pub(super) fn prompt_logprob(given: PromptToken) -> PromptLogprob {
    PromptLogprob {
        token: given.token,
        bytes: given.token_bytes.to_vec(),
        logprob: given.logprob,
        top: alternatives(given.top),
    }
}

fn alternatives(given: Vec<Top>) -> Vec<TokenLogprob> {
    let top = given.into_iter().map(|top| TokenLogprob {
        token: top.token,
        bytes: top.token_bytes.to_vec(),
        logprob: top.logprob,
        top: Vec::new(),
    });
    top.collect()
}
