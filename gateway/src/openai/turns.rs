//! Turns of a conversation, those that speak of tools among them: what the assistant called, and what came of it.

use serde_json::{Map, Value, json};

use super::content::{role_of, text_of};
use super::read::unsupported;
use crate::admit::Input;
use crate::dialogue::Dialogue;
use crate::error::{ApiError, ApiResult};
use crate::http::json::Fields;
use crate::text::Message;

/// Longest name of a tool or id of a call.
const NAME_BYTES: usize = 256;
/// Longest arguments of a call, as a text.
const ARGUMENT_BYTES: usize = 1 << 20;

/// The field `messages`.
pub(super) fn messages(fields: &mut Fields) -> ApiResult<Input> {
    let list = match fields.take("messages") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        _ => {
            return Err(ApiError::invalid(
                "messages",
                "`messages` must be a list with at least one message",
            ));
        }
    };
    let with_tools = list.iter().any(speaks_of_tools);
    let items = list.into_iter().enumerate();
    if with_tools {
        return items
            .map(|(place, item)| {
                let (message, mut fields) = message(item, place)?;
                let turn = Map::from_iter([
                    ("role".to_owned(), message.role.into()),
                    ("content".to_owned(), message.content.into()),
                ]);
                let turn = with_calls(turn, &mut fields)?;
                fields.done()?;
                Ok(turn)
            })
            .collect::<ApiResult<Vec<_>>>()
            .map(|messages| {
                Input::Dialogue(Dialogue {
                    messages,
                    tools: None,
                })
            });
    }
    items
        .map(|(place, item)| {
            let (message, mut fields) = message(item, place)?;
            // An empty list says nothing.
            fields.take("tool_calls");
            fields.done()?;
            Ok(message)
        })
        .collect::<ApiResult<Vec<_>>>()
        .map(Input::Chat)
}

/// A message, and its fields that speak of tools.
fn message(item: Value, place: usize) -> ApiResult<(Message, Fields)> {
    let param = format!("messages[{place}]");
    let Value::Object(map) = item else {
        return Err(ApiError::invalid(
            &param,
            format!("`{param}` must be an object"),
        ));
    };
    let mut fields = Fields::nested(map, &param);
    let role = role_of(fields.string("role", 64)?, &param)?;
    let content = match fields.take("content") {
        None if role == "assistant" => String::new(),
        given => text_of(given, &param, &["text"])?,
    };
    fields.string("name", 64)?;
    for name in ["function_call", "audio", "refusal", "annotations"] {
        match fields.take(name) {
            None => {}
            Some(Value::Array(list)) if list.is_empty() => {}
            Some(_) => return Err(unsupported(&format!("{param}.{name}"))),
        }
    }
    // Clients send an answer back as they parsed it.
    fields.take("parsed");
    Ok((Message { role, content }, fields))
}

/// Whether a message speaks of tools.
pub(crate) fn speaks_of_tools(message: &Value) -> bool {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    calls.is_some_and(|calls| !calls.is_empty())
        || message.get("role").and_then(Value::as_str) == Some("tool")
}

/// Adds to a plain turn what its message says of calls; both fields are taken out of the message.
pub(crate) fn with_calls(mut turn: Map<String, Value>, fields: &mut Fields) -> ApiResult<Value> {
    if let Some(id) = fields.string("tool_call_id", NAME_BYTES)? {
        turn.insert("tool_call_id".to_owned(), id.into());
    } else if turn.get("role").and_then(Value::as_str) == Some("tool") {
        let param = fields.path("tool_call_id");
        return Err(ApiError::invalid(
            &param,
            format!("`{param}` is missing: which call is this the result of?"),
        ));
    }
    let param = fields.path("tool_calls");
    match fields.take("tool_calls") {
        None => {}
        Some(Value::Array(calls)) => {
            let calls = calls.into_iter().enumerate();
            let calls: Vec<Value> = calls
                .map(|(place, call)| one_call(call, &format!("{param}[{place}]")))
                .collect::<ApiResult<_>>()?;
            turn.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Some(_) => {
            return Err(ApiError::invalid(
                &param,
                format!("`{param}` must be a list of calls"),
            ));
        }
    }
    Ok(Value::Object(turn))
}

fn one_call(call: Value, param: &str) -> ApiResult<Value> {
    let Value::Object(map) = call else {
        return Err(ApiError::invalid(
            param,
            format!("`{param}` must be an object"),
        ));
    };
    let mut fields = Fields::nested(map, param);
    let id = fields.string("id", NAME_BYTES)?.unwrap_or_default();
    fields.string("type", 64)?;
    fields.take("index");
    let mut function = fields.object("function")?.ok_or_else(|| {
        let at = format!("{param}.function");
        ApiError::invalid(&at, format!("`{at}` is missing"))
    })?;
    fields.done()?;
    let name = function.string("name", NAME_BYTES)?.unwrap_or_default();
    let arguments = function
        .string("arguments", ARGUMENT_BYTES)?
        .unwrap_or_default();
    function.done()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}
