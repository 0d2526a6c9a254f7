//! Reading JSON bodies: bounded in depth, every field accounted for by name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};
use weir_protocol::error::ErrorCode;

use crate::error::{ApiError, ApiResult};

/// Parses a body that must be a JSON object nested no deeper than `max_depth`.
pub(crate) fn parse_object(body: &[u8], max_depth: usize) -> ApiResult<Map<String, Value>> {
    if nests_deeper_than(body, max_depth) {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("the body nests deeper than {max_depth} levels; flatten it"),
        ));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "the body must be a JSON object",
        )),
        Err(error) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("the body is not valid JSON: {error}"),
        )),
    }
}

/// Counts brackets outside strings, so that a bomb is refused before anything is allocated for it.
fn nests_deeper_than(body: &[u8], max_depth: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in body {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > max_depth {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A JSON object whose fields are taken out one by one; what is left at the end is unknown and refused by name.
///
/// `null` means absent everywhere.
pub(crate) struct Fields {
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self {
            prefix: String::new(),
            map,
        }
    }

    /// An object inside a list, under the name that errors show.
    pub(crate) fn nested(map: Map<String, Value>, name: &str) -> Self {
        Self {
            prefix: format!("{name}."),
            map,
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.peek(name).is_some()
    }

    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The dotted name of a field, as errors show it.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, name: &str, want: &str) -> ApiResult<T> {
        let path = self.path(name);
        Err(ApiError::invalid(&path, format!("`{path}` must be {want}")))
    }

    pub(crate) fn string(&mut self, name: &str, max_bytes: usize) -> ApiResult<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= max_bytes => Ok(Some(text)),
            Some(Value::String(_)) => self.wrong(name, &format!("at most {max_bytes} bytes long")),
            Some(_) => self.wrong(name, "a string"),
        }
    }

    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> ApiResult<Option<u64>> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match whole(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => self.wrong(
                name,
                &format!("an integer from {} to {}", range.start(), range.end()),
            ),
        }
    }

    pub(crate) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> ApiResult<Option<f32>> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
            Some(number) if range.contains(&number) => Ok(Some(number as f32)),
            _ => self.wrong(
                name,
                &format!("a number from {} to {}", range.start(), range.end()),
            ),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> ApiResult<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => self.wrong(name, "true or false"),
        }
    }

    /// A string or a list of strings.
    pub(crate) fn strings(
        &mut self,
        name: &str,
        max_count: usize,
        max_bytes: usize,
    ) -> ApiResult<Vec<String>> {
        let list = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(one)) => vec![Value::String(one)],
            Some(Value::Array(list)) if list.len() <= max_count => list,
            Some(_) => {
                return self.wrong(
                    name,
                    &format!("a string or a list of at most {max_count} strings"),
                );
            }
        };
        list.into_iter()
            .map(|item| match item {
                Value::String(text) if !text.is_empty() && text.len() <= max_bytes => Ok(text),
                _ => self.wrong(name, &format!("made of strings of 1 to {max_bytes} bytes")),
            })
            .collect()
    }

    pub(crate) fn object(&mut self, name: &str) -> ApiResult<Option<Self>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self {
                prefix: format!("{}{name}.", self.prefix),
                map,
            })),
            Some(_) => self.wrong(name, "an object"),
        }
    }

    /// The fields that are left, with their `null`s.
    pub(crate) fn rest(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.map)
    }

    /// Refuses what nobody took.
    pub(crate) fn done(self) -> ApiResult<()> {
        match self.map.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let path = format!("{}{name}", self.prefix);
                Err(ApiError::invalid(
                    &path,
                    format!("unknown field `{path}`; remove it or check its spelling"),
                ))
            }
        }
    }
}

/// A whole number, also when it is written as `2.0`.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be whole and within the exact range of f64"
        )]
        let exact = (number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number))
            .then_some(number as u64);
        exact
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::new(parse_object(json.as_bytes(), 8).unwrap())
    }

    #[test]
    fn depth_is_counted_outside_strings_only() {
        assert!(parse_object(br#"{"a":[[[["x"]]]]}"#, 5).is_ok());
        assert!(parse_object(br#"{"a":[[[["x"]]]]}"#, 4).is_err());
        assert!(parse_object(br#"{"a":"[[[[[[[[{{{{\"[[["}"#, 1).is_ok());
    }

    #[test]
    fn unknown_fields_are_refused_by_their_dotted_name() {
        let mut outer = fields(r#"{"sampling":{"topQ":1},"absent":null}"#);
        let inner = outer.object("sampling").unwrap().unwrap();
        let error = inner.done().unwrap_err();
        assert_eq!(error.body().param.as_deref(), Some("sampling.topQ"));
        outer.done().unwrap();
    }

    #[test]
    fn numbers_are_checked_against_their_range() {
        let mut given = fields(r#"{"a":3,"b":2.0,"c":-1,"d":1e99,"e":"1"}"#);
        assert_eq!(given.integer("a", 1..=3).unwrap(), Some(3));
        assert_eq!(given.integer("b", 1..=3).unwrap(), Some(2));
        assert!(given.integer("c", 0..=3).is_err());
        assert!(given.number("d", 0.0..=2.0).is_err());
        assert!(given.number("e", 0.0..=2.0).is_err());
        assert_eq!(given.number("gone", 0.0..=2.0).unwrap(), None);
    }
}
