//! Time to compile a schema, to make a mask and to take a token, over a vocabulary of about 128,000 tokens.
//!
//! `cargo run --release -p weir-grammar --example mask_time`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a tool that prints"
)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_grammar::{Source, Tool, ToolChoice, ToolFormat, ToolSpec, Vocabulary};

const END: u32 = 256;

/// Bytes, and words of two to four syllables with and without a space, as vocabularies have them.
fn words() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.push(Vec::new());
    let syllables = [
        "a", "be", "ci", "do", "fu", "ga", "her", "in", "jo", "ka", "le", "ment", "ni", "on",
        "per", "qu", "re", "st", "tion", "un", "ve", "wa", "ex", "ly", "za",
    ];
    let marks = [
        "\"", "\":", "\": ", "\",", ", \"", "{\"", "\"}", "}}", "[", "]", "},", "12", "007", "3.",
        "\n  ", "true", "false", "null",
    ];
    words.extend(marks.iter().map(|mark| mark.as_bytes().to_vec()));
    for first in syllables {
        for second in syllables {
            words.push(format!("{first}{second}").into_bytes());
            for third in syllables {
                words.push(format!(" {first}{second}{third}").into_bytes());
                for fourth in ["", "s", "ed", "ing", "er", "\"", "."] {
                    words.push(format!("{third}{first}{second}{fourth}").into_bytes());
                }
            }
        }
    }
    words.sort();
    words.dedup();
    words.retain(|word| word.len() != 1 && !word.is_empty());
    let mut all: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    all.push(Vec::new());
    all.extend(words);
    all
}

fn main() {
    let words = words();
    let begin = Instant::now();
    let vocabulary = Vocabulary::new(words.clone(), &[END]).unwrap();
    println!(
        "vocabulary of {} tokens in {:.1?}",
        words.len(),
        begin.elapsed()
    );
    let parameters = json!({"type": "object", "required": ["city", "unit"], "additionalProperties": false,
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}, "days": {"type": "array", "items": {"type": "integer"}}}});
    let spec = ToolSpec {
        format: ToolFormat::Hermes,
        choice: ToolChoice::Auto,
        parallel: true,
        tools: vec![Tool {
            name: "weather".to_owned(),
            parameters: parameters.clone(),
        }],
        answer: None,
    };
    measure(
        "schema, 3 properties",
        &vocabulary,
        &words,
        &Source::JsonSchema(parameters),
    );
    measure(
        "any JSON object",
        &vocabulary,
        &words,
        &Source::JsonSchema(json!({"type": "object"})),
    );
    measure(
        "wide schema, 60 properties",
        &vocabulary,
        &words,
        &Source::JsonSchema(wide()),
    );
    measure("tools, auto", &vocabulary, &words, &Source::Tools(spec));
    measure(
        "regular expression",
        &vocabulary,
        &words,
        &Source::Regex("[A-Z][a-z]+( [a-z]+){3,40}\\.".to_owned()),
    );
}

fn wide() -> Value {
    let properties: serde_json::Map<String, Value> = (0..60)
        .map(|at| {
            (
                format!("property{at}"),
                json!({"type": ["string", "null"], "maxLength": 40}),
            )
        })
        .collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn measure(name: &str, vocabulary: &Vocabulary, words: &[Vec<u8>], source: &Source) {
    let begin = Instant::now();
    let compiled = vocabulary.compile(source).unwrap();
    let compile = begin.elapsed();
    let (mut masks, mut advances, mut forks) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    let mut state = 7_u64;
    while masks.len() < 3_000 {
        let begin = Instant::now();
        let mut matcher = compiled.fork();
        forks = forks.max(begin.elapsed());
        for _ in 0..200 {
            let begin = Instant::now();
            let Ok(mask) = matcher.mask() else { break };
            masks.push(begin.elapsed());
            let allowed: Vec<u32> = (0..words.len() as u32)
                .filter(|token| {
                    *token != END && mask[*token as usize / 32] >> (token % 32) & 1 == 1
                })
                .collect();
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let Some(token) = allowed.get((state >> 33) as usize % allowed.len().max(1)) else {
                break;
            };
            let begin = Instant::now();
            matcher.advance(*token).unwrap();
            advances += begin.elapsed();
            if matcher.is_complete() {
                break;
            }
        }
    }
    masks.sort_unstable();
    let at = |percent: usize| masks[(masks.len() - 1) * percent / 100];
    println!(
        "{name}: compile {compile:.1?}, mask p50 {:.1?} p99 {:.1?} most {:.1?}, take a token {:.1?}, copy {forks:.1?} at most",
        at(50),
        at(99),
        at(100),
        advances / masks.len() as u32
    );
}
