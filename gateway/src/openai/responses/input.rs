//! Items of a response's input as messages, and the conversation before them.

use serde_json::{Value, json};
use weir_protocol::error::ErrorCode;
use weir_run::{RunStatus, Sequence};
use weir_store::Store;

use super::super::content::{role_of, text_of};
use super::record::{Record, expired, find};
use super::story::Story;
use crate::error::{ApiError, ApiResult};
use crate::http::json::Fields;
use crate::hub::Frame;

/// Longest chain of responses that is followed back: each link costs two reads of the store.
const MAX_CHAIN: usize = 256;
/// Events read from the store at once.
const PAGE: usize = 256;

/// The input as a list of items.
pub(super) fn items(fields: &mut Fields) -> ApiResult<Vec<Value>> {
    const WANT: &str = "`input` must be text or a list of input items";
    match fields.take("input") {
        Some(Value::String(text)) => Ok(vec![json!({
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}],
        })]),
        Some(Value::Array(list)) if !list.is_empty() => Ok(list),
        None => Err(ApiError::invalid("input", "`input` is missing: give text")),
        Some(_) => Err(ApiError::invalid("input", WANT)),
    }
}

/// Adds an input item to the turns before it: a message, a call of the assistant, or what came of one.
pub(super) fn add_item(turns: &mut Vec<Value>, item: &Value, place: usize) -> ApiResult<()> {
    match item.get("type").and_then(Value::as_str) {
        Some("function_call") => add_call(turns, call(item, place)?),
        Some("function_call_output") => turns.push(output(item, place)?),
        _ => turns.push(message(item, place)?),
    }
    Ok(())
}

/// A call belongs to the assistant's turn before it, where that is the last.
fn add_call(turns: &mut Vec<Value>, call: Value) {
    if let Some(last) = turns.last_mut().filter(|turn| turn["role"] == "assistant") {
        if let Some(Value::Array(calls)) = last.get_mut("tool_calls") {
            calls.push(call);
        } else {
            last["tool_calls"] = json!([call]);
        }
        return;
    }
    turns.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
}

fn item_fields(item: &Value, place: usize) -> ApiResult<Fields> {
    let param = format!("input[{place}]");
    match item {
        Value::Object(map) => Ok(Fields::nested(map.clone(), &param)),
        _ => Err(ApiError::invalid(
            &param,
            format!("`{param}` must be an object"),
        )),
    }
}

fn required(fields: &mut Fields, name: &str) -> ApiResult<String> {
    let path = fields.path(name);
    fields
        .string(name, usize::MAX)?
        .ok_or_else(|| ApiError::invalid(&path, format!("`{path}` is missing")))
}

fn call(item: &Value, place: usize) -> ApiResult<Value> {
    let mut fields = item_fields(item, place)?;
    let id = required(&mut fields, "call_id")?;
    let name = required(&mut fields, "name")?;
    let arguments = required(&mut fields, "arguments")?;
    // What an output item has when it is sent back; `parsed_arguments` is the client's own.
    for name in ["id", "status", "type"] {
        fields.string(name, 256)?;
    }
    fields.take("parsed_arguments");
    fields.done()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

fn output(item: &Value, place: usize) -> ApiResult<Value> {
    let mut fields = item_fields(item, place)?;
    let id = required(&mut fields, "call_id")?;
    let content = required(&mut fields, "output")?;
    for name in ["id", "status", "type"] {
        fields.string(name, 256)?;
    }
    fields.done()?;
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

/// The message of an input item.
fn message(item: &Value, place: usize) -> ApiResult<Value> {
    let param = format!("input[{place}]");
    let mut fields = item_fields(item, place)?;
    match fields.string("type", 64)?.as_deref() {
        None | Some("message") => {}
        Some(other) => {
            return Err(ApiError::new(
                ErrorCode::UnsupportedParameter,
                format!("input items of type {other:?} are not supported; send messages, function_call and function_call_output"),
            )
            .param(param));
        }
    }
    let role = role_of(fields.string("role", 64)?, &param)?;
    let kinds = ["input_text", "output_text", "text"];
    let content = text_of(fields.take("content"), &param, &kinds)?;
    // What an output item has when it is sent back.
    for name in ["id", "status", "phase"] {
        fields.string(name, 256)?;
    }
    fields.done()?;
    Ok(json!({"role": role, "content": content}))
}

/// Inputs and outputs of the responses before this one, oldest first. Their instructions are not carried over.
pub(super) async fn before(
    store: &dyn Store,
    tenant: &str,
    previous: &str,
) -> ApiResult<Vec<Value>> {
    let mut turns: Vec<Vec<Value>> = Vec::new();
    let mut next = Some(previous.to_owned());
    while let Some(id) = next {
        if turns.len() >= MAX_CHAIN {
            return Err(ApiError::invalid(
                "previous_response_id",
                format!("the conversation has more than {MAX_CHAIN} turns; send it as `input`"),
            ));
        }
        let (turn, earlier) = turn(store, tenant, &id).await?;
        turns.push(turn);
        next = earlier;
    }
    Ok(turns.into_iter().rev().flatten().collect())
}

/// What was said in one response, and which came before it.
async fn turn(
    store: &dyn Store,
    tenant: &str,
    id: &str,
) -> ApiResult<(Vec<Value>, Option<String>)> {
    let found = find(store, tenant, id).await;
    let (run, record) = found.map_err(|error| match error.code() {
        ErrorCode::RunNotFound => ApiError::new(
            ErrorCode::PreviousResponseNotFound,
            format!("response {id:?} of this conversation is unknown, was not stored, or was deleted; send the conversation as `input`"),
        )
        .param("previous_response_id"),
        _ => error.param("previous_response_id"),
    })?;
    if run.status != RunStatus::Completed {
        return Err(ApiError::invalid(
            "previous_response_id",
            format!(
                "response {id:?} is {}; only one that completed can be continued",
                run.status.as_str()
            ),
        ));
    }
    let mut said = Vec::new();
    for (place, item) in record.input.iter().enumerate() {
        add_item(&mut said, item, place)?;
    }
    let earlier = record.previous_response_id.clone();
    let answered = tell(store, &run, record).await?;
    said.push(json!({"role": "assistant", "content": answered.text}));
    for call in answered.called.whole() {
        add_call(&mut said, json!(call));
    }
    Ok((said, earlier))
}

/// The story that the retained events of a run tell now.
pub(super) async fn tell(
    store: &dyn Store,
    run: &weir_run::Run,
    record: Record,
) -> ApiResult<Story> {
    let mut told = Story::of(run, record);
    let mut after = 0;
    loop {
        let events = store.events(run.id, Sequence(after), PAGE).await?;
        let Some(last) = events.last() else {
            break;
        };
        if events[0].sequence.0 != after + 1 {
            return Err(expired(run));
        }
        after = last.sequence.0;
        for record in &events {
            told.follow_frame(&Frame::from_record(record))?;
        }
    }
    if run.status.is_terminal() && after < run.last_sequence.0 {
        return Err(expired(run));
    }
    Ok(told)
}
