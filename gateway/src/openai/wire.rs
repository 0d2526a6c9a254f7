//! The objects of `OpenAI`'s API, with the fields its clients read.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value};
use weir_run::{FinishReason, Guesses, PromptLogprob, TokenLogprob, ToolCallDelta, Usage};

use super::called::WholeCall;

#[derive(Serialize)]
pub(super) struct ChatChunk<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: &'a [ChunkChoice<'a>],
    /// Present, and null until the last chunk, when the client asked for usage; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(
        clippy::option_option,
        reason = "absent, null and a value are three answers here"
    )]
    pub(super) usage: Option<Option<OpenAiUsage>>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ChunkChoice<'a> {
    Chat {
        index: u32,
        delta: Delta<'a>,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<EndedBy>,
    },
    Completion {
        index: u32,
        text: Cow<'a, str>,
        logprobs: Option<CompletionLogprobs>,
        finish_reason: Option<EndedBy>,
    },
}

#[derive(Default, Serialize)]
pub(super) struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<CallDelta>,
}

/// A piece of a call, as clients put them together by `index`.
#[derive(Serialize)]
pub(super) struct CallDelta {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl From<ToolCallDelta> for CallDelta {
    fn from(piece: ToolCallDelta) -> Self {
        let first = !piece.name.is_empty();
        Self {
            index: piece.index,
            id: first.then_some(piece.id),
            r#type: first.then_some("function"),
            function: FunctionDelta {
                name: first.then_some(piece.name),
                arguments: piece.arguments,
            },
        }
    }
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EndedBy {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

impl EndedBy {
    /// A choice that called something and came to its end says so.
    pub(crate) fn new(reason: FinishReason, called: bool) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::ContentFilter => Self::ContentFilter,
            FinishReason::Stop if called => Self::ToolCalls,
            FinishReason::Stop => Self::Stop,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Answer<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<AnswerChoice>,
    pub(super) usage: OpenAiUsage,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum AnswerChoice {
    Chat {
        index: u32,
        message: AnswerMessage,
        logprobs: Option<ChatLogprobs>,
        finish_reason: EndedBy,
    },
    Completion {
        index: u32,
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish_reason: EndedBy,
    },
}

#[derive(Serialize)]
pub(super) struct AnswerMessage {
    pub(super) role: &'static str,
    /// Null where the answer is calls alone.
    pub(super) content: Option<String>,
    pub(super) refusal: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<WholeCall>,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct OpenAiUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

#[derive(Clone, Copy, Serialize)]
#[expect(
    clippy::struct_field_names,
    reason = "clients know them by these names"
)]
struct CompletionDetails {
    reasoning_tokens: u64,
    /// Tokens guessed ahead that came true; they are among the completion's.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<u64>,
    /// Tokens guessed ahead that did not; they are among nobody's, and not billed.
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<u64>,
}

impl OpenAiUsage {
    pub(super) fn new(usage: Usage, guesses: Option<Guesses>) -> Self {
        let rejected = |guesses: Guesses| {
            guesses
                .drafted_tokens
                .saturating_sub(guesses.accepted_tokens)
        };
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: usage.cached_tokens,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: 0,
                accepted_prediction_tokens: guesses.map(|guesses| guesses.accepted_tokens),
                rejected_prediction_tokens: guesses.map(rejected),
            },
        }
    }
}

#[derive(Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct ChatLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Serialize)]
struct TopLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl From<Vec<TokenLogprob>> for ChatLogprobs {
    fn from(tokens: Vec<TokenLogprob>) -> Self {
        let content = tokens
            .into_iter()
            .map(|token| ChatLogprob {
                token: token.token,
                logprob: token.logprob,
                bytes: token.bytes,
                top_logprobs: token
                    .top
                    .into_iter()
                    .map(|top| TopLogprob {
                        token: top.token,
                        logprob: top.logprob,
                        bytes: top.bytes,
                    })
                    .collect(),
            })
            .collect();
        Self {
            content,
            refusal: None,
        }
    }
}

#[derive(Serialize)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    text_offset: Vec<u64>,
}

impl CompletionLogprobs {
    /// `offset` is where the first token begins in the text, in characters; a prompt that is echoed comes before the output.
    pub(super) fn new(
        prompt: &[PromptLogprob],
        tokens: Vec<TokenLogprob>,
        (top, offset): (u32, &mut u64),
    ) -> Self {
        let mut made = Self {
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: (top > 0).then(Vec::new),
            text_offset: Vec::new(),
        };
        for token in prompt {
            made.push(token.token.clone(), token.logprob, &token.top, offset);
        }
        for token in tokens {
            made.push(token.token, Some(token.logprob), &token.top, offset);
        }
        made
    }

    fn push(
        &mut self,
        token: String,
        logprob: Option<f32>,
        top: &[TokenLogprob],
        offset: &mut u64,
    ) {
        self.text_offset.push(*offset);
        *offset += token.chars().count() as u64;
        if let Some(tops) = &mut self.top_logprobs {
            let alternatives = top.iter();
            let alternatives = alternatives.map(|top| (top.token.clone(), top.logprob.into()));
            tops.push(logprob.map(|_| alternatives.collect()));
        }
        self.token_logprobs.push(logprob);
        self.tokens.push(token);
    }
}
