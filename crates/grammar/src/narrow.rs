//! Takes away from a schema's documents what only a weak model would write: endless white space, and other spellings of a character.
//! What is left is valid all the same.

use serde_json::{Map, Value, json};

/// White space between two parts: nothing, a space, or a line break with some indentation.
const WHITESPACE: &str = r"\x20|\n\x20{0,16}";
/// No `\u`: a property's name then has one spelling, so that none comes twice under two.
const ESCAPES: &str = "nrbtf\\\"";

/// The schema with the library's options in it.
pub(crate) fn narrowed(schema: &Value) -> Value {
    let mut root = match schema {
        Value::Object(map) => map.clone(),
        // `true`; a `false` is refused before.
        _ => Map::new(),
    };
    root.insert(
        "x-guidance".to_owned(),
        json!({
            "whitespace_flexible": true,
            "whitespace_pattern": WHITESPACE,
            "json_allowed_escapes": ESCAPES,
        }),
    );
    Value::Object(root)
}
