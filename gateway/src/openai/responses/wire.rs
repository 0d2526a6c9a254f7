//! The objects of the Responses API, with the fields its clients read.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};
use weir_run::{TokenLogprob, Usage};

use super::super::called::WholeCall;
use super::record::Record;

/// A response.
pub(crate) struct ResponseView<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) status: &'static str,
    pub(super) completed_at: Option<u64>,
    pub(super) background: bool,
    pub(super) error: Option<Value>,
    pub(super) incomplete_details: Option<Value>,
    pub(super) model: &'a str,
    pub(super) output: Vec<Item<'a>>,
    pub(super) usage: Option<Value>,
    pub(super) record: &'a Record,
}

impl Serialize for ResponseView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = self.record;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", self.id)?;
        map.serialize_entry("object", self.object)?;
        map.serialize_entry("created_at", &self.created_at)?;
        map.serialize_entry("status", self.status)?;
        map.serialize_entry("background", &self.background)?;
        map.serialize_entry("completed_at", &self.completed_at)?;
        map.serialize_entry("error", &self.error)?;
        map.serialize_entry("incomplete_details", &self.incomplete_details)?;
        map.serialize_entry("instructions", &record.instructions)?;
        map.serialize_entry("max_output_tokens", &record.max_output_tokens)?;
        map.serialize_entry("metadata", &record.metadata)?;
        map.serialize_entry("model", self.model)?;
        map.serialize_entry("output", &self.output)?;
        map.serialize_entry("parallel_tool_calls", &record.shape.parallel_tool_calls)?;
        map.serialize_entry("previous_response_id", &record.previous_response_id)?;
        map.serialize_entry("safety_identifier", &record.safety_identifier)?;
        map.serialize_entry("store", &record.store)?;
        map.serialize_entry("temperature", &record.temperature)?;
        map.serialize_entry("text", &record.shape.text)?;
        map.serialize_entry("tool_choice", &record.shape.tool_choice)?;
        map.serialize_entry("tools", &record.shape.tools)?;
        map.serialize_entry("top_logprobs", &record.logprobs.unwrap_or(0))?;
        map.serialize_entry("top_p", &record.top_p)?;
        map.serialize_entry("truncation", "disabled")?;
        map.serialize_entry("usage", &self.usage)?;
        map.serialize_entry("user", &record.user)?;
        map.end()
    }
}

/// An output item.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Item<'a> {
    /// Text.
    Message {
        id: &'a str,
        r#type: &'static str,
        status: &'static str,
        role: &'static str,
        content: Vec<Part<'a>>,
    },
    /// A call of a function.
    Call {
        id: String,
        r#type: &'static str,
        status: &'static str,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
}

impl<'a> Item<'a> {
    pub(super) fn message(id: &'a str, status: &'static str, part: Option<Part<'a>>) -> Self {
        Self::Message {
            id,
            r#type: "message",
            status,
            role: "assistant",
            content: part.into_iter().collect(),
        }
    }

    /// With as much of its arguments as is to be shown.
    pub(super) fn call(
        id: String,
        status: &'static str,
        call: &'a WholeCall,
        arguments: &'a str,
    ) -> Self {
        Self::Call {
            id,
            r#type: "function_call",
            status,
            call_id: &call.id,
            name: &call.function.name,
            arguments,
        }
    }
}

/// A part of a message.
#[derive(Serialize)]
pub(crate) struct Part<'a> {
    r#type: &'static str,
    annotations: [Value; 0],
    logprobs: Vec<TokenView<'a>>,
    text: &'a str,
}

impl<'a> Part<'a> {
    pub(super) fn text(text: &'a str, logprobs: Option<&'a [TokenLogprob]>) -> Self {
        Self {
            r#type: "output_text",
            annotations: [],
            logprobs: list(logprobs.unwrap_or_default()),
            text,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct TokenView<'a> {
    token: &'a str,
    bytes: &'a [u8],
    logprob: f32,
    top_logprobs: Vec<Top<'a>>,
}

#[derive(Serialize)]
struct Top<'a> {
    token: &'a str,
    bytes: &'a [u8],
    logprob: f32,
}

pub(super) fn list(tokens: &[TokenLogprob]) -> Vec<TokenView<'_>> {
    tokens
        .iter()
        .map(|token| TokenView {
            token: &token.token,
            bytes: &token.bytes,
            logprob: token.logprob,
            top_logprobs: token
                .top
                .iter()
                .map(|top| Top {
                    token: &top.token,
                    bytes: &top.bytes,
                    logprob: top.logprob,
                })
                .collect(),
        })
        .collect()
}

pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    })
}
