//! Hostile files: the same functions that `fuzz/` gives to libFuzzer, with seeded changes of good files, so that they run everywhere.
//! `WEIR_FUZZ_ROUNDS` is the number of changes of each file.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weir_model::{Adapter, OpenFiles, fuzz};

use crate::harness::golden;

#[path = "../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;

/// Changes of each file in the tests.
const ROUNDS: u64 = 400;

fn rounds() -> u64 {
    let asked = std::env::var("WEIR_FUZZ_ROUNDS").ok();
    asked.map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}

/// Numbers at which things break.
const SIZES: [u64; 12] = [
    0,
    1,
    2,
    7,
    8,
    255,
    1 << 16,
    1 << 31,
    1 << 32,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];
/// Pieces of JSON that change what something is.
const WORDS: [&str; 12] = [
    "null",
    "-1",
    "0",
    "1e999",
    "18446744073709551615",
    "4294967296",
    "[]",
    "{}",
    "\"\"",
    "true",
    "[[[[[[[[",
    "\"\\u0000\"",
];

struct Changes(u64);

impl Changes {
    fn below(&mut self, bound: usize) -> usize {
        let number = splitmix::next(&mut self.0) % bound.max(1) as u64;
        usize::try_from(number).unwrap()
    }

    /// Some changes, mostly near the front, where headers are.
    fn of(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..=self.below(4) {
            let front = if self.below(4) == 0 {
                bytes.len()
            } else {
                bytes.len().min(1500)
            };
            let at = self.below(front);
            let rest = bytes.len() - at;
            match self.below(8) {
                0 if rest > 0 => bytes[at] ^= 1 << self.below(8),
                1 if rest > 0 => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                2 if rest >= 8 => {
                    let size = SIZES[self.below(SIZES.len())].to_le_bytes();
                    bytes[at..at + 8].copy_from_slice(&size);
                }
                3 if rest >= 4 => {
                    let size = SIZES[self.below(SIZES.len())].to_le_bytes();
                    bytes[at..at + 4].copy_from_slice(&size[..4]);
                }
                4 => bytes.truncate(at),
                5 => {
                    let piece = bytes[at..at + rest.min(1 + self.below(64))].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, piece);
                }
                6 => {
                    let end = at + rest.min(1 + self.below(16));
                    bytes.drain(at..end);
                }
                _ => self.replace_word(&mut bytes, at),
            }
        }
        bytes
    }

    /// What stands behind the next colon becomes something else.
    fn replace_word(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let after = |from: usize, ends: &[u8]| {
            let found = bytes[from..].iter().position(|byte| ends.contains(byte));
            found.map(|place| from + place)
        };
        if let Some(colon) = after(at, b":")
            && let Some(end) = after(colon, b",}]")
        {
            let word = WORDS[self.below(WORDS.len())].bytes();
            bytes.splice(colon + 1..end, word);
        }
    }
}

fn try_all(name: &str, corpus: &[Vec<u8>], parse: fn(&[u8])) {
    for (file, good) in corpus.iter().enumerate() {
        parse(good);
        for seed in 0..rounds() {
            let bytes = Changes(seed << 8 | file as u64).of(good);
            let result = catch_unwind(AssertUnwindSafe(|| parse(&bytes)));
            assert!(result.is_ok(), "{name}: seed {seed} of file {file} panics");
        }
    }
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(golden(name)).unwrap()
}

#[test]
fn no_safetensors_file_breaks_the_reader() {
    let corpus = ["qwen3/model.safetensors", "gguf/q8_0.safetensors"].map(read);
    try_all("safetensors", &corpus, fuzz::safetensors);
}

#[test]
fn no_adapter_breaks_the_reader() {
    let corpus = ["adapters/all", "adapters/expression"].map(|name| {
        let config = read(&format!("{name}/adapter_config.json"));
        let mut both = u32::try_from(config.len()).unwrap().to_le_bytes().to_vec();
        both.extend(config);
        both.extend(read(&format!("{name}/adapter_model.safetensors")));
        both
    });
    // The base that the function has is the one they were made for.
    for (good, name) in corpus.iter().zip(["all", "expression"]) {
        let files = OpenFiles::from_dir(&golden(&format!("adapters/{name}"))).unwrap();
        let config = std::fs::read(golden("llama-f32/config.json")).unwrap();
        let config = weir_model::config::ModelConfig::parse(&config).unwrap();
        assert!(Adapter::load(&files, &config).is_ok() && !good.is_empty());
    }
    try_all("adapter", &corpus, fuzz::adapter);
}

#[test]
fn no_gguf_file_breaks_the_reader() {
    let corpus = ["gguf/q8_0.gguf", "gguf/q4_0.gguf"].map(read);
    try_all("gguf", &corpus, fuzz::gguf);
}

#[test]
fn no_tokenizer_breaks_the_reader() {
    let bpe = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 4, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "_"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<0x0A>": 3, "<s>": 4}, "merges": [["a", "b"]], "byte_fallback": true},
    });
    try_all(
        "tokenizer.json",
        &[bpe.to_string().into_bytes()],
        fuzz::tokenizer,
    );
}

#[test]
fn no_template_breaks_the_reader() {
    let source = "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[{{ m.content | trim | upper }}]{% else %}{{ raise_exception('no') }}{% endif %}{% endfor %}{% set x = range(3) | list %}{{ x | tojson }}{{ strftime_now('%Y') }}";
    let config = serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": source});
    let corpus = [config.to_string().into_bytes(), source.as_bytes().to_vec()];
    try_all("chat template", &corpus, fuzz::chat_template);
}

#[test]
fn no_configuration_breaks_the_reader() {
    let corpus = [
        "qwen2-window/config.json",
        "llama3-rope/config.json",
        "mistral-window/config.json",
    ]
    .map(read);
    try_all("config.json", &corpus, fuzz::config);
}
