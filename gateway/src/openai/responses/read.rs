//! The fields of `POST /v1/responses`, and what they mean for a run.

use serde_json::{Value, json};
use weir_protocol::error::ErrorCode;

use super::super::format::{FormatParams, both, response_format, shape as tools_shape};
use super::super::headers::Headers;
use super::super::turns::speaks_of_tools;
use super::input::{add_item, before, items};
use super::record::{Record, ShapeView};
use crate::admit::{Input, Params, RunRequest, Sampling, Shape};
use crate::dialogue::Dialogue;
use crate::error::{ApiError, ApiResult};
use crate::http::json::Fields;
use crate::http::route::Call;
use crate::native::read::{MAX_LOGPROBS, metadata};
use crate::text::Message;

const PARAMS: Params = Params {
    prompt: "input",
    max_output: "max_output_tokens",
};
const MAX_INSTRUCTIONS_BYTES: usize = 1 << 20;
/// What can be shown beyond the answer.
pub(super) const LOGPROBS: &str = "message.output_text.logprobs";

/// Parameters that exist in `OpenAI`'s API and not here, with the values that ask for nothing and are let through.
const NEUTRAL: &[(&str, &[&str])] = &[
    ("access_programs", &[]),
    ("background_options", &[]),
    ("context_management", &["[]"]),
    ("conversation", &[]),
    ("image", &[]),
    ("max_tool_calls", &[]),
    ("moderation", &[]),
    ("prompt", &[]),
    ("prompt_cache_options", &["{}"]),
    ("reasoning", &["{}", "{\"effort\":\"none\"}"]),
    ("service_tier", &["\"auto\"", "\"default\""]),
    ("truncation", &["\"disabled\""]),
];

/// What the client asks for.
pub(super) struct Asked {
    pub(super) request: RunRequest,
    pub(super) record: Record,
    pub(super) stream: bool,
}

/// Reads a body whose `model` was taken out already.
pub(super) async fn read(
    call: &Call,
    model: String,
    mut fields: Fields,
    hash: [u8; 32],
) -> ApiResult<Asked> {
    let headers = Headers::read(call)?;
    let stream = stream(&mut fields)?;
    let mut record = Record {
        temperature: fields.peek("temperature").cloned(),
        top_p: fields.peek("top_p").cloned(),
        ..record(&mut fields)?
    };
    let (shape, tools) = shape(&mut fields, &mut record.shape)?;
    let sampling = Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", f64::MIN_POSITIVE..=1.0)?,
        logprobs: record.logprobs,
        ..Sampling::default()
    };
    refuse_unsupported(&mut fields)?;
    fields.done()?;
    let messages = conversation(call, &record).await?;
    let input = input_of(messages, tools);
    let attachment = record
        .store
        .then(|| serde_json::to_vec(&record).expect("records serialize"));
    if attachment
        .as_ref()
        .is_some_and(|kept| kept.len() > weir_store::MAX_OBJECT_BYTES)
    {
        return Err(ApiError::new(
            ErrorCode::BodyTooLarge,
            format!(
                "an input of more than {} bytes cannot be stored; send store: false",
                weir_store::MAX_OBJECT_BYTES
            ),
        )
        .param("input"));
    }
    let attended = headers.request_key.is_none() && !record.background;
    let request = RunRequest {
        trace: None,
        requested: model,
        input,
        params: PARAMS,
        max_output_tokens: record.max_output_tokens,
        request_key: headers.request_key,
        payload_hash: hash,
        deadline_ms: headers.deadline_ms,
        max_queue_ms: headers.max_queue_ms,
        priority: headers.priority,
        allow_fallback: headers.allow_fallback,
        replaces: headers.replaces,
        sampling,
        shape,
        choices: 1,
        metadata: record.metadata.clone(),
        attachment: attachment.map(Into::into),
        attended,
    };
    Ok(Asked {
        request,
        record,
        stream,
    })
}

fn stream(fields: &mut Fields) -> ApiResult<bool> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        options.boolean("include_obfuscation")?;
        options.done()?;
        if !stream {
            return Err(ApiError::invalid(
                "stream_options",
                "`stream_options` needs `stream: true`",
            ));
        }
    }
    Ok(stream)
}

fn record(fields: &mut Fields) -> ApiResult<Record> {
    let background = fields.boolean("background")?.unwrap_or(false);
    let store = fields.boolean("store")?.unwrap_or(true);
    if background && !store {
        return Err(ApiError::invalid(
            "store",
            "`background` needs `store: true`: nobody could ask for the response later",
        ));
    }
    // A hint for a cache that shares by content here anyway.
    fields.string("prompt_cache_key", 512)?;
    fields.string("prompt_cache_retention", 64)?;
    Ok(Record {
        input: items(fields)?,
        instructions: fields.string("instructions", MAX_INSTRUCTIONS_BYTES)?,
        previous_response_id: fields.string("previous_response_id", 64)?,
        background,
        store,
        max_output_tokens: fields
            .integer("max_output_tokens", 1..=u64::from(u32::MAX))?
            .map(|tokens| tokens as u32),
        logprobs: logprobs(fields)?,
        metadata: metadata(fields, "metadata")?,
        user: fields.string("user", 512)?,
        safety_identifier: fields.string("safety_identifier", 512)?,
        ..Record::default()
    })
}

fn logprobs(fields: &mut Fields) -> ApiResult<Option<u32>> {
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS)?;
    let include = fields.strings("include", 8, 128)?;
    if let Some(other) = include.iter().find(|name| *name != LOGPROBS) {
        return Err(ApiError::new(
            ErrorCode::UnsupportedParameter,
            format!("`include` of {other:?} is not supported here; there is {LOGPROBS:?}"),
        )
        .param("include"));
    }
    let shown = !include.is_empty() || top.is_some_and(|top| top > 0);
    Ok(shown.then(|| top.unwrap_or(0) as u32))
}

/// As the Responses API calls them; `text.format` is read apart.
const NAMES: FormatParams = FormatParams {
    format: "text.format",
    tools: "tools",
    choice: "tool_choice",
    parallel: "parallel_tool_calls",
};

/// What the output must look like, and how that is shown again: the one place for formats and tools.
fn shape(fields: &mut Fields, view: &mut ShapeView) -> ApiResult<(Shape, Option<Value>)> {
    if let Some(tools) = fields.peek(NAMES.tools) {
        view.tools = tools.clone();
    }
    if let Some(choice) = fields.peek(NAMES.choice) {
        view.tool_choice = choice.clone();
    }
    if let Some(parallel) = fields.peek(NAMES.parallel).and_then(Value::as_bool) {
        view.parallel_tool_calls = parallel;
    }
    let (tools, shown) = tools_shape(fields, NAMES)?;
    let mut shape = Shape::default();
    if let Some(mut text) = fields.object("text")? {
        if text
            .string("verbosity", 16)?
            .is_some_and(|word| word != "medium")
        {
            return Err(unsupported("text.verbosity"));
        }
        if let Some(format) = text.take("format") {
            view.text = json!({"format": format});
            shape = response_format(format, "text.format")?;
        }
        text.done()?;
    }
    Ok((both(shape, tools, NAMES)?, shown))
}

/// A conversation that speaks of tools is given to the template as it is.
fn input_of(messages: Vec<Value>, tools: Option<Value>) -> Input {
    if tools.is_some() || messages.iter().any(speaks_of_tools) {
        return Input::Dialogue(Dialogue { messages, tools });
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let plain = |turn: Value| Message {
        role: text(&turn["role"]),
        content: text(&turn["content"]),
    };
    Input::Chat(messages.into_iter().map(plain).collect())
}

async fn conversation(call: &Call, record: &Record) -> ApiResult<Vec<Value>> {
    let mut messages = Vec::new();
    if let Some(text) = &record.instructions {
        messages.push(json!({"role": "system", "content": text}));
    }
    if let Some(previous) = &record.previous_response_id {
        messages.extend(before(&*call.core.store, &call.tenant.name, previous).await?);
    }
    for (place, item) in record.input.iter().enumerate() {
        add_item(&mut messages, item, place)?;
    }
    Ok(messages)
}

fn refuse_unsupported(fields: &mut Fields) -> ApiResult<()> {
    for (name, neutral) in NEUTRAL {
        if let Some(value) = fields.take(name)
            && !neutral.contains(&value.to_string().as_str())
        {
            return Err(unsupported(name));
        }
    }
    Ok(())
}

fn unsupported(param: &str) -> ApiError {
    ApiError::new(
        ErrorCode::UnsupportedParameter,
        format!("`{param}` is not supported here; leave it out"),
    )
    .param(param)
}
