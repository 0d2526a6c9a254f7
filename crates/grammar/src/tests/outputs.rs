//! Masks against what each token's bytes do, and whole outputs against independent readers.

use super::*;

/// The oracle: a token is allowed exactly if its bytes can be taken one after the other, each through a vocabulary of single bytes.
#[test]
fn a_mask_is_what_every_token_s_bytes_say() {
    let (words, vocabulary, bytes) = (words(), vocabulary(), Vocabulary::bytes().unwrap());
    for (at, source) in sources().iter().enumerate() {
        let mut dice = Dice(at as u64 + 1);
        let (start, oracle) = (
            vocabulary.compile(source).unwrap(),
            bytes.compile(source).unwrap(),
        );
        for _ in 0..2 {
            let mut matcher = start.fork();
            let mut oracle = oracle.fork();
            let mut taken: Vec<u8> = Vec::new();
            for step in 0..10 {
                let mask = matcher.mask().unwrap();
                let first = oracle.mask().unwrap();
                for (token, word) in (0_u32..).zip(&words) {
                    let want = match word.as_slice() {
                        [] => oracle.may_end().unwrap(),
                        [byte] => allows(&first, u32::from(*byte)),
                        // Most fail at the first byte, which needs no copy.
                        [byte, ..] => allows(&first, u32::from(*byte)) && takes(&oracle, word),
                    };
                    assert_eq!(
                        allows(&mask, token),
                        want,
                        "{source:?} after {:?}: token {word:?}",
                        String::from_utf8_lossy(&taken)
                    );
                }
                let allowed: Vec<u32> = (0..words.len() as u32)
                    .filter(|&token| token != END && allows(&mask, token))
                    .collect();
                if allowed.is_empty() {
                    assert!(step > 0);
                    break;
                }
                let token = allowed[dice.roll(allowed.len())];
                taken.extend(&words[token as usize]);
                matcher.advance(token).unwrap();
                for byte in &words[token as usize] {
                    oracle.advance(u32::from(*byte)).unwrap();
                }
                if matcher.is_complete() {
                    break;
                }
            }
        }
    }
}

fn takes(state: &Matcher, word: &[u8]) -> bool {
    let mut state = state.fork();
    !word.is_empty()
        && word.iter().all(|byte| {
            if state.is_complete() {
                return false;
            }
            let mask = state.mask().unwrap();
            allows(&mask, u32::from(*byte)) && state.advance(u32::from(*byte)).is_ok()
        })
}

#[test]
fn every_finished_walk_is_json_of_its_schema() {
    let (words, vocabulary) = (words(), vocabulary());
    let matcher = vocabulary.compile(&sources()[0]).unwrap();
    let mut finished = 0;
    for seed in 0..60 {
        let Some(bytes) = walk(&mut matcher.fork(), &words, &mut Dice(seed), 400) else {
            continue;
        };
        finished += 1;
        let text = String::from_utf8(bytes).unwrap();
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(
            value["name"].as_str().unwrap().chars().count() <= 6,
            "{text}"
        );
        assert!(
            (-12..=12).contains(&value["age"].as_i64().unwrap()),
            "{text}"
        );
        let names: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert!(
            names
                .iter()
                .all(|name| ["name", "age", "tags", "next"].contains(&name.as_str())),
            "{text}"
        );
    }
    assert!(finished > 20, "{finished}");
}

#[test]
fn the_state_is_a_function_of_the_tokens() {
    let (words, vocabulary) = (words(), vocabulary());
    for source in sources() {
        let mut one = vocabulary.compile(&source).unwrap();
        let mut tokens = Vec::new();
        let mut dice = Dice(7);
        for _ in 0..20 {
            let mask = one.mask().unwrap();
            let allowed: Vec<u32> = (0..words.len() as u32)
                .filter(|&token| token != END && allows(&mask, token))
                .collect();
            let Some(token) = allowed.get(dice.roll(allowed.len().max(1))) else {
                break;
            };
            one.advance(*token).unwrap();
            tokens.push(*token);
            if one.is_complete() {
                break;
            }
        }
        let mut again = vocabulary.compile(&source).unwrap();
        for token in &tokens {
            again.advance(*token).unwrap();
        }
        assert_eq!(one.is_complete(), again.is_complete());
        if !one.is_complete() {
            assert_eq!(one.mask().unwrap(), again.mask().unwrap(), "{source:?}");
        }
    }
}

#[test]
fn a_token_outside_of_the_grammar_is_refused_for_good() {
    let mut matcher = vocabulary()
        .compile(&Source::Regex("ab".to_owned()))
        .unwrap();
    assert!(matches!(
        matcher.advance(u32::from(b'x')),
        Err(GrammarError::Left { .. })
    ));
    assert!(matcher.mask().is_err());
    assert!(!matcher.is_complete());
}

/// What a parser makes of an output must not depend on how it is cut.
#[test]
fn calls_come_out_whole_however_the_output_is_cut() {
    let (words, vocabulary) = (words(), vocabulary());
    for format in [ToolFormat::Hermes, ToolFormat::Llama] {
        for choice in [ToolChoice::Required, ToolChoice::Auto] {
            let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}, "required": ["a"], "additionalProperties": false});
            let spec = tools(format, choice, &parameters);
            let matcher = vocabulary.compile(&Source::Tools(spec.clone())).unwrap();
            let mut calls = 0;
            for seed in 0..25 {
                let Some(bytes) = walk(&mut matcher.fork(), &words, &mut Dice(seed), 300) else {
                    continue;
                };
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut whole = Parsed::default();
                let mut parser = CallParser::new(&spec);
                parser.push(&text, &mut whole).unwrap();
                parser.finish(&mut whole);
                let mut cut = Parsed::default();
                let mut parser = CallParser::new(&spec);
                for c in text.chars() {
                    parser.push(&c.to_string(), &mut cut).unwrap();
                }
                parser.finish(&mut cut);
                assert_eq!(whole, cut, "{text}");
                for piece in &whole.pieces {
                    if let CallPiece::Arguments { part, .. } = piece {
                        let arguments: Value = serde_json::from_str(part).unwrap();
                        assert!(arguments["a"].is_string());
                        calls += 1;
                    }
                }
                if choice == ToolChoice::Required {
                    assert!(!whole.pieces.is_empty() && whole.text.is_empty(), "{text}");
                } else if whole.pieces.is_empty() {
                    assert_eq!(whole.text, text);
                }
            }
            assert!(calls > 0 || choice == ToolChoice::Auto);
        }
    }
}

#[test]
fn text_before_a_call_is_text_and_a_call_that_is_none_is_an_error() {
    let spec = tools(
        ToolFormat::Hermes,
        ToolChoice::Auto,
        &json!({"type": "object"}),
    );
    let mut parser = CallParser::new(&spec);
    let mut parsed = Parsed::default();
    parser.push("I <tool it: <tool_call>\n{\"name\": \"ab\", \"arguments\": {\"x\": \"}\\\"{\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"abc\", \"arguments\": {}}", &mut parsed).unwrap();
    assert_eq!(parsed.text, "I <tool it: ");
    let want = [
        CallPiece::Name {
            index: 0,
            name: "ab".to_owned(),
        },
        CallPiece::Arguments {
            index: 0,
            part: "{\"x\": \"}\\\"{\"}".to_owned(),
        },
        CallPiece::Name {
            index: 1,
            name: "abc".to_owned(),
        },
        CallPiece::Arguments {
            index: 1,
            part: "{}".to_owned(),
        },
    ];
    assert_eq!(parsed.pieces, want);
    let mut parser = CallParser::new(&spec);
    let mut parsed = Parsed::default();
    assert!(parser.push("<tool_call>oh", &mut parsed).is_err());
    assert!(parsed.pieces.is_empty());
}

#[test]
fn text_that_never_becomes_a_call_may_hold_the_beginning_of_one() {
    let mut parser = CallParser::new(&tools(
        ToolFormat::Hermes,
        ToolChoice::Auto,
        &json!({"type": "object"}),
    ));
    let mut parsed = Parsed::default();
    parser.push("a <tool", &mut parsed).unwrap();
    assert_eq!(parsed.text, "a ");
    parser.finish(&mut parsed);
    assert_eq!(parsed.text, "a <tool");
}

/// With a format beside the tools an output is one document of the schema, or calls and nothing else; a text in the document may look
/// like a call.
#[test]
fn an_output_with_tools_and_a_format_is_calls_or_a_document_of_the_schema() {
    let (words, vocabulary) = (words(), vocabulary());
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}, "required": ["a"], "additionalProperties": false});
    let schema = json!({"type": "object", "properties": {"b": {"type": "string", "maxLength": 14}}, "required": ["b"], "additionalProperties": false});
    let spec = ToolSpec {
        answer: Some(schema),
        ..tools(ToolFormat::Hermes, ToolChoice::Auto, &parameters)
    };
    let matcher = vocabulary.compile(&Source::Tools(spec.clone())).unwrap();
    let (mut called, mut answered) = (0, 0);
    for seed in 0..60 {
        let Some(bytes) = walk(&mut matcher.fork(), &words, &mut Dice(seed), 300) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut parsed = Parsed::default();
        let mut parser = CallParser::new(&spec);
        for c in text.chars() {
            parser.push(&c.to_string(), &mut parsed).unwrap();
        }
        parser.finish(&mut parsed);
        if parsed.pieces.is_empty() {
            let document: Value = serde_json::from_str(&parsed.text).unwrap();
            assert!(document["b"].is_string(), "{text}");
            answered += 1;
        } else {
            assert!(parsed.text.is_empty(), "{text}");
            called += 1;
        }
    }
    assert!(
        called > 0 && answered > 0,
        "{called} called, {answered} answered"
    );
    let mut parsed = Parsed::default();
    let mut parser = CallParser::new(&spec);
    parser
        .push("{\"b\": \"<tool_call>\"}", &mut parsed)
        .unwrap();
    parser.finish(&mut parsed);
    assert_eq!(parsed.text, "{\"b\": \"<tool_call>\"}");
    assert!(parsed.pieces.is_empty());
    let llama = ToolSpec {
        format: ToolFormat::Llama,
        ..spec
    };
    assert!(llama.check().is_err(), "its calls are objects too");
}
