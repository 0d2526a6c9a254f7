//! Small tokenizers for tests, built as the JSON the library reads.

use serde_json::{Value, json};

use crate::tokenizer::Tokenizer;

/// The printable character GPT-2's alphabet has for a byte.
fn char_of_byte(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|&byte| !is_printable(byte)).count();
    char::from_u32(0x100 + u32::try_from(place).unwrap()).unwrap()
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": special})
}

/// Byte-level BPE: all bytes, some merges, then `<|bos|>`, `<|im_start|>`, `<|im_end|>` (special) and `<think>` (not special).
pub(crate) fn byte_level_json() -> String {
    let mut names: Vec<String> = (0..=255)
        .map(|byte| char_of_byte(byte).to_string())
        .collect();
    let mut merges = Vec::new();
    for (left, right) in [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ġ", "w"),
        ("í", "ķ"),
        ("ì", "Ķ"),
        ("s", "y"),
    ] {
        merges.push(json!([left, right]));
        names.push(format!("{left}{right}"));
    }
    let vocab: serde_json::Map<String, Value> = names
        .iter()
        .enumerate()
        .map(|(id, name)| (name.clone(), json!(id)))
        .collect();
    let first = names.len();
    let bos = json!({"id": "<|bos|>", "ids": [first], "tokens": ["<|bos|>"]});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(first, "<|bos|>", true), added(first + 1, "<|im_start|>", true),
            added(first + 2, "<|im_end|>", true), added(first + 3, "<think>", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|bos|>": bos}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
    .to_string()
}

/// BPE as Llama 2 has it: spaces as `▁`, bytes as `<0x00>` …, a space put in front of the text and taken off again.
pub(crate) fn sentence_piece_json() -> String {
    let mut names: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    names.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    names.extend(["▁", "h", "e", "l", "o", "w", "한", "글", "!"].map(String::from));
    let mut merges = Vec::new();
    for (left, right) in [("▁", "h"), ("▁h", "e"), ("l", "l"), ("▁", "w"), ("▁", "▁")] {
        merges.push(json!([left, right]));
        names.push(format!("{left}{right}"));
    }
    let vocab: serde_json::Map<String, Value> = names
        .iter()
        .enumerate()
        .map(|(id, name)| (name.clone(), json!(id)))
        .collect();
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
    .to_string()
}

/// Whole words with a decoder this crate has no table for.
pub(crate) fn word_piece_json() -> String {
    let names = ["[UNK]", "play", "##ing", "##ed", "the", "game", ","];
    let vocab: serde_json::Map<String, Value> = names
        .iter()
        .enumerate()
        .map(|(id, name)| ((*name).to_owned(), json!(id)))
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added(0, "[UNK]", true)],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
    .to_string()
}

pub(crate) fn tokenizer(json: &str) -> Tokenizer {
    Tokenizer::from_bytes(json.as_bytes()).unwrap()
}
