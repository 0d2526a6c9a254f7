//! Brings messages as clients send them into the form templates are written for.

use serde_json::Value as Json;

use super::TemplateError;

/// Roles a template may be asked about. Templates spell special tokens with the role (`<|` + role + `|>`), so it must be one of
/// these and nothing a client makes up.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A list of message objects whose `content` is a text or absent and whose tool arguments are objects.
pub(super) fn normalize(messages: &[Json]) -> Result<Json, TemplateError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| one(message, index))
        .collect::<Result<_, _>>()
        .map(Json::Array)
}

fn one(message: &Json, index: usize) -> Result<Json, TemplateError> {
    let refuse = |what: String| TemplateError::Message { index, what };
    let Some(object) = message.as_object() else {
        return Err(refuse("must be an object".to_owned()));
    };
    let mut object = object.clone();
    match object.get("role").and_then(Json::as_str) {
        Some(role) if ROLES.contains(&role) => {}
        Some(role) => {
            return Err(refuse(format!(
                "role \"{role}\" must be one of {}",
                ROLES.join(", ")
            )));
        }
        None => return Err(refuse("role is missing".to_owned())),
    }
    match object.get("content") {
        None | Some(Json::Null | Json::String(_)) => {}
        Some(Json::Array(parts)) => {
            let text = text_of_parts(parts).map_err(refuse)?;
            object.insert("content".to_owned(), Json::String(text));
        }
        Some(_) => {
            return Err(refuse(
                "content must be a text or a list of text parts".to_owned(),
            ));
        }
    }
    if let Some(Json::Array(calls)) = object.get_mut("tool_calls") {
        calls.iter_mut().for_each(parse_arguments);
    }
    Ok(Json::Object(object))
}

/// Templates of text models take one text; several parts are lines of it.
fn text_of_parts(parts: &[Json]) -> Result<String, String> {
    let text = |(at, part): (usize, &Json)| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (kind, _) => Err(format!(
            "content[{at}] has type \"{}\", but the model takes text only",
            kind.unwrap_or("unknown")
        )),
    };
    Ok(parts
        .iter()
        .enumerate()
        .map(text)
        .collect::<Result<Vec<_>, _>>()?
        .join("\n"))
}

/// Clients send the arguments of a call as a text of JSON; templates go through them as an object.
fn parse_arguments(call: &mut Json) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(Ok(parsed @ Json::Object(_))) = arguments.as_str().map(serde_json::from_str)
    {
        *arguments = parsed;
    }
}
