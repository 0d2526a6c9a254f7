//! Keeps special tokens that a client spells from becoming special tokens.
//!
//! Before rendering, a mark (a character that occurs nowhere in the input) goes into every client text wherever a special
//! token's spelling could arise: inside each whole spelling, inside an ending that begins one, and in front of a beginning that
//! ends one. The template moves, trims and joins texts as it likes; the mark moves along. After rendering the marks are taken out
//! and their positions kept, and a spelling across such a position is text ([`Tokenizer::encode_except`]).
//!
//! Not covered, on purpose: added tokens that are not special (the library treats those as text with one id, and templates look
//! for some of them in messages), a template that changes the letters of a message into a spelling, and `role` and `type`, which
//! templates compare and spell tokens with; `role` is one of a fixed list instead.
//!
//! [`Tokenizer::encode_except`]: crate::tokenizer::Tokenizer

use serde_json::Value as Json;

/// Keys whose texts a template compares or spells tokens with.
const STRUCTURE_KEYS: [&str; 2] = ["role", "type"];
/// Keys whose texts come from people: their beginnings are guarded too.
const PROSE_KEYS: [&str; 3] = ["content", "text", "reasoning_content"];

pub(super) struct Guard<'a> {
    spellings: &'a [String],
    mark: char,
}

impl<'a> Guard<'a> {
    pub(super) fn new(spellings: &'a [String]) -> Self {
        Self {
            spellings,
            mark: '\u{FDD0}',
        }
    }

    /// Takes the first of Unicode's noncharacters (U+FDD0 …) and private characters that is in no input.
    pub(super) fn choose_mark<'j>(&mut self, inputs: &(impl Iterator<Item = &'j Json> + Clone)) {
        let mut candidates = ('\u{FDD0}'..='\u{FDEF}').chain('\u{F0000}'..='\u{FFFFD}');
        let free = |mark: &char| !inputs.clone().any(|input| contains(input, *mark));
        // A request that holds all 65,000 candidates is larger than any body limit.
        self.mark = candidates.find(free).unwrap_or(self.mark);
    }

    /// Puts marks into every text below a value.
    pub(super) fn protect(&self, value: &mut Json) {
        self.protect_under("content", value);
    }

    fn protect_under(&self, key: &str, value: &mut Json) {
        match value {
            Json::String(text) if !STRUCTURE_KEYS.contains(&key) => {
                *text = self.marked(text, PROSE_KEYS.contains(&key));
            }
            Json::Array(list) => list
                .iter_mut()
                .for_each(|entry| self.protect_under(key, entry)),
            Json::Object(map) => {
                *map = std::mem::take(map)
                    .into_iter()
                    .map(|(key, mut value)| {
                        self.protect_under(&key, &mut value);
                        (self.marked(&key, false), value)
                    })
                    .collect();
            }
            _ => {}
        }
    }

    fn marked(&self, text: &str, prose: bool) -> String {
        let mut at: Vec<usize> = Vec::new();
        for spelling in self.spellings {
            let first = spelling.chars().next().map_or(0, char::len_utf8);
            at.extend(
                text.match_indices(spelling.as_str())
                    .map(|(start, _)| start + first),
            );
            let cuts = || spelling.char_indices().map(|(cut, _)| cut).skip(1);
            at.extend(
                cuts()
                    .filter(|&cut| text.ends_with(&spelling[..cut]))
                    .map(|cut| text.len() - cut + first),
            );
            let ends_one = || cuts().any(|cut| text.starts_with(&spelling[cut..]));
            if prose && !text.is_empty() && (ends_one() || spelling.contains(text)) {
                at.push(0);
            }
        }
        at.sort_unstable();
        at.dedup();
        let mut out = String::with_capacity(text.len() + at.len() * self.mark.len_utf8());
        let mut done = 0;
        for position in at {
            out.push_str(&text[done..position]);
            out.push(self.mark);
            done = position;
        }
        out.push_str(&text[done..]);
        out
    }

    /// The text without marks, and where in it they were.
    pub(super) fn strip(&self, marked: &str) -> (String, Vec<usize>) {
        let (mut text, mut at) = (String::with_capacity(marked.len()), Vec::new());
        for part in marked.split_inclusive(self.mark) {
            match part.strip_suffix(self.mark) {
                Some(part) => {
                    text.push_str(part);
                    at.push(text.len());
                }
                None => text.push_str(part),
            }
        }
        (text, at)
    }
}

fn contains(value: &Json, mark: char) -> bool {
    match value {
        Json::String(text) => text.contains(mark),
        Json::Array(list) => list.iter().any(|entry| contains(entry, mark)),
        Json::Object(map) => map
            .iter()
            .any(|(key, value)| key.contains(mark) || contains(value, mark)),
        _ => false,
    }
}
