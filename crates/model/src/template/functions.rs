//! What `transformers` adds to Jinja for chat templates.

use std::fmt;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The template said no to the messages.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(
        Error::new(ErrorKind::InvalidOperation, "refused by the template")
            .with_source(Refusal(message)),
    )
}

/// A function that formats one fixed moment.
pub(super) fn strftime_now(now_unix_s: i64) -> Value {
    Value::from_function(move |format: String| -> Result<String, Error> {
        let failed =
            |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
        let now = Timestamp::from_second(now_unix_s)
            .map_err(failed)?
            .to_zoned(TimeZone::UTC);
        strtime::format(&format, &now).map_err(failed)
    })
}

/// JSON as Python's `json.dumps(…, ensure_ascii=False)` writes it. The engine's own filter escapes `<` for HTML, which would
/// change the prompt.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the template engine converts arguments to owned values"
)]
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Keys that Python's function takes and that change nothing here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    let _: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            value.serialize(&mut Serializer::with_formatter(
                &mut bytes,
                PrettyFormatter::with_indent(indent.as_bytes()),
            ))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    String::from_utf8(bytes)
        .map(Value::from_safe_string)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// One line with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Turns `{% generation %}` and `{% endgeneration %}` into a condition that always holds: they mark training text, change nothing in the output, and the engine
/// does not know them.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // Behind the opening: "{%}" is no tag.
        let Some(length) = tag[2..].find("%}").map(|end| end + 4) else {
            rest = tag;
            break;
        };
        let inner = tag[2..length - 2].trim_matches(['-', '+', ' ', '\t', '\n']);
        if inner == "generation" || inner == "endgeneration" {
            // An always true condition keeps the tag's own treatment of white space around it.
            let replacement = if inner == "generation" {
                "if true"
            } else {
                "endif"
            };
            out.push_str(&tag[..length].replace(inner, replacement));
        } else {
            out.push_str(&tag[..length]);
        }
        rest = &tag[length..];
    }
    out.push_str(rest);
    out
}
