//! Token ids to text, one token at a time.

use std::sync::Arc;

use super::table::{StartRule, TokenTable};

/// What comes before the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeStart {
    /// Nothing: the tokens begin a text, as an answer in a chat does. Some vocabularies then drop the space their first word carries.
    Text,
    /// A prompt that the text goes on from: every space counts.
    Continuation,
}

/// One stream's decoder. What it writes, over all pushes and the finish, is what one decode of all tokens would write; a
/// character whose bytes are spread over tokens comes out when its last byte is there.
#[derive(Debug)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    /// The beginning of a character, at most 3 bytes.
    pending: Vec<u8>,
    start: StartRule,
    window: Window,
}

/// Ids that the library has to see together, where the decoder is unknown.
#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    /// Ids before this are written and kept only as context.
    read: usize,
}

/// Ids of context the library gets: enough for every decoder it has, which look at neighbours only.
const CONTEXT_IDS: usize = 6;
/// Ids without a whole character after which the window is written as it is: no character takes more than 4 byte tokens.
const WINDOW_IDS_MAX: usize = 24;

impl Detokenizer {
    pub(super) fn new(table: Arc<TokenTable>, start: DecodeStart) -> Self {
        let start = match start {
            DecodeStart::Text => table.start,
            DecodeStart::Continuation => StartRule::Keep,
        };
        Self {
            table,
            pending: Vec::with_capacity(8),
            start,
            window: Window::default(),
        }
    }

    /// Appends what a token adds to the text: nothing for a special token or the first bytes of a character.
    pub fn push(&mut self, token: u32, text: &mut String) {
        if self.table.is_special(token) {
            return;
        }
        if self.table.library.is_some() {
            self.push_by_library(token, text);
            return;
        }
        let table = Arc::clone(&self.table);
        let mut bytes = table.bytes(token);
        match &mut self.start {
            StartRule::Keep => {}
            StartRule::StripSpaces(left) => {
                let spaces = bytes
                    .iter()
                    .take(*left)
                    .take_while(|&&byte| byte == b' ')
                    .count();
                bytes = &bytes[spaces..];
                *left -= spaces;
                if !bytes.is_empty() || *left == 0 {
                    self.start = StartRule::Keep;
                }
            }
            StartRule::StripFirstToken => {
                bytes = &bytes[bytes.iter().take_while(|&&byte| byte == b' ').count()..];
                self.start = StartRule::Keep;
            }
        }
        if self.pending.is_empty()
            && let Ok(whole) = std::str::from_utf8(bytes)
        {
            text.push_str(whole);
            return;
        }
        self.pending.extend_from_slice(bytes);
        self.drain(text);
    }

    /// Appends what is left: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        if self.table.library.is_some() {
            let (new, _) = self.new_text();
            text.push_str(&new);
            self.window = Window::default();
        }
    }

    /// Writes all of `pending` but the beginning of a character that can still become whole. The same cuts as
    /// [`String::from_utf8_lossy`] makes: one U+FFFD for each longest invalid part.
    fn drain(&mut self, text: &mut String) {
        let mut done = 0;
        loop {
            let rest = &self.pending[done..];
            let error = match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    done = self.pending.len();
                    break;
                }
                Err(error) => error,
            };
            let (valid, _) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
            done += valid.len();
            let Some(invalid) = error.error_len() else {
                break;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid;
        }
        self.pending.drain(..done);
    }

    fn push_by_library(&mut self, token: u32, text: &mut String) {
        self.window.ids.push(token);
        let (new, whole) = self.new_text();
        if new.is_empty() || (!whole && self.window.ids.len() - self.window.read < WINDOW_IDS_MAX) {
            return;
        }
        text.push_str(&new);
        let keep = self.window.ids.len().min(CONTEXT_IDS);
        self.window.ids.drain(..self.window.ids.len() - keep);
        self.window.read = keep;
    }

    /// What the unread ids add behind the read ones, and whether it ends with a whole character.
    fn new_text(&self) -> (String, bool) {
        let Some(library) = &self.table.library else {
            return (String::new(), true);
        };
        let decode = |ids: &[u32]| library.decode(ids, true).unwrap_or_default();
        let before = decode(&self.window.ids[..self.window.read]);
        let all = decode(&self.window.ids);
        // A decoder may write the old part differently next to the new one; what both share stays as it was sent.
        let shared = before
            .char_indices()
            .zip(all.chars())
            .find(|((_, a), b)| a != b);
        let at = shared.map_or(before.len().min(all.len()), |((at, _), _)| at);
        (
            all[at..].to_owned(),
            !all.ends_with(char::REPLACEMENT_CHARACTER),
        )
    }
}
