//! `tokenizer.json` and `tokenizer_config.json` from a GGUF file's metadata.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::{Gguf, GgufError, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
/// Kinds of tokens, as files number them.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// How a byte-level tokenizer cuts a text before it merges.
#[expect(clippy::struct_excessive_bools, reason = "the columns of a table")]
struct Cut {
    /// `tokenizer.ggml.pre`
    names: &'static [&'static str],
    /// A pattern, or GPT-2's own.
    pattern: Option<&'static str>,
    /// Digits are cut apart before.
    digits: bool,
    /// Text is composed before (NFC).
    composes: bool,
    /// A whole piece that is a token is taken without merging.
    ignores_merges: bool,
    /// BOS in front where the file does not say.
    bos: bool,
}

const CUTS: [Cut; 4] = [
    Cut {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        digits: false,
        composes: false,
        ignores_merges: true,
        bos: true,
    },
    Cut {
        names: &["qwen2"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        digits: false,
        composes: true,
        ignores_merges: false,
        bos: false,
    },
    Cut {
        names: &["smollm"],
        pattern: None,
        digits: true,
        composes: false,
        ignores_merges: false,
        bos: false,
    },
    Cut {
        names: &["gpt-2"],
        pattern: None,
        digits: false,
        composes: false,
        ignores_merges: false,
        bos: false,
    },
];

/// The lists of a tokenizer, of equal length.
struct Tokens<'a> {
    texts: &'a [String],
    kinds: Option<&'a [i64]>,
}

impl Tokens<'_> {
    fn kind(&self, at: usize) -> i64 {
        self.kinds.map_or(1, |kinds| kinds[at])
    }

    fn vocabulary(&self) -> Map<String, Json> {
        let each = self.texts.iter().enumerate();
        each.map(|(id, text)| (text.clone(), json!(id))).collect()
    }

    /// Tokens that are found in a text as they are written.
    fn added(&self) -> Vec<Json> {
        let one = |(id, text): (usize, &String)| {
            let kind = self.kind(id);
            [UNKNOWN, CONTROL, USER_DEFINED].contains(&kind).then(|| {
                json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind != USER_DEFINED,
                })
            })
        };
        self.texts.iter().enumerate().filter_map(one).collect()
    }
}

impl Gguf {
    /// The text of `tokenizer.json`.
    ///
    /// # Errors
    /// The tokenizer is of a kind that is not read, or its lists do not fit each other.
    pub(crate) fn tokenizer_json(&self) -> Result<Vec<u8>, GgufError> {
        let key = "tokenizer.ggml.model";
        let tokens = self.tokens()?;
        let json = match self.get(key).and_then(Value::text).unwrap_or_default() {
            "gpt2" => self.byte_level(&tokens)?,
            "llama" => self.sentence_piece(&tokens)?,
            other => {
                let why = format!(
                    "= \"{other}\" is not supported (\"gpt2\" and \"llama\" are); put the model's tokenizer.json beside the file"
                );
                return Err(self.key_error(key, why));
            }
        };
        Ok(json.to_string().into_bytes())
    }

    /// The text of `tokenizer_config.json`: the template and the names of the ends.
    pub(crate) fn tokenizer_config_json(&self) -> Vec<u8> {
        let mut config = Map::new();
        if let Some(template) = self.get("tokenizer.chat_template").and_then(Value::text) {
            config.insert("chat_template".to_owned(), json!(template));
        }
        for (name, key) in [
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
        ] {
            if let Some(text) = self.token_text(key) {
                config.insert(name.to_owned(), json!(text));
            }
        }
        Json::Object(config).to_string().into_bytes()
    }

    fn token_text(&self, key: &str) -> Option<&str> {
        let id = usize::try_from(self.get(key)?.unsigned()?).ok()?;
        match self.get(TOKENS)? {
            Value::Strings(texts) => texts.get(id).map(String::as_str),
            _ => None,
        }
    }

    fn tokens(&self) -> Result<Tokens<'_>, GgufError> {
        let Some(Value::Strings(texts)) = self.get(TOKENS) else {
            let why = "must be a list of texts; put the model's tokenizer.json beside the file";
            return Err(self.key_error(TOKENS, why.to_owned()));
        };
        let key = "tokenizer.ggml.token_type";
        let kinds = match self.get(key) {
            None => None,
            Some(Value::Integers(kinds)) if kinds.len() == texts.len() => Some(kinds.as_slice()),
            Some(_) => {
                let why = format!("must be a list of {} integers", texts.len());
                return Err(self.key_error(key, why));
            }
        };
        Ok(Tokens { texts, kinds })
    }

    fn byte_level(&self, tokens: &Tokens<'_>) -> Result<Json, GgufError> {
        let cut = self.cut()?;
        let key = "tokenizer.ggml.merges";
        let Some(Value::Strings(merges)) = self.get(key) else {
            return Err(self.key_error(key, "must be a list of texts".to_owned()));
        };
        let pairs: Vec<_> = merges.iter().map(|merge| merge.split_once(' ')).collect();
        if pairs.iter().any(Option::is_none) {
            return Err(self.key_error(key, "must hold two tokens and a space in each".to_owned()));
        }
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let mut steps = Vec::new();
        if cut.digits {
            steps.push(json!({"type": "Digits", "individual_digits": true}));
        }
        if let Some(pattern) = cut.pattern {
            steps.push(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}));
        }
        steps.push(bytes(cut.pattern.is_none()));
        Ok(json!({
            "version": "1.0",
            "added_tokens": tokens.added(),
            "normalizer": if cut.composes { json!({"type": "NFC"}) } else { Json::Null },
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": self.ends(cut.bos)?,
            "decoder": bytes(true),
            "model": {
                "type": "BPE", "vocab": tokens.vocabulary(), "merges": pairs, "ignore_merges": cut.ignores_merges,
                "byte_fallback": false, "fuse_unk": false,
            },
        }))
    }

    fn cut(&self) -> Result<&'static Cut, GgufError> {
        let key = "tokenizer.ggml.pre";
        let name = self.get(key).and_then(Value::text).unwrap_or_default();
        let found = CUTS.iter().find(|cut| cut.names.contains(&name));
        found.ok_or_else(|| {
            let known: Vec<_> = CUTS.iter().map(|cut| cut.names[0]).collect();
            let why = format!(
                "= \"{name}\" is not supported ({} are); put the model's tokenizer.json beside the file",
                known.join(", ")
            );
            self.key_error(key, why)
        })
    }

    /// What comes before a text.
    fn ends(&self, bos_by_default: bool) -> Result<Json, GgufError> {
        let add = self.get("tokenizer.ggml.add_bos_token");
        if !add.and_then(Value::flag).unwrap_or(bos_by_default) {
            return Ok(Json::Null);
        }
        let key = "tokenizer.ggml.bos_token_id";
        let (Some(id), Some(text)) = (
            self.get(key).and_then(Value::unsigned),
            self.token_text(key),
        ) else {
            let why = "must name a token, because add_bos_token is true".to_owned();
            return Err(self.key_error(key, why));
        };
        Ok(json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
        }))
    }

    /// As `transformers` makes of a `SentencePiece` model: merges in the order of what they give.
    fn sentence_piece(&self, tokens: &Tokens<'_>) -> Result<Json, GgufError> {
        let key = "tokenizer.ggml.scores";
        let scores = match self.get(key) {
            Some(Value::Floats(scores)) if scores.len() == tokens.texts.len() => scores,
            _ => {
                let why = format!("must be a list of {} numbers", tokens.texts.len());
                return Err(self.key_error(key, why));
            }
        };
        let prefixes = self.get("tokenizer.ggml.add_space_prefix");
        let prefixes = prefixes.and_then(Value::flag).unwrap_or(true);
        let mut normalizers =
            vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefixes {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.token_text("tokenizer.ggml.unknown_token_id");
        Ok(json!({
            "version": "1.0",
            "added_tokens": tokens.added(),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.ends(true)?,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE", "vocab": tokens.vocabulary(), "merges": merges(tokens, scores), "unk_token": unknown,
                "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            },
        }))
    }
}

/// Every way to make a token of two others, the best tokens first.
fn merges<'a>(tokens: &Tokens<'a>, scores: &[f32]) -> Vec<(&'a str, &'a str)> {
    let is_text = |at: usize| ![UNKNOWN, CONTROL, UNUSED, BYTE].contains(&tokens.kind(at));
    let ids: HashMap<&str, usize> = tokens
        .texts
        .iter()
        .enumerate()
        .map(|(id, text)| (text.as_str(), id))
        .collect();
    let mut all = Vec::new();
    for (id, text) in tokens
        .texts
        .iter()
        .enumerate()
        .filter(|(id, _)| is_text(*id))
    {
        let mut pairs: Vec<_> = text
            .char_indices()
            .skip(1)
            .map(|(at, _)| text.split_at(at))
            .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right)))
            .collect();
        pairs.sort_unstable();
        all.extend(pairs.into_iter().map(|(.., left, right)| (id, left, right)));
    }
    // A stable sort: among equals the order of the tokens.
    all.sort_by(|(a, ..), (b, ..)| scores[*b].total_cmp(&scores[*a]));
    all.into_iter()
        .map(|(_, left, right)| (left, right))
        .collect()
}
