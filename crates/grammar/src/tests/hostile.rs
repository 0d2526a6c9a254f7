//! Grammars that mean harm: each is refused, or compiled and followed, within bounded time.

use std::time::{Duration, Instant};

use super::*;

/// Memory of the process that runs all tests of this crate, at its highest.
const RESIDENT_KIB_MAX: u64 = 1 << 20;

/// Far above what any takes here, below what a person waits: the build is not optimised and shares the machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn nested(levels: usize) -> Value {
    (0..levels).fold(
        json!({"type": "null"}),
        |inner, _| json!({"type": "array", "items": inner}),
    )
}

#[test]
fn refusals_name_the_place() {
    let cases = [
        (
            json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b/c": {"type": "strin"}}}}}),
            "#/properties/a/properties/b~1c/type: must be one of",
        ),
        (
            json!({"type": "array", "uniqueItems": true}),
            "#/uniqueItems: this keyword is not supported",
        ),
        (json!({"if": {}, "then": {}}), "#/if: this keyword"),
        (
            json!({"x-guidance": {"lenient": true}}),
            "#/x-guidance: this keyword",
        ),
        (
            json!({"$ref": "https://example.com/schema"}),
            "#/$ref: \"https://example.com/schema\" must be",
        ),
        (
            json!({"$ref": "#/$defs/none"}),
            "#/$ref: \"#/$defs/none\" is not in the schema",
        ),
        (
            json!({"type": "string", "pattern": "("}),
            "#/pattern: the pattern cannot be used",
        ),
        (
            json!({"type": "string", "format": "idn-email"}),
            "#/format: format \"idn-email\" is not supported",
        ),
        (
            json!({"type": "string", "maxLength": 1_000_000_000_u64}),
            "#/maxLength: is above",
        ),
        (
            json!({"type": "string", "minLength": 5, "maxLength": 2}),
            "#/minLength: is above maxLength",
        ),
        (
            json!({"type": "number", "minimum": 1e300}),
            "#/minimum: must be a number within",
        ),
        (json!({"enum": []}), "#/enum: must be a list"),
        (
            json!({"minProperties": 3}),
            "#/minProperties: more properties",
        ),
        (json!(false), "#: false accepts no document"),
        (json!([1]), "#: a schema must be an object"),
        (nested(40), "schemas nest deeper than 32 levels"),
    ];
    for (schema, want) in cases {
        let error = Source::JsonSchema(schema.clone())
            .check()
            .unwrap_err()
            .to_string();
        assert!(error.contains(want), "{schema}: {error}");
    }
}

fn hostile() -> Vec<Source> {
    let doubling: serde_json::Map<String, Value> = (0..30)
        .map(|level| {
            let next = format!("#/$defs/d{}", (level + 1).min(29));
            (
                format!("d{level}"),
                json!({"allOf": [{"$ref": next}, {"$ref": next}], "type": "object"}),
            )
        })
        .collect();
    let many: Vec<String> = (0..1_900)
        .map(|at| format!("value-{at}-{}", at * 7919 % 1000))
        .collect();
    let wide: serde_json::Map<String, Value> = (0..900)
        .map(|at| {
            (
                format!("p{at}"),
                json!({"type": "string", "maxLength": 4000}),
            )
        })
        .collect();
    let any_of: Vec<Value> = (0..500)
        .map(|at| json!({"type": "object", "properties": {"a": {"const": at}, "b": {"$ref": "#"}}}))
        .collect();
    vec![
        Source::JsonSchema(json!({"$ref": "#"})),
        Source::JsonSchema(json!({"$ref": "#/$defs/d0", "$defs": doubling})),
        Source::JsonSchema(
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        ),
        Source::JsonSchema(json!({"enum": many})),
        Source::JsonSchema(json!({"type": "object", "properties": wide})),
        Source::JsonSchema(json!({"anyOf": any_of})),
        Source::JsonSchema(nested(31)),
        Source::JsonSchema(
            json!({"type": "string", "pattern": "^(a|a)*(a|a)*(a|a)*(a|a)*b$", "maxLength": 4000}),
        ),
        Source::JsonSchema(
            json!({"type": "string", "pattern": "((((a{0,50}){0,50}){0,50}){0,50}){0,50}"}),
        ),
        Source::JsonSchema(
            json!({"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 4096}, "maxItems": 4096}, "maxItems": 4096}),
        ),
        Source::Regex("(.*a.{4000}){10}".to_owned()),
        Source::Regex("(((((x{1,100}){1,100}){1,100}){1,100}){1,100})y".to_owned()),
        Source::Regex(format!("({}){{100}}", "(a|b|ab)*".repeat(700))),
        Source::Regex("[\\p{L}\\p{N}]{1,4000}[^\\p{L}]".to_owned()),
        Source::Lark(format!("start: {}\n", "a ".repeat(12_000)) + "a: \"x\" | \"\"\n"),
        Source::Lark("start: a a a a a a a a a a\na: a a | \"x\" | \"\"\n".to_owned()),
        Source::Lark("start: start \"x\" | start start | \"\"\n".to_owned()),
    ]
}

#[test]
fn hostile_grammars_end_soon_and_are_refused_or_followed() {
    let vocabulary = vocabulary();
    for source in hostile() {
        let begin = Instant::now();
        let name = format!("{source:?}").chars().take(100).collect::<String>();
        if let Ok(mut matcher) = vocabulary.compile(&source) {
            // Followed for a while, or ended by the bounds on the way: never for long.
            for _ in 0..40 {
                let Ok(mask) = matcher.mask() else { break };
                let Some(token) = (0..words().len() as u32)
                    .rev()
                    .find(|&token| token != END && allows(&mask, token))
                else {
                    break;
                };
                if matcher.advance(token).is_err() || matcher.is_complete() {
                    break;
                }
            }
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{name} took {:?}",
            begin.elapsed()
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let highest = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))
        .unwrap();
    assert!(
        highest.parse::<u64>().unwrap() < RESIDENT_KIB_MAX,
        "{highest} KiB"
    );
}

#[test]
fn what_is_too_large_is_refused_by_its_size() {
    let schema = format!("{{\"description\": \"{}\"}}", "x".repeat(1 << 20));
    assert!(matches!(
        Source::json_schema(&schema),
        Err(GrammarError::Size { .. })
    ));
    assert!(matches!(
        Source::Regex("a".repeat(9_000)).check(),
        Err(GrammarError::Size { .. })
    ));
    assert!(matches!(
        Source::Lark("(".repeat(100)).check(),
        Err(GrammarError::Depth { .. })
    ));
    let spec = tools(
        ToolFormat::Hermes,
        ToolChoice::Auto,
        &json!({"type": "object", "not": {}}),
    );
    assert!(
        spec.check()
            .unwrap_err()
            .to_string()
            .contains("tool \"ab\" cannot be used: #/not:")
    );
}

#[test]
fn a_vocabulary_that_cannot_spell_the_grammar_is_found_out_at_once() {
    let letters = Vocabulary::new(vec![b"a".to_vec(), b"b".to_vec(), Vec::new()], &[2]).unwrap();
    let error = letters
        .compile(&Source::JsonSchema(json!({"type": "object"})))
        .unwrap_err();
    assert!(matches!(error, GrammarError::Nothing { .. }), "{error}");
    assert!(matches!(
        Vocabulary::new(vec![Vec::new()], &[0]),
        Err(GrammarError::Vocabulary)
    ));
}
