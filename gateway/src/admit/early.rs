//! A prompt that is far too long, found out before all of it is tokenized.

use super::request::Input;
use crate::snapshot::ServedVersion;

/// Text is looked at before it is tokenized only where it has more bytes than this for each token that fits: ordinary text has four or five.
const BYTES_PER_TOKEN: usize = 8;
/// Tokenized at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces cut a word, and so count a few tokens more than the whole has: only this many times what fits is too much for certain.
const CERTAIN: usize = 2;

/// At least how many tokens a prompt has, when those are certainly more than fit. An answer of `None` says nothing.
pub(super) fn certainly_too_long(
    version: &ServedVersion,
    input: &Input,
    largest: usize,
) -> Option<usize> {
    let texts: Vec<&str> = match input {
        Input::User(text) | Input::Text(text) => vec![text],
        Input::Chat(messages) => messages.iter().map(|m| m.content.as_str()).collect(),
        Input::Dialogue(dialogue) => {
            let contents = dialogue.messages.iter();
            contents.filter_map(|m| m["content"].as_str()).collect()
        }
        Input::Tokens(_) => return None,
    };
    if input.bytes() <= largest.saturating_mul(BYTES_PER_TOKEN).max(PIECE_BYTES) {
        return None;
    }
    let mut count = 0;
    for mut text in texts {
        while !text.is_empty() {
            let (piece, rest) = text.split_at(text.floor_char_boundary(PIECE_BYTES));
            count += version.text.raw(piece).ok()?.len();
            if count > largest.saturating_mul(CERTAIN) {
                return Some(count / CERTAIN);
            }
            text = rest;
        }
    }
    None
}
