//! Reads a JSON schema for what can be honoured, before anything is compiled: every keyword is known or refused by its pointer, and
//! every number that work or memory grows with is bounded.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use crate::error::SchemaFault;

/// Schemas inside schemas.
const DEPTH_MAX: usize = 32;
/// Schemas in all.
const NODES_MAX: usize = 4_000;
/// Values of `enum`s in all.
const VALUES_MAX: usize = 2_000;
/// Bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 1_024;
/// Characters and items that a bound may name: the automaton has a state for each.
const COUNT_MAX: u64 = 4_096;
/// Bounds of numbers are whole parts of an automaton over digits; beyond this doubles are not exact either.
const NUMBER_MAX: f64 = 1e15;

/// Formats that have an exact expression.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];
const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];
/// Keywords that say nothing about which documents are valid.
const NOTES: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$schema",
    "$id",
    "$comment",
    "readOnly",
    "writeOnly",
    "deprecated",
];

struct Walk<'a> {
    root: &'a Value,
    nodes: usize,
    values: usize,
}

/// Whether every document the schema accepts can be told, and all of it within bounds.
pub(crate) fn check_schema(schema: &Value) -> Result<(), SchemaFault> {
    if schema == &Value::Bool(false) {
        return fault("#", "false accepts no document");
    }
    Walk {
        root: schema,
        nodes: 0,
        values: 0,
    }
    .schema(schema, "#", 0)
}

fn fault<T>(pointer: &str, what: impl Into<String>) -> Result<T, SchemaFault> {
    Err(SchemaFault {
        pointer: pointer.to_owned(),
        what: what.into(),
    })
}

/// A pointer's next step, with the characters escaped that RFC 6901 names.
fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Value, pointer: &str, depth: usize) -> Result<(), SchemaFault> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return fault(
                pointer,
                format!("the schema has more than {NODES_MAX} parts; make it smaller"),
            );
        }
        if depth > DEPTH_MAX {
            return fault(
                pointer,
                format!("schemas nest deeper than {DEPTH_MAX} levels; flatten it or use $ref"),
            );
        }
        let map = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(map) => map,
            _ => return fault(pointer, "a schema must be an object, true or false"),
        };
        for (key, value) in map {
            self.keyword(key, value, &below(pointer, key), depth)?;
        }
        check_together(map, pointer)
    }

    fn keyword(
        &mut self,
        key: &str,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<(), SchemaFault> {
        match key {
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                let Value::Object(map) = value else {
                    return fault(at, "must be an object of schemas");
                };
                for (name, schema) in map {
                    let here = below(at, name);
                    if key == "patternProperties" {
                        check_pattern(name, &here)?;
                    }
                    self.schema(schema, &here, depth + 1)?;
                }
                Ok(())
            }
            "items" | "additionalProperties" | "additionalItems" => {
                if value.is_array() {
                    return fault(
                        at,
                        "a list of schemas is written `prefixItems` since 2020-12",
                    );
                }
                self.schema(value, at, depth + 1)
            }
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
                    return fault(at, "must be a list with at least one schema");
                };
                for (place, schema) in list.iter().enumerate() {
                    self.schema(schema, &format!("{at}/{place}"), depth + 1)?;
                }
                Ok(())
            }
            "$ref" => self.reference(value, at),
            "enum" => {
                let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
                    return fault(at, "must be a list with at least one value");
                };
                list.iter()
                    .try_for_each(|value| self.value(value, at, depth))
            }
            "const" => self.value(value, at, depth),
            _ => check_value(key, value, at),
        }
    }

    /// A value of `const` or `enum`.
    fn value(&mut self, value: &Value, at: &str, depth: usize) -> Result<(), SchemaFault> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return fault(
                at,
                format!("the schema lists more than {VALUES_MAX} values; list fewer"),
            );
        }
        if depth > DEPTH_MAX {
            return fault(at, format!("values nest deeper than {DEPTH_MAX} levels"));
        }
        match value {
            Value::Number(number)
                if number
                    .as_f64()
                    .is_none_or(|number| number.abs() > NUMBER_MAX) =>
            {
                fault(at, "numbers must be within 1e15 of zero")
            }
            Value::String(text)
                if text
                    .chars()
                    .any(|c| c.is_control() && !"\n\r\t\u{8}\u{c}".contains(c)) =>
            {
                fault(at, "control characters cannot be written")
            }
            Value::Array(list) => list
                .iter()
                .try_for_each(|value| self.value(value, at, depth + 1)),
            Value::Object(map) => map
                .values()
                .try_for_each(|value| self.value(value, at, depth + 1)),
            _ => Ok(()),
        }
    }

    fn reference(&self, value: &Value, at: &str) -> Result<(), SchemaFault> {
        let Some(text) = value.as_str() else {
            return fault(at, "must be a text");
        };
        if text == "#" {
            return Ok(());
        }
        if !text.starts_with("#/") || text.contains(['~', '%']) {
            return fault(
                at,
                format!("{text:?} must be # or a plain path like #/$defs/name; nothing is fetched"),
            );
        }
        match self.root.pointer(&text[1..]) {
            Some(Value::Object(_) | Value::Bool(_)) => Ok(()),
            _ => fault(at, format!("{text:?} is not in the schema")),
        }
    }
}

/// A keyword that has no schema in it.
fn check_value(key: &str, value: &Value, at: &str) -> Result<(), SchemaFault> {
    match key {
        "type" => check_type(value, at),
        "required" => check_required(value, at),
        "pattern" => match value.as_str() {
            Some(pattern) => check_pattern(pattern, at),
            None => fault(at, "must be a text"),
        },
        "format" => match value.as_str() {
            Some(format) if FORMATS.contains(&format) => Ok(()),
            _ => fault(
                at,
                format!(
                    "format {value} is not supported; use one of {} or a pattern",
                    FORMATS.join(", ")
                ),
            ),
        },
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            match value.as_u64() {
                Some(count) if count <= COUNT_MAX => Ok(()),
                Some(_) => fault(
                    at,
                    format!("is above {COUNT_MAX}; use a smaller bound, or none"),
                ),
                None => fault(at, "must be a whole number"),
            }
        }
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => match value.as_f64() {
            Some(number) if number.abs() <= NUMBER_MAX => Ok(()),
            _ => fault(at, "must be a number within 1e15 of zero"),
        },
        "multipleOf" => match value.as_f64() {
            Some(number) if (1e-6..=1e6).contains(&number) => Ok(()),
            _ => fault(at, "must be a number from 0.000001 to 1000000"),
        },
        note if NOTES.contains(&note) => Ok(()),
        _ => fault(at, "this keyword is not supported; leave it out"),
    }
}

fn check_type(value: &Value, at: &str) -> Result<(), SchemaFault> {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let fits = match value {
        Value::Array(list) => !list.is_empty() && list.iter().all(known),
        one => known(one),
    };
    if fits {
        return Ok(());
    }
    fault(
        at,
        format!("must be one of {}, or a list of them", TYPES.join(", ")),
    )
}

fn check_required(value: &Value, at: &str) -> Result<(), SchemaFault> {
    if value
        .as_array()
        .is_some_and(|list| list.iter().all(Value::is_string))
    {
        return Ok(());
    }
    fault(at, "must be a list of names")
}

fn check_pattern(pattern: &str, at: &str) -> Result<(), SchemaFault> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return fault(
            at,
            format!("the pattern has more than {PATTERN_BYTES_MAX} bytes"),
        );
    }
    let searched = regex_to_lark(pattern, "dw");
    RegexBuilder::new()
        .mk_regex_for_serach(&searched)
        .map(drop)
        .or_else(|error| fault(at, format!("the pattern cannot be used: {error}")))
}

/// What two keywords mean only together.
fn check_together(map: &Map<String, Value>, pointer: &str) -> Result<(), SchemaFault> {
    let count = |key: &str| map.get(key).and_then(Value::as_u64);
    let required = map
        .get("required")
        .and_then(Value::as_array)
        .map_or(0, Vec::len) as u64;
    if count("minProperties").is_some_and(|least| least > required + 1) {
        // Names of further properties may repeat, so only one of them is sure to count.
        let at = below(pointer, "minProperties");
        return fault(
            &at,
            "more properties than `required` names, and one, cannot be counted",
        );
    }
    for (least, most) in [
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
    ] {
        if let (Some(low), Some(high)) = (count(least), count(most))
            && low > high
        {
            return fault(
                &below(pointer, least),
                format!("is above {most}: nothing is valid"),
            );
        }
    }
    // The library merges both numbers without looking whether they fit.
    if map.contains_key("multipleOf") && map.contains_key("allOf") {
        return fault(
            &below(pointer, "multipleOf"),
            "is not supported beside allOf",
        );
    }
    if let Some(list) = map.get("allOf").and_then(Value::as_array)
        && list.len() > 1
        && list.iter().any(|part| part.get("multipleOf").is_some())
    {
        return fault(
            &below(pointer, "allOf"),
            "multipleOf is not supported inside allOf",
        );
    }
    Ok(())
}
