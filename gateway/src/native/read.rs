//! The fields of `POST /inference`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::admit::{Input, Params, RunRequest, Sampling, parse_replaces};
use crate::clock::parse_rfc3339;
use crate::dialogue::Dialogue;
use crate::error::{ApiError, ApiResult};
use crate::http::json::{Fields, whole};
use crate::openai::format::{FormatParams, shape};
use crate::openai::turns::{speaks_of_tools, with_calls};
use crate::snapshot::Priority;
use crate::text::Message;

/// Longest name a client may give to a request.
pub(crate) const MAX_KEY_BYTES: usize = 256;
const MAX_METADATA: usize = 16;
const MAX_LABEL_BYTES: usize = 512;
const MAX_STOP: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Most choices of one run.
pub(crate) const MAX_CHOICES: u64 = 16;
/// Most alternatives for each token.
pub(crate) const MAX_LOGPROBS: u64 = 20;
const MAX_TOKENS: u64 = u32::MAX as u64;

const PARAMS: Params = Params {
    prompt: "input",
    max_output: "maxOutputTokens",
};

const NATIVE: FormatParams = FormatParams {
    format: "responseFormat",
    tools: "tools",
    choice: "toolChoice",
    parallel: "parallelToolCalls",
};

/// Everything but `model`, which was taken out before.
pub(super) fn read_request(
    mut fields: Fields,
    model: String,
    payload_hash: [u8; 32],
) -> ApiResult<RunRequest> {
    let mut input = input(&mut fields)?;
    let (shape, tools) = shape(&mut fields, NATIVE)?;
    if let Some(tools) = tools {
        input = input.with_tools(tools, NATIVE.tools)?;
    }
    let request = RunRequest {
        trace: None,
        requested: model,
        input,
        params: PARAMS,
        max_output_tokens: fields
            .integer("maxOutputTokens", 1..=MAX_TOKENS)?
            .map(|n| n as u32),
        request_key: request_key(fields.string("requestKey", MAX_KEY_BYTES)?, "requestKey")?,
        payload_hash,
        deadline_ms: fields
            .string("deadline", 64)?
            .map(|text| deadline(&text, "deadline"))
            .transpose()?,
        max_queue_ms: fields.integer("maxQueueMs", 0..=86_400_000)?,
        priority: fields
            .string("priority", 32)?
            .map(|word| priority(&word, "priority"))
            .transpose()?,
        allow_fallback: fields.boolean("allowFallback")?.unwrap_or(false),
        replaces: fields
            .string("replaces", 64)?
            .map(|text| parse_replaces(&text, "replaces"))
            .transpose()?,
        sampling: fields
            .object("sampling")?
            .map(sampling)
            .transpose()?
            .unwrap_or_default(),
        shape,
        choices: fields.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as u32,
        metadata: metadata(&mut fields, "metadata")?,
        attachment: None,
        attended: false,
    };
    fields.done()?;
    request.check_prompt_logprobs("sampling.promptLogprobs")
}

fn input(fields: &mut Fields) -> ApiResult<Input> {
    const WANT: &str =
        "`input` must be text, a list of {role, content}, or {\"tokens\": [token ids]}";
    match fields.take("input") {
        None => Err(ApiError::invalid(
            "input",
            format!("`input` is missing: {WANT}"),
        )),
        Some(Value::String(text)) => Ok(Input::User(text)),
        Some(Value::Array(list)) if list.iter().any(speaks_of_tools) => dialogue(list),
        Some(Value::Array(list)) if !list.is_empty() => list
            .into_iter()
            .enumerate()
            .map(|(place, item)| message(item, place))
            .collect::<ApiResult<Vec<_>>>()
            .map(Input::Chat),
        Some(Value::Object(mut map)) => match (map.remove("tokens"), map.is_empty()) {
            (Some(Value::Array(tokens)), true) => token_ids(&tokens, "input").map(Input::Tokens),
            _ => Err(ApiError::invalid("input", WANT)),
        },
        Some(_) => Err(ApiError::invalid("input", WANT)),
    }
}

/// Turns that speak of tools: `tool_calls` and `tool_call_id` as elsewhere.
fn dialogue(list: Vec<Value>) -> ApiResult<Input> {
    let turn = |(place, item): (usize, Value)| {
        let param = format!("input[{place}]");
        let Value::Object(map) = item else {
            return Err(ApiError::invalid(
                &param,
                format!("`{param}` must be an object"),
            ));
        };
        let mut fields = Fields::nested(map, &param);
        let role = fields.string("role", 64)?.unwrap_or_default();
        let content = fields.string("content", usize::MAX)?.unwrap_or_default();
        let turn = Map::from_iter([
            ("role".to_owned(), role.into()),
            ("content".to_owned(), content.into()),
        ]);
        let turn = with_calls(turn, &mut fields)?;
        fields.done()?;
        Ok(turn)
    };
    let messages = list
        .into_iter()
        .enumerate()
        .map(turn)
        .collect::<ApiResult<_>>()?;
    Ok(Input::Dialogue(Dialogue {
        messages,
        tools: None,
    }))
}

fn message(item: Value, place: usize) -> ApiResult<Message> {
    let param = format!("input[{place}]");
    let wrong = || {
        ApiError::invalid(
            &param,
            format!("`{param}` must be {{\"role\": text, \"content\": text}} and nothing else"),
        )
    };
    let Value::Object(mut map) = item else {
        return Err(wrong());
    };
    match (map.remove("role"), map.remove("content"), map.is_empty()) {
        (Some(Value::String(role)), Some(Value::String(content)), true) => {
            Ok(Message { role, content })
        }
        _ => Err(wrong()),
    }
}

pub(crate) fn token_ids(list: &[Value], param: &str) -> ApiResult<Vec<u32>> {
    list.iter()
        .map(|item| {
            whole(item)
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| {
                    ApiError::invalid(param, format!("`{param}` has {item}, which is no token id"))
                })
        })
        .collect()
}

pub(crate) fn request_key(key: Option<String>, param: &str) -> ApiResult<Option<String>> {
    match key {
        Some(key) if key.is_empty() => Err(ApiError::invalid(
            param,
            format!("`{param}` is empty; give a key or leave it out"),
        )),
        key => Ok(key),
    }
}

pub(crate) fn deadline(text: &str, param: &str) -> ApiResult<u64> {
    parse_rfc3339(text).ok_or_else(|| {
        ApiError::invalid(
            param,
            format!("`{param}` must be a time like 2026-12-01T10:00:30.000Z"),
        )
    })
}

pub(crate) fn priority(word: &str, param: &str) -> ApiResult<Priority> {
    Priority::parse(word).ok_or_else(|| {
        ApiError::invalid(
            param,
            format!("`{param}` must be interactive, standard or batch"),
        )
    })
}

fn sampling(mut fields: Fields) -> ApiResult<Sampling> {
    let stop_token_ids = match fields.take("stopTokenIds") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.len() <= MAX_STOP => {
            token_ids(&list, "sampling.stopTokenIds")?
        }
        Some(_) => {
            return Err(ApiError::invalid(
                "sampling.stopTokenIds",
                format!("`sampling.stopTokenIds` must be a list of at most {MAX_STOP} token ids"),
            ));
        }
    };
    let sampling = Sampling {
        temperature: fields.number("temperature", 0.0..=100.0)?,
        top_p: fields.number("topP", f64::MIN_POSITIVE..=1.0)?,
        top_k: fields.integer("topK", 0..=MAX_TOKENS)?.map(|k| k as u32),
        min_p: fields.number("minP", 0.0..=1.0)?,
        seed: fields.integer("seed", 0..=u64::MAX)?,
        stop: fields.strings("stop", MAX_STOP, MAX_STOP_BYTES)?,
        stop_token_ids,
        presence_penalty: fields.number("presencePenalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequencyPenalty", -2.0..=2.0)?,
        repetition_penalty: fields.number("repetitionPenalty", 0.01..=10.0)?,
        logprobs: logprobs(&mut fields, "logprobs")?,
        prompt_logprobs: logprobs(&mut fields, "promptLogprobs")?,
        ignore_eos: fields.boolean("ignoreEos")?.unwrap_or(false),
        min_tokens: fields.integer("minTokens", 0..=MAX_TOKENS)?.unwrap_or(0) as u32,
    };
    fields.done()?;
    Ok(sampling)
}

/// `false` and 0 both mean none in the contract's example; alternatives are asked for from 1 on.
fn logprobs(fields: &mut Fields, name: &str) -> ApiResult<Option<u32>> {
    match fields.take(name) {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(0)),
        Some(value) => match whole(&value) {
            Some(0) => Ok(None),
            Some(count) if count <= MAX_LOGPROBS => Ok(Some(count as u32)),
            _ => Err(ApiError::invalid(
                format!("sampling.{name}"),
                format!("`sampling.{name}` must be true, false or 0 to {MAX_LOGPROBS}"),
            )),
        },
    }
}

pub(crate) fn metadata(fields: &mut Fields, name: &str) -> ApiResult<BTreeMap<String, String>> {
    let Some(mut object) = fields.object(name)? else {
        return Ok(BTreeMap::new());
    };
    let rest = object.rest();
    if rest.len() > MAX_METADATA {
        return Err(ApiError::invalid(
            name,
            format!("`{name}` has more than {MAX_METADATA} labels; send fewer"),
        ));
    }
    rest.into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(label, value)| match value {
            Value::String(text) if text.len() <= MAX_LABEL_BYTES && label.len() <= 64 => {
                Ok((label, text))
            }
            _ => Err(ApiError::invalid(
                format!("{name}.{label}"),
                format!("`{name}.{label}` must be text of at most {MAX_LABEL_BYTES} bytes under a name of at most 64"),
            )),
        })
        .collect()
}
