//! What a message says, in the forms in which the calls write it.

use serde_json::Value;
use weir_protocol::error::ErrorCode;

use crate::error::{ApiError, ApiResult};

/// Text, or a list of text parts of these kinds; errors show the first of them.
pub(super) fn text_of(given: Option<Value>, param: &str, kinds: &[&str]) -> ApiResult<String> {
    match given {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| text_part(part, param, kinds))
            .collect(),
        _ => {
            let param = format!("{param}.content");
            let what = format!("`{param}` must be text or a list of text parts");
            Err(ApiError::invalid(param, what))
        }
    }
}

fn text_part(part: &Value, param: &str, kinds: &[&str]) -> ApiResult<String> {
    let kind = part.get("type").and_then(Value::as_str);
    match (kind, part.get("text")) {
        (Some(kind), Some(Value::String(text))) if kinds.contains(&kind) => Ok(text.clone()),
        (Some(kind), _) if !kinds.contains(&kind) => Err(ApiError::new(
            ErrorCode::UnsupportedParameter,
            format!("content parts of type {kind:?} are not supported; send text"),
        )
        .param(format!("{param}.content"))),
        _ => Err(ApiError::invalid(
            format!("{param}.content"),
            format!(
                "a content part must be {{\"type\": \"{}\", \"text\": …}}",
                kinds.first().unwrap_or(&"text")
            ),
        )),
    }
}

/// The role of a message; `developer` is `OpenAI`'s newer word for what templates call `system`.
pub(super) fn role_of(given: Option<String>, param: &str) -> ApiResult<String> {
    match given {
        Some(role) if role == "developer" => Ok("system".to_owned()),
        Some(role) => Ok(role),
        None => Err(ApiError::invalid(
            format!("{param}.role"),
            format!("`{param}.role` is missing"),
        )),
    }
}
