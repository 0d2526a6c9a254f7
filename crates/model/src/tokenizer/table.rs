//! The bytes of every token, taken out of the library once at load.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

/// How a text may begin, which two families of decoders treat in their own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartRule {
    /// Nothing is special.
    Keep,
    /// The text loses up to this many leading spaces.
    StripSpaces(usize),
    /// The first token loses all its leading spaces.
    StripFirstToken,
}

/// Bytes of every token, or the library itself where its decoder is not one of the known ones.
#[derive(Debug)]
pub struct TokenTable {
    /// (`len` + 1) where each token's bytes begin in `bytes`.
    offsets: Vec<u32>,
    bytes: Vec<u8>,
    /// (`len`) special tokens write nothing.
    special: Vec<bool>,
    pub(super) start: StartRule,
    /// Set where the decoder is unknown: then whole windows of ids go through the library.
    pub(super) library: Option<Box<tokenizers::Tokenizer>>,
}

#[derive(Deserialize)]
struct DecoderOnly {
    #[serde(default)]
    decoder: Option<Value>,
}

/// What the chain of decoders does to one token.
#[derive(Default)]
struct Recipe {
    byte_level: bool,
    byte_fallback: bool,
    /// From here on the library sees one text and no tokens.
    fused: bool,
    replace: Vec<(String, String)>,
    start: Option<StartRule>,
}

impl TokenTable {
    pub(super) fn build(tokenizer: &tokenizers::Tokenizer, json: &[u8]) -> Self {
        let decoder = serde_json::from_slice::<DecoderOnly>(json)
            .ok()
            .and_then(|file| file.decoder);
        let recipe = decoder.as_ref().and_then(Recipe::read);
        let len = tokenizer
            .get_vocab(true)
            .values()
            .max()
            .map_or(0, |&id| id as usize + 1);
        let byte_of_char = byte_of_char();
        let mut table = Self {
            offsets: Vec::with_capacity(len + 1),
            bytes: Vec::new(),
            special: Vec::with_capacity(len),
            start: recipe
                .as_ref()
                .and_then(|recipe| recipe.start)
                .unwrap_or(StartRule::Keep),
            library: recipe.is_none().then(|| Box::new(tokenizer.clone())),
        };
        let added = tokenizer.get_added_tokens_decoder();
        for id in (0u32..).take(len) {
            table
                .offsets
                .push(u32::try_from(table.bytes.len()).expect("vocabularies are far below 4 GiB"));
            table
                .special
                .push(added.get(&id).is_some_and(|token| token.special));
            if let (Some(recipe), Some(spelling)) = (&recipe, tokenizer.id_to_token(id)) {
                recipe.write(&spelling, &byte_of_char, &mut table.bytes);
            }
        }
        table
            .offsets
            .push(u32::try_from(table.bytes.len()).expect("vocabularies are far below 4 GiB"));
        table
    }

    /// Whether [`Self::bytes`] says of every token what it stands for.
    pub fn is_exact(&self) -> bool {
        self.library.is_none()
    }

    /// One past the highest token id.
    pub fn len(&self) -> usize {
        self.special.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.special.is_empty()
    }

    /// Whether a token is special, so writes no text. Ids beyond the vocabulary, which padded embedding tables have, count too.
    pub fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize).copied().unwrap_or(true)
    }

    /// The bytes a token stands for inside a text; empty where the decoder is not a known one.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let at = token as usize;
        match (self.offsets.get(at), self.offsets.get(at + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}

impl Recipe {
    /// `None` if any part of the decoder is unknown.
    fn read(decoder: &Value) -> Option<Self> {
        let mut recipe = Self::default();
        match decoder["type"].as_str()? {
            "Sequence" => {
                for part in decoder["decoders"].as_array()? {
                    recipe.add(part)?;
                }
            }
            _ => recipe.add(decoder)?,
        }
        let alone = !recipe.byte_fallback && recipe.replace.is_empty() && recipe.start.is_none();
        (alone || !recipe.byte_level).then_some(recipe)
    }

    fn add(&mut self, part: &Value) -> Option<()> {
        match part["type"].as_str()? {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => self.fused = true,
            "Replace" if !self.fused => {
                let from = part["pattern"]["String"].as_str()?;
                self.replace
                    .push((from.to_owned(), part["content"].as_str()?.to_owned()));
            }
            "Metaspace" => {
                self.replace
                    .push((part["replacement"].as_str()?.to_owned(), " ".to_owned()));
                // The key was a boolean before it was a scheme.
                let never = part["prepend_scheme"].as_str() == Some("never")
                    || (part["prepend_scheme"].is_null()
                        && part["add_prefix_space"].as_bool() == Some(false));
                self.start = Some(if never {
                    StartRule::Keep
                } else {
                    StartRule::StripFirstToken
                });
            }
            "Strip"
                if self.fused
                    && part["content"].as_str() == Some(" ")
                    && part["stop"].as_u64() == Some(0) =>
            {
                let count = usize::try_from(part["start"].as_u64()?).ok()?;
                self.start = Some(StartRule::StripSpaces(count));
            }
            _ => return None,
        }
        Some(())
    }

    fn write(&self, spelling: &str, byte_of_char: &HashMap<char, u8>, bytes: &mut Vec<u8>) {
        let fallback = spelling
            .strip_prefix("<0x")
            .and_then(|rest| rest.strip_suffix('>'));
        if self.byte_fallback
            && let Some(byte) = fallback
                .filter(|hex| hex.len() == 2)
                .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            bytes.push(byte);
            return;
        }
        if self.byte_level {
            let mapped: Option<Vec<u8>> = spelling
                .chars()
                .map(|c| byte_of_char.get(&c).copied())
                .collect();
            bytes.extend(mapped.unwrap_or_else(|| spelling.as_bytes().to_vec()));
            return;
        }
        let mut text = spelling.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// GPT-2's printable alphabet for bytes: printable Latin-1 stands for itself, the rest follows from U+0100 on.
fn byte_of_char() -> HashMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let rest = (0..=u8::MAX).filter(|&byte| !is_printable(byte));
    let shifted = rest
        .zip(0x100u32..)
        .filter_map(|(byte, code)| Some((char::from_u32(code)?, byte)));
    (0..=u8::MAX)
        .filter(|&byte| is_printable(byte))
        .map(|byte| (char::from(byte), byte))
        .chain(shifted)
        .collect()
}
