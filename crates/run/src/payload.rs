//! The hash that tells a repeated request from another one under the same request key.

use serde_json::Value;

/// Members of the body that may differ between repeats of one request.
const NOT_PAYLOAD: [&str; 2] = ["requestKey", "deadline"];

/// BLAKE3 over the body as canonical JSON: members sorted, no white space, `requestKey` and `deadline` of the top level left out, a
/// member that is null counts as absent, and a number with no fraction is an integer however it was written.
pub fn payload_hash(body: &Value) -> [u8; 32] {
    let mut text = Vec::with_capacity(256);
    match body {
        Value::Object(members) => write_object(&mut text, members, &NOT_PAYLOAD),
        other => write_value(&mut text, other),
    }
    blake3::hash(&text).into()
}

fn write_object(text: &mut Vec<u8>, members: &serde_json::Map<String, Value>, without: &[&str]) {
    // Sorted here, because whether the map is depends on features that other crates may switch on.
    let mut kept: Vec<(&String, &Value)> = members
        .iter()
        .filter(|(name, value)| !value.is_null() && !without.contains(&name.as_str()))
        .collect();
    kept.sort_unstable_by_key(|(name, _)| *name);
    text.push(b'{');
    for (place, (name, value)) in kept.into_iter().enumerate() {
        if place > 0 {
            text.push(b',');
        }
        write_string(text, name);
        text.push(b':');
        write_value(text, value);
    }
    text.push(b'}');
}

fn write_value(text: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Object(members) => write_object(text, members, &[]),
        Value::Array(items) => {
            text.push(b'[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    text.push(b',');
                }
                write_value(text, item);
            }
            text.push(b']');
        }
        Value::String(string) => write_string(text, string),
        Value::Number(number) => write_number(text, number),
        Value::Bool(true) => text.extend_from_slice(b"true"),
        Value::Bool(false) => text.extend_from_slice(b"false"),
        Value::Null => text.extend_from_slice(b"null"),
    }
}

fn write_string(text: &mut Vec<u8>, string: &str) {
    serde_json::to_writer(text, string).expect("a string always has a JSON form");
}

/// Integers as they are; floating point without a fraction as the integer it equals, so that `1` and `1.0` are one payload.
fn write_number(text: &mut Vec<u8>, number: &serde_json::Number) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT => {
            #[expect(clippy::cast_possible_truncation, reason = "an integer within 2^53")]
            let integer = float as i64;
            text.extend_from_slice(integer.to_string().as_bytes());
        }
        _ => text.extend_from_slice(number.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_request_has_the_same_hash() {
        let body = json!({"model":"m","input":"hi","sampling":{"temperature":1.0,"seed":7}});
        let same = [
            json!({"input":"hi","sampling":{"seed":7,"temperature":1},"model":"m"}),
            json!({"model":"m","input":"hi","sampling":{"temperature":1,"seed":7,"topP":null},"replaces":null}),
            json!({"model":"m","input":"hi","sampling":{"temperature":1,"seed":7},"requestKey":"a","deadline":"2026-12-01T10:00:30.000Z"}),
        ];
        for (row, other) in same.iter().enumerate() {
            assert_eq!(payload_hash(&body), payload_hash(other), "row {row}");
        }
    }

    #[test]
    fn another_request_has_another_hash() {
        let body = json!({"model":"m","input":["a","b"]});
        let other = [
            json!({"model":"m","input":["b","a"]}),
            json!({"model":"m","input":["a","b",null]}),
            json!({"model":"m","input":["a\",\"b"]}),
            json!({"model":"m","input":["a","b"],"metadata":{"requestKey":"x"}}),
            json!({"model":"m","input":["a","b"],"maxOutputTokens":1.5}),
            json!([{"model":"m","input":["a","b"]}]),
        ];
        for (row, other) in other.iter().enumerate() {
            assert_ne!(payload_hash(&body), payload_hash(other), "row {row}");
        }
    }
}
