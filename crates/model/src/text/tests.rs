use serde_json::json;

use super::*;
use crate::files::FileBytes;
use crate::testing::byte_level_json;

fn files(changes: &[(&str, Option<String>)]) -> FileBytes {
    let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 32,
        "num_attention_heads": 4, "eos_token_id": 3});
    let tokenizer_config = json!({"bos_token": "<|bos|>", "eos_token": "<|im_end|>",
        "chat_template": "{{ bos_token }}{{ messages[0].content }}<|im_end|>"});
    let mut all: std::collections::BTreeMap<String, String> = [
        (CONFIG_FILE, config.to_string()),
        (TOKENIZER_FILE, byte_level_json()),
        (TOKENIZER_CONFIG_FILE, tokenizer_config.to_string()),
    ]
    .map(|(name, content)| (name.to_owned(), content))
    .into();
    for (name, content) in changes {
        match content {
            Some(content) => all.insert((*name).to_owned(), content.clone()),
            None => all.remove(*name),
        };
    }
    FileBytes::new(
        all.into_iter()
            .map(|(name, content)| (name, content.into_bytes())),
    )
}

#[test]
fn a_plain_prompt_gets_bos_exactly_once() {
    let text = ModelText::from_files(&files(&[])).unwrap();
    let bos = text.tokenizer.token_id("<|bos|>").unwrap();
    for prompt in ["hello", "<|bos|>hello", ""] {
        let tokens = text.encode_prompt(prompt).unwrap();
        assert_eq!(
            tokens.iter().filter(|&&token| token == bos).count(),
            1,
            "{prompt}"
        );
        assert_eq!(tokens[0], bos);
    }
    assert_eq!(
        text.encode_prompt("hello").unwrap(),
        text.encode_prompt("<|bos|>hello").unwrap()
    );
}

#[test]
fn every_end_token_of_every_file_ends_a_text() {
    let generation = json!({"eos_token_id": [5, 6]}).to_string();
    let text = ModelText::from_files(&files(&[(GENERATION_FILE, Some(generation))])).unwrap();
    let end = text.tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!(text.eos_tokens(), [5, 6, end]);
    assert!(
        text.is_eos(6) && !text.is_eos(3),
        "generation_config.json replaces config.json"
    );
}

#[test]
fn a_chat_is_rendered_from_small_files_alone() {
    let text = ModelText::from_files(&files(&[])).unwrap();
    let chat = text
        .encode_chat(&[json!({"role": "user", "content": "hello"})], 0)
        .unwrap();
    assert_eq!(chat.text, "<|bos|>hello<|im_end|>");
    assert_eq!(text.tokenizer.decode(&chat.tokens), "hello");
}

#[test]
fn unusable_files_are_refused_with_a_chain_that_names_them() {
    let chain = |changes: &[(&str, Option<String>)]| {
        let error = ModelText::from_files(&files(changes)).unwrap_err();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(current) = cause {
            text = format!("{text}: {current}");
            cause = current.source();
        }
        text
    };
    let small = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 100});
    for (name, content, want) in [
        (CONFIG_FILE, None, "file \"config.json\" is missing"),
        (TOKENIZER_FILE, None, "file \"tokenizer.json\" is missing"),
        (
            TOKENIZER_FILE,
            Some("{}".to_owned()),
            "\"tokenizer.json\" is not a tokenizer",
        ),
        (
            CONFIG_FILE,
            Some(small.to_string()),
            "tokenizer has 268 tokens, but \"config.json\" says vocab_size 100",
        ),
        (
            GENERATION_FILE,
            Some("{\"top_p\": 2}".to_owned()),
            "\"generation_config.json\": key \"top_p\" = 2",
        ),
        (
            TOKENIZER_CONFIG_FILE,
            Some("[]".to_owned()),
            "\"tokenizer_config.json\": is not an object",
        ),
        (
            TEMPLATE_FILE,
            Some("{% endfor %}".to_owned()),
            "chat template of the model does not parse",
        ),
    ] {
        let text = chain(&[(name, content)]);
        assert!(text.contains(want), "{text}");
    }
}
