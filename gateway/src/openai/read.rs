//! The fields of chat and completion requests, and what they mean for a run.

use std::ops::RangeInclusive;

use serde_json::Value;
use weir_protocol::error::ErrorCode;

use super::format::{CHAT, shape};
use super::headers::Headers;
use super::turns::messages;
use super::{Echo, Kind, Presentation};
use crate::admit::{Input, Params, RunRequest, Sampling};
use crate::error::{ApiError, ApiResult};
use crate::http::json::Fields;
use crate::http::route::Call;
use crate::native::read::{MAX_CHOICES, MAX_LOGPROBS, metadata, token_ids};

/// `OpenAI`'s documents say 4; its clients send what they like.
const MAX_STOP: usize = 16;
const MAX_STOP_BYTES: usize = 256;
const TOKENS: RangeInclusive<u64> = 1..=u32::MAX as u64;

/// Parameters that exist in `OpenAI`'s API and not here, with the values that ask for nothing and are let through.
const NEUTRAL: &[(&str, &[&str])] = &[
    ("audio", &[]),
    ("best_of", &["1"]),
    ("echo", &["false"]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("logit_bias", &["{}"]),
    ("modalities", &["[\"text\"]"]),
    ("moderation", &[]),
    ("prediction", &[]),
    ("prompt_cache_key", &[]),
    ("prompt_cache_retention", &[]),
    ("reasoning_effort", &["\"none\""]),
    ("service_tier", &["\"auto\"", "\"default\""]),
    ("store", &["false"]),
    ("suffix", &["\"\""]),
    ("verbosity", &["\"medium\""]),
    ("web_search_options", &[]),
];

/// Reads a body whose `model` was taken out already.
pub(super) fn read(
    call: &Call,
    kind: Kind,
    model: String,
    mut fields: Fields,
    hash: [u8; 32],
) -> ApiResult<(RunRequest, Presentation)> {
    let params = Params {
        prompt: if kind == Kind::Chat {
            "messages"
        } else {
            "prompt"
        },
        max_output: if fields.has("max_completion_tokens") {
            "max_completion_tokens"
        } else {
            "max_tokens"
        },
    };
    let mut input = match kind {
        Kind::Chat => messages(&mut fields)?,
        Kind::Completion => prompt(&mut fields)?,
    };
    let (shape, tools) = shape(&mut fields, CHAT)?;
    if let Some(tools) = tools {
        input = input.with_tools(tools, CHAT.tools)?;
    }
    let mut presentation = presentation(kind, &mut fields)?;
    if kind == Kind::Completion && fields.boolean("echo")?.unwrap_or(false) {
        presentation.echo = Some(match &input {
            Input::Text(text) => Echo::Text(text.clone()),
            _ => Echo::Tokens,
        });
    }
    let sampling = sampling(&mut fields, &presentation)?;
    let max_output_tokens = max_tokens(kind, &mut fields)?;
    let choices = fields.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as u32;
    let mut labels = metadata(&mut fields, "metadata")?;
    for name in ["user", "safety_identifier"] {
        if let Some(user) = fields.string(name, 512)? {
            labels.insert(name.to_owned(), user);
        }
    }
    refuse_unsupported(&mut fields)?;
    fields.done()?;
    let headers = Headers::read(call)?;
    let attended = headers.request_key.is_none();
    let request = RunRequest {
        trace: None,
        requested: model,
        input,
        params,
        max_output_tokens,
        request_key: headers.request_key,
        payload_hash: hash,
        deadline_ms: headers.deadline_ms,
        max_queue_ms: headers.max_queue_ms,
        priority: headers.priority,
        allow_fallback: headers.allow_fallback,
        replaces: headers.replaces,
        sampling,
        shape,
        choices,
        metadata: labels,
        attachment: None,
        attended,
    };
    Ok((request.check_prompt_logprobs("echo")?, presentation))
}

fn prompt(fields: &mut Fields) -> ApiResult<Input> {
    const WANT: &str = "`prompt` must be one text or one list of token ids";
    match fields.take("prompt") {
        Some(Value::String(text)) => Ok(Input::Text(text)),
        Some(Value::Array(mut list)) => match (list.first(), list.len()) {
            (Some(Value::Number(_)), _) => token_ids(&list, "prompt").map(Input::Tokens),
            (Some(Value::String(_)), 1) => match list.remove(0) {
                Value::String(text) => Ok(Input::Text(text)),
                _ => Err(ApiError::invalid("prompt", WANT)),
            },
            (Some(Value::Array(tokens)), 1) => token_ids(tokens, "prompt").map(Input::Tokens),
            (Some(_), 2..) => Err(ApiError::new(
                ErrorCode::UnsupportedParameter,
                "several prompts in one call are not supported; send one call for each",
            )
            .param("prompt")),
            _ => Err(ApiError::invalid("prompt", WANT)),
        },
        None => Err(ApiError::invalid("prompt", "`prompt` is missing")),
        Some(_) => Err(ApiError::invalid("prompt", WANT)),
    }
}

fn presentation(kind: Kind, fields: &mut Fields) -> ApiResult<Presentation> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        include_usage = options.boolean("include_usage")?.unwrap_or(false);
        options.boolean("include_obfuscation")?;
        options.done()?;
        if !stream {
            return Err(ApiError::invalid(
                "stream_options",
                "`stream_options` needs `stream: true`",
            ));
        }
    }
    let logprobs = match kind {
        Kind::Chat => {
            let shown = fields.boolean("logprobs")?.unwrap_or(false);
            let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS)?;
            match (shown, top) {
                (true, top) => Some(top.unwrap_or(0) as u32),
                (false, None | Some(0)) => None,
                (false, Some(_)) => {
                    return Err(ApiError::invalid(
                        "top_logprobs",
                        "`top_logprobs` needs `logprobs: true`",
                    ));
                }
            }
        }
        Kind::Completion => fields
            .integer("logprobs", 0..=MAX_LOGPROBS)?
            .map(|top| top as u32),
    };
    Ok(Presentation {
        kind,
        stream,
        include_usage,
        logprobs,
        echo: None,
    })
}

fn sampling(fields: &mut Fields, presentation: &Presentation) -> ApiResult<Sampling> {
    let stop_token_ids = match fields.take("stop_token_ids") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.len() <= MAX_STOP => token_ids(&list, "stop_token_ids")?,
        Some(_) => {
            return Err(ApiError::invalid(
                "stop_token_ids",
                "`stop_token_ids` must be a short list of token ids",
            ));
        }
    };
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", f64::MIN_POSITIVE..=1.0)?,
        // From here on what other servers added and clients use.
        top_k: top_k(fields)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        seed: seed(fields)?,
        stop: fields.strings("stop", MAX_STOP, MAX_STOP_BYTES)?,
        stop_token_ids,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?,
        logprobs: presentation.logprobs,
        // The text of token ids comes with them.
        prompt_logprobs: match (&presentation.echo, presentation.logprobs) {
            (None, _) | (Some(Echo::Text(_)), None) => None,
            (Some(_), alternatives) => Some(alternatives.unwrap_or(0)),
        },
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        min_tokens: fields
            .integer("min_tokens", 0..=u64::from(u32::MAX))?
            .unwrap_or(0) as u32,
    })
}

/// -1 means off, as elsewhere.
fn top_k(fields: &mut Fields) -> ApiResult<Option<u32>> {
    if fields.peek("top_k").and_then(Value::as_i64) == Some(-1) {
        fields.take("top_k");
        return Ok(Some(0));
    }
    let top_k = fields.integer("top_k", 0..=u64::from(u32::MAX))?;
    Ok(top_k.map(|k| k as u32))
}

/// Any 64-bit integer, negative ones too.
fn seed(fields: &mut Fields) -> ApiResult<Option<u64>> {
    if let Some(seed) = fields.peek("seed").and_then(Value::as_i64)
        && seed < 0
    {
        fields.take("seed");
        return Ok(Some(seed.cast_unsigned()));
    }
    fields.integer("seed", 0..=u64::MAX)
}

fn max_tokens(kind: Kind, fields: &mut Fields) -> ApiResult<Option<u32>> {
    let new = match kind {
        Kind::Chat => fields.integer("max_completion_tokens", TOKENS)?,
        Kind::Completion => None,
    };
    let old = fields.integer("max_tokens", TOKENS)?;
    match (new, old) {
        (Some(new), Some(old)) if new != old => Err(ApiError::invalid(
            "max_tokens",
            "`max_tokens` and `max_completion_tokens` differ; send one",
        )),
        // OpenAI's completions end after 16 tokens where nothing is said; ours follow the tenant's and the model's limits.
        (new, old) => Ok(new.or(old).map(|tokens| tokens as u32)),
    }
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

pub(super) fn unsupported(param: &str) -> ApiError {
    ApiError::new(
        ErrorCode::UnsupportedParameter,
        format!("`{param}` is not supported here; leave it out"),
    )
    .param(param)
}
