//! A request for a run, however it was written.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_grammar::ToolSpec;
use weir_protocol::error::ErrorCode;
use weir_protocol::worker::Grammar;
use weir_run::RunId;
use weir_telemetry::trace::TraceContext;

use crate::dialogue::Dialogue;
use crate::error::{ApiError, ApiResult};
use crate::snapshot::{Priority, Tenant};
use crate::text::Message;

/// What a client asks for, checked for shape and range.
#[derive(Clone, Debug)]
pub(crate) struct RunRequest {
    /// The trace that the client made it a part of.
    pub(crate) trace: Option<TraceContext>,
    /// The model as the client wrote it.
    pub(crate) requested: String,
    pub(crate) input: Input,
    /// What errors call the prompt and the output ceiling.
    pub(crate) params: Params,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) request_key: Option<String>,
    pub(crate) payload_hash: [u8; 32],
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) max_queue_ms: Option<u64>,
    pub(crate) priority: Option<Priority>,
    pub(crate) allow_fallback: bool,
    pub(crate) replaces: Option<RunId>,
    pub(crate) sampling: Sampling,
    /// What the output must look like.
    pub(crate) shape: Shape,
    pub(crate) choices: u32,
    pub(crate) metadata: BTreeMap<String, String>,
    /// What is kept beside the run's events for as long as they are.
    pub(crate) attachment: Option<bytes::Bytes>,
    /// Nobody but the client that is connected can learn of the run: it ends when that one leaves.
    pub(crate) attended: bool,
}

impl RunRequest {
    /// Log-probabilities of the prompt are told to whoever wrote all of it: a template adds what is the platform's.
    ///
    /// # Errors
    /// Somebody else wrote a part of it, or there are several choices.
    pub(crate) fn check_prompt_logprobs(self, param: &str) -> ApiResult<Self> {
        if self.sampling.prompt_logprobs.is_none() {
            return Ok(self);
        }
        if !matches!(self.input, Input::Text(_) | Input::Tokens(_)) {
            let what = format!(
                "`{param}` needs a raw prompt, text of a completion or token ids; with a conversation leave it out"
            );
            return Err(ApiError::invalid(param, what));
        }
        if self.choices > 1 {
            let what = format!("`{param}` says the same for every choice; ask for one choice");
            return Err(ApiError::invalid(param, what));
        }
        Ok(self)
    }
}

/// What the output must look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Shape {
    /// Anything.
    #[default]
    Free,
    /// What a grammar allows, and what errors call it.
    Grammar(Grammar, &'static str),
    /// Text, calls of tools, or both, written as the model's template writes them; and what errors call them.
    Tools(ToolSpec, &'static str),
}

/// Names of parameters in this kind of request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) prompt: &'static str,
    pub(crate) max_output: &'static str,
}

/// The prompt before tokenization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// One user's text, for the model's template.
    User(String),
    /// A conversation, likewise.
    Chat(Vec<Message>),
    /// A conversation that speaks of tools, likewise.
    Dialogue(Dialogue),
    /// Text as it is.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
}

impl Input {
    /// Bytes of text in it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::User(text) | Self::Text(text) => text.len(),
            Self::Chat(messages) => messages.iter().map(|m| m.content.len()).sum(),
            // As rendered it is about this long; tools and calls are JSON.
            Self::Dialogue(dialogue) => dialogue.bytes(),
            Self::Tokens(_) => 0,
        }
    }
}

/// Sampling fields; absent ones take the model's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) min_tokens: u32,
}

impl Input {
    /// The same with tools that the model may call. Only conversations can have some.
    pub(crate) fn with_tools(self, tools: Value, param: &str) -> ApiResult<Self> {
        let plain = |message: Message| json!({"role": message.role, "content": message.content});
        let messages = match self {
            Self::User(text) => vec![json!({"role": "user", "content": text})],
            Self::Chat(messages) => messages.into_iter().map(plain).collect(),
            Self::Dialogue(dialogue) => dialogue.messages,
            Self::Text(_) | Self::Tokens(_) => {
                let what = format!("`{param}` need a conversation; raw text and tokens have none");
                return Err(ApiError::invalid(param, what));
            }
        };
        Ok(Self::Dialogue(Dialogue {
            messages,
            tools: Some(tools),
        }))
    }
}

impl RunRequest {
    /// A grammar ends the output by itself: what would keep it from that, or end it elsewhere, is refused.
    pub(crate) fn check_shape(&self) -> ApiResult<()> {
        let sampling = &self.sampling;
        let odd = [
            ("ignore_eos", sampling.ignore_eos),
            ("min_tokens", sampling.min_tokens > 0),
            ("stop_token_ids", !sampling.stop_token_ids.is_empty()),
        ];
        match odd.iter().find(|(_, given)| *given) {
            Some((name, _)) if self.shape != Shape::Free => Err(ApiError::new(
                ErrorCode::UnsupportedParameter,
                format!(
                    "`{name}` is not possible where the output follows a format or calls tools"
                ),
            )
            .param(*name)),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_priority(&self, tenant: &Tenant) -> ApiResult<()> {
        match self.priority {
            Some(asked) if asked < tenant.priority => Err(ApiError::new(
                ErrorCode::PriorityNotPermitted,
                format!(
                    "this key may ask for priority {:?} at most, not {:?}",
                    tenant.priority.as_str(),
                    asked.as_str()
                ),
            )
            .param("priority")),
            _ => Ok(()),
        }
    }
}

/// The id of the run to be replaced.
pub(crate) fn parse_replaces(text: &str, param: &str) -> ApiResult<RunId> {
    text.parse()
        .map_err(|error| ApiError::invalid(param, format!("{text:?} is {error}")))
}
