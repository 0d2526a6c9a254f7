//! What the output must look like, as clients say it: `response_format`, `tools` and `tool_choice` of chats, and the same in the
//! flatter forms of other calls.

use serde_json::{Map, Value, json};
use weir_grammar::{Source, Tool, ToolChoice, ToolFormat, ToolSpec};
use weir_protocol::error::ErrorCode;
use weir_protocol::worker::Grammar;
use weir_protocol::worker::grammar::Kind;

use crate::admit::{Shape, schema_error};
use crate::error::{ApiError, ApiResult};
use crate::http::json::Fields;

/// Names of the fields, as errors show them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormatParams {
    pub(crate) format: &'static str,
    pub(crate) tools: &'static str,
    pub(crate) choice: &'static str,
    pub(crate) parallel: &'static str,
}

/// As `OpenAI`'s chats call them.
pub(crate) const CHAT: FormatParams = FormatParams {
    format: "response_format",
    tools: "tools",
    choice: "tool_choice",
    parallel: "parallel_tool_calls",
};

/// The shape of the output, and the tools as a template is shown them.
pub(crate) fn shape(fields: &mut Fields, names: FormatParams) -> ApiResult<(Shape, Option<Value>)> {
    let format = fields.take(names.format);
    let tools = fields.take(names.tools);
    let choice = fields.take(names.choice);
    let parallel = fields.boolean(names.parallel)?.unwrap_or(true);
    let format = format.map_or(Ok(Shape::Free), |format| {
        response_format(format, names.format)
    })?;
    match read_tools(tools, choice, parallel, names)? {
        None => Ok((format, None)),
        Some((spec, shown)) => {
            let shape = both(format, Shape::Tools(spec, names.tools), names)?;
            Ok((shape, Some(shown)))
        }
    }
}

/// A format and tools in one request: what calls nothing follows the format. Where a call is required the format never counts.
pub(crate) fn both(format: Shape, tools: Shape, names: FormatParams) -> ApiResult<Shape> {
    let (grammar, mut spec, param) = match (format, tools) {
        (format, Shape::Free) => return Ok(format),
        (Shape::Grammar(grammar, _), Shape::Tools(spec, param)) => (grammar, spec, param),
        (_, tools) => return Ok(tools),
    };
    if grammar.kind() != Kind::JsonSchema {
        return Err(ApiError::new(
            ErrorCode::UnsupportedParameter,
            format!(
                "a regex or a grammar in `{}` together with `{}` is not supported: its text could begin like a call; use json_schema, or forbid the tools by `{}`",
                names.format, names.tools, names.choice
            ),
        )
        .param(names.format));
    }
    if spec.choice == ToolChoice::Auto {
        spec.answer = serde_json::from_str(&grammar.text).ok();
    }
    Ok(Shape::Tools(spec, param))
}

/// `{"type": "text" | "json_object" | "json_schema" | "regex" | "grammar", …}`; the schema is under `json_schema` or beside `type`.
pub(crate) fn response_format(format: Value, param: &'static str) -> ApiResult<Shape> {
    let Value::Object(map) = format else {
        return Err(ApiError::invalid(
            param,
            format!("`{param}` must be an object with a `type`"),
        ));
    };
    let mut fields = Fields::nested(map, param);
    let kind = fields.string("type", 64)?.unwrap_or_default();
    let (kind, text, source) = match kind.as_str() {
        "text" => {
            fields.done()?;
            return Ok(Shape::Free);
        }
        "json_object" => {
            let schema = json!({"type": "object"});
            (
                Kind::JsonSchema,
                schema.to_string(),
                Source::JsonSchema(schema),
            )
        }
        "json_schema" => {
            let schema = schema_of(&mut fields, param)?;
            (
                Kind::JsonSchema,
                schema.to_string(),
                Source::JsonSchema(schema),
            )
        }
        "regex" => {
            let regex = text_of(&mut fields, "pattern", param)?;
            (Kind::Regex, regex.clone(), Source::Regex(regex))
        }
        "grammar" => {
            let grammar = text_of(&mut fields, "grammar", param)?;
            (Kind::Lark, grammar.clone(), Source::Lark(grammar))
        }
        other => {
            return Err(ApiError::new(
                ErrorCode::UnsupportedParameter,
                format!("`{param}.type` {other:?} is not supported; use text, json_object, json_schema, regex or grammar"),
            )
            .param(format!("{param}.type")));
        }
    };
    fields.done()?;
    source
        .check()
        .map_err(|error| schema_error(&error, param))?;
    let grammar = Grammar {
        kind: kind.into(),
        text,
    };
    Ok(Shape::Grammar(grammar, param))
}

fn text_of(fields: &mut Fields, name: &str, param: &str) -> ApiResult<String> {
    match fields.take(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => {
            let at = format!("{param}.{name}");
            Err(ApiError::invalid(&at, format!("`{at}` must be a text")))
        }
    }
}

fn schema_of(fields: &mut Fields, param: &str) -> ApiResult<Value> {
    let missing = |at: String| {
        Err(ApiError::invalid(
            &at,
            format!("`{at}` must be a JSON schema"),
        ))
    };
    if let Some(mut inner) = fields.object("json_schema")? {
        let schema = inner.take("schema");
        names_of(&mut inner)?;
        return schema.map_or_else(|| missing(format!("{param}.json_schema.schema")), Ok);
    }
    let schema = fields.take("schema");
    for name in ["name", "description", "strict"] {
        fields.take(name);
    }
    schema.map_or_else(|| missing(format!("{param}.json_schema")), Ok)
}

/// What a schema or a function is called. `strict` changes nothing: every schema is enforced.
fn names_of(fields: &mut Fields) -> ApiResult<()> {
    fields.string("name", 256)?;
    fields.string("description", 64 << 10)?;
    fields.boolean("strict")?;
    std::mem::replace(fields, Fields::new(Map::new())).done()
}

/// The tools that may be called, and how the template is shown them; `None` where none may be.
fn read_tools(
    tools: Option<Value>,
    choice: Option<Value>,
    parallel: bool,
    names: FormatParams,
) -> ApiResult<Option<(ToolSpec, Value)>> {
    let list = match tools {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => {
            return Err(ApiError::invalid(
                names.tools,
                format!("`{}` must be a list of tools", names.tools),
            ));
        }
    };
    let read: Vec<(Tool, Value)> = list
        .into_iter()
        .enumerate()
        .map(|(place, item)| tool(item, &format!("{}[{place}]", names.tools)))
        .collect::<ApiResult<_>>()?;
    let Some((choice, only)) = read_choice(choice, names)? else {
        return Ok(None);
    };
    if read.is_empty() {
        if choice == ToolChoice::Auto {
            return Ok(None);
        }
        return Err(ApiError::invalid(
            names.choice,
            format!(
                "`{}` asks for a call, but there are no `{}`",
                names.choice, names.tools
            ),
        ));
    }
    let is_one = only.is_some();
    let (tools, shown): (Vec<Tool>, Vec<Value>) = read
        .into_iter()
        .filter(|(tool, _)| only.as_ref().is_none_or(|only| *only == tool.name))
        .unzip();
    if tools.is_empty() {
        let name = only.unwrap_or_default();
        return Err(ApiError::invalid(
            names.choice,
            format!(
                "`{}` names {name:?}, which is not in `{}`",
                names.choice, names.tools
            ),
        ));
    }
    let spec = ToolSpec {
        format: ToolFormat::default(),
        choice,
        parallel: parallel && !is_one,
        tools,
        answer: None,
    };
    spec.check()
        .map_err(|error| schema_error(&error, names.tools))?;
    Ok(Some((spec, Value::Array(shown))))
}

/// How the model must choose, and the one tool it must choose; `None` where it may not call any.
fn read_choice(
    choice: Option<Value>,
    names: FormatParams,
) -> ApiResult<Option<(ToolChoice, Option<String>)>> {
    let wrong = || {
        let what = format!(
            "`{}` must be none, auto, required, or {{\"type\": \"function\", \"function\": {{\"name\": …}}}}",
            names.choice
        );
        ApiError::invalid(names.choice, what)
    };
    match choice {
        None => Ok(Some((ToolChoice::Auto, None))),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some((ToolChoice::Auto, None))),
            "required" => Ok(Some((ToolChoice::Required, None))),
            _ => Err(wrong()),
        },
        Some(Value::Object(map)) if map.get("type").and_then(Value::as_str) == Some("function") => {
            let name = map.get("name").or_else(|| map.get("function")?.get("name"));
            let name = name.and_then(Value::as_str).ok_or_else(wrong)?;
            Ok(Some((ToolChoice::Required, Some(name.to_owned()))))
        }
        Some(_) => Err(wrong()),
    }
}

fn tool(item: Value, param: &str) -> ApiResult<(Tool, Value)> {
    let Value::Object(map) = item else {
        return Err(ApiError::invalid(
            param,
            format!("`{param}` must be an object"),
        ));
    };
    let mut fields = Fields::nested(map, param);
    match fields.string("type", 64)?.as_deref() {
        Some("function") => {}
        other => {
            let what = format!(
                "`{param}.type` {:?} is not supported; tools are functions here",
                other.unwrap_or_default()
            );
            return Err(
                ApiError::new(ErrorCode::UnsupportedParameter, what).param(format!("{param}.type"))
            );
        }
    }
    let mut function = match fields.object("function")? {
        Some(function) => {
            fields.done()?;
            function
        }
        None => fields,
    };
    let parameters = function.take("parameters").unwrap_or_else(
        || json!({"type": "object", "properties": {}, "additionalProperties": false}),
    );
    let description = function.peek("description").cloned();
    let name = function
        .peek("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    names_of(&mut function)?;
    let mut shown = json!({"name": name, "parameters": parameters});
    if let Some(description) = description {
        shown["description"] = description;
    }
    Ok((
        Tool { name, parameters },
        json!({"type": "function", "function": shown}),
    ))
}
