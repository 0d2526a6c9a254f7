#![allow(
    clippy::cast_possible_truncation,
    clippy::similar_names,
    reason = "vocabularies of tests are small; a token is taken"
)]

use serde_json::{Value, json};

use super::*;

mod hostile;
mod outputs;

/// Bytes, and some tokens of several bytes as real vocabularies have them: across quotes, brackets, tags and characters.
fn words() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.push(Vec::new());
    let long = [
        "{\"",
        "\":",
        "\": ",
        "\",",
        "\"}",
        "}}",
        "[]",
        "true",
        "false",
        "null",
        "name",
        "age",
        "12",
        "-1",
        ".5",
        "e3",
        "한",
        "\u{1F600}",
        "\\n",
        "\\\"",
        " ",
        "  ",
        "\n  ",
        "<tool",
        "_call>",
        "<tool_call>",
        "}\n</tool_call>",
        "ab",
        "abc",
        "b",
        "{}",
    ];
    words.extend(long.iter().map(|word| word.as_bytes().to_vec()));
    // The first half of a character, and its second with something behind it.
    words.push(vec![0xED, 0x95]);
    words.push(vec![0x9C, b'"']);
    words
}

const END: u32 = 256;

fn vocabulary() -> Vocabulary {
    Vocabulary::new(words(), &[END]).unwrap()
}

fn allows(mask: &Mask, token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

fn sources() -> Vec<Source> {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": -12, "maximum": 12},
            "tags": {"type": "array", "items": {"enum": ["ab", "abc", true, null, 0.5]}, "maxItems": 2},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        },
    });
    vec![
        Source::JsonSchema(schema.clone()),
        Source::JsonSchema(
            json!({"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "string", "pattern": "^a+b?$"}, "maxItems": 3}),
        ),
        Source::Regex("^(ab|b)+c?\\d{1,3}한?$".to_owned()),
        Source::Lark("start: pair+\npair: \"ab\" | \"{\" pair \"}\"\n".to_owned()),
        Source::Tools(tools(ToolFormat::Hermes, ToolChoice::Auto, &schema)),
        Source::Tools(tools(ToolFormat::Hermes, ToolChoice::Required, &schema)),
        Source::Tools(tools(ToolFormat::Llama, ToolChoice::Auto, &schema)),
        Source::Tools(ToolSpec {
            answer: Some(schema.clone()),
            ..tools(ToolFormat::Hermes, ToolChoice::Auto, &schema)
        }),
    ]
}

fn tools(format: ToolFormat, choice: ToolChoice, parameters: &Value) -> ToolSpec {
    let tool = |name: &str| Tool {
        name: name.to_owned(),
        parameters: parameters.clone(),
    };
    ToolSpec {
        format,
        choice,
        parallel: true,
        tools: vec![tool("ab"), tool("abc")],
        answer: None,
    }
}

/// A small generator: tests need the same walks on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// One walk along allowed tokens; the bytes, once the output ends.
fn walk(matcher: &mut Matcher, words: &[Vec<u8>], dice: &mut Dice, most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..most {
        let mask = matcher.mask().unwrap();
        let allowed: Vec<u32> = (0..words.len() as u32)
            .filter(|&token| allows(&mask, token))
            .collect();
        let token = allowed[dice.roll(allowed.len())];
        if token == END {
            return Some(bytes);
        }
        bytes.extend(&words[token as usize]);
        matcher.advance(token).unwrap();
        if matcher.is_complete() {
            return Some(bytes);
        }
    }
    None
}
