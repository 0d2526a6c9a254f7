//! Canonical JSON: one byte sequence for one value (RFC 8785, without floating-point numbers).
//!
//! Keys are sorted by UTF-16 code units, there is no white space, strings are escaped minimally, and numbers are integers of at most
//! 53 bits. What cannot be written that way is refused rather than rounded.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Largest integer that every JSON reader keeps exactly (2^53 - 1).
const MAX_INTEGER: u64 = (1 << 53) - 1;

/// Why a value has no canonical form, or why bytes are not one.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// The value cannot be JSON, or the bytes are not JSON of the wanted shape.
    #[error("the JSON does not have the expected shape")]
    Shape(#[source] serde_json::Error),
    /// A number is not an integer of at most 53 bits.
    #[error("the number {0} is not an integer between -(2^53-1) and 2^53-1")]
    Number(String),
    /// The bytes are JSON, but not in canonical form.
    #[error("the JSON is not in canonical form (sorted keys, no white space, no repeated key)")]
    NotCanonical,
}

/// The canonical bytes of `value`.
///
/// # Errors
/// When the value holds a float, an integer beyond 53 bits, or a map whose keys are not strings.
pub fn to_canonical<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    let value = serde_json::to_value(value).map_err(CanonicalError::Shape)?;
    let mut out = Vec::new();
    write_value(&value, &mut out)?;
    Ok(out)
}

/// Reads `bytes`, which must already be the canonical form of what they say.
///
/// # Errors
/// When the bytes are not JSON, not canonical, or not a `T`.
pub fn from_canonical<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CanonicalError> {
    let value: Value = serde_json::from_slice(bytes).map_err(CanonicalError::Shape)?;
    let mut canonical = Vec::with_capacity(bytes.len());
    write_value(&value, &mut canonical)?;
    if canonical != bytes {
        return Err(CanonicalError::NotCanonical);
    }
    serde_json::from_value(value).map_err(CanonicalError::Shape)
}

/// Depth is bounded by the JSON reader (128 levels); values of our own types are shallow.
fn write_value(value: &Value, out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => {
            let exact = number
                .as_i64()
                .map(i64::unsigned_abs)
                .or_else(|| number.as_u64());
            if exact.is_none_or(|n| n > MAX_INTEGER) {
                return Err(CanonicalError::Number(number.to_string()));
            }
            out.extend_from_slice(number.to_string().as_bytes());
        }
        Value::String(text) => write_string(text, out)?,
        Value::Array(items) => {
            write_list(items.iter(), (b'[', b']'), out, write_value)?;
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            write_list(
                entries.into_iter(),
                (b'{', b'}'),
                out,
                |(key, value), out| {
                    write_string(key, out)?;
                    out.push(b':');
                    write_value(value, out)
                },
            )?;
        }
    }
    Ok(())
}

fn write_list<T>(
    items: impl Iterator<Item = T>,
    (open, close): (u8, u8),
    out: &mut Vec<u8>,
    mut write: impl FnMut(T, &mut Vec<u8>) -> Result<(), CanonicalError>,
) -> Result<(), CanonicalError> {
    out.push(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(item, out)?;
    }
    out.push(close);
    Ok(())
}

/// The JSON writer's escapes are RFC 8785's: `\b \t \n \f \r \" \\` and `\u00xx` in lower case for the other controls.
fn write_string(text: &str, out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    serde_json::to_writer(out, text).map_err(CanonicalError::Shape)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn canonical(value: &Value) -> String {
        String::from_utf8(to_canonical(value).unwrap()).unwrap()
    }

    #[test]
    fn values_have_the_bytes_of_rfc_8785() {
        let cases = [
            (
                json!({"b": 1, "a": [true, null, "x"]}),
                r#"{"a":[true,null,"x"],"b":1}"#.to_owned(),
            ),
            (
                json!("\u{8}\t\n\u{c}\r\"\\/\u{1f}\u{7f}€"),
                "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u001f\u{7f}€\"".to_owned(),
            ),
            // By UTF-16 code units an emoji (D83D…) sorts before U+FB33; by code points it would come after.
            (
                json!({"\u{fb33}": 1, "😀": 2}),
                "{\"😀\":2,\"\u{fb33}\":1}".to_owned(),
            ),
            (json!({}), "{}".to_owned()),
            (
                json!([-9_007_199_254_740_991_i64]),
                "[-9007199254740991]".to_owned(),
            ),
        ];
        for (value, want) in cases {
            assert_eq!(canonical(&value), want);
        }
    }

    #[test]
    fn numbers_that_would_lose_digits_are_refused() {
        for value in [
            json!(0.5),
            json!(1e3),
            json!(9_007_199_254_740_992_u64),
            json!(u64::MAX),
            json!(i64::MIN),
        ] {
            assert!(
                matches!(to_canonical(&value), Err(CanonicalError::Number(_))),
                "{value}"
            );
        }
    }

    #[test]
    fn other_spellings_of_the_same_value_are_refused() {
        assert!(from_canonical::<Value>(br#"{"a":1,"b":2}"#).is_ok());
        for bytes in [
            &br#"{"b":2,"a":1}"#[..],
            br#"{"a": 1}"#,
            b"{\"a\":1}\n",
            br#"{"a":1,"a":1}"#,
            br#"{"a":"\u0041"}"#,
            br#"{"a":"\/"}"#,
            br#"{"a":-0}"#,
            br#"{"a":1.0}"#,
            br#"{"a":1e0}"#,
        ] {
            assert!(
                from_canonical::<Value>(bytes).is_err(),
                "{}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reading_what_was_written_gives_the_value_back(value in values()) {
            let bytes = to_canonical(&value).unwrap();
            prop_assert_eq!(from_canonical::<Value>(&bytes).unwrap(), value);
        }
    }
}
