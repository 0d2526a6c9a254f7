//! Cuts a text at added tokens, as the library does, but lets the caller say which special spellings count.

use tokenizers::normalizer::Range;
use tokenizers::{NormalizedString, Token};

use super::SpecialTokens;

type Piece = (NormalizedString, Option<Vec<Token>>);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "as the file format has them")]
struct AddedToken {
    /// What to look for: after the normalizer for tokens that are looked for there.
    spelling: String,
    id: u32,
    special: bool,
    single_word: bool,
    takes_left_space: bool,
    takes_right_space: bool,
}

/// The added tokens of a tokenizer, ready for a leftmost-longest search.
#[derive(Debug)]
pub(super) struct AddedTokens {
    raw: Matcher,
    normalized: Matcher,
    special: Vec<String>,
}

impl AddedTokens {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer) -> Self {
        use tokenizers::Normalizer as _;
        let (mut raw, mut normalized, mut special) = (Vec::new(), Vec::new(), Vec::new());
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if token.content.is_empty() {
                continue;
            }
            if token.special {
                special.push(token.content.clone());
            }
            let mut spelling = token.content.clone();
            if token.normalized
                && let Some(normalizer) = tokenizer.get_normalizer()
            {
                let mut text = NormalizedString::from(spelling.as_str());
                if normalizer.normalize(&mut text).is_ok() {
                    text.get().clone_into(&mut spelling);
                }
            }
            let found = AddedToken {
                spelling,
                id,
                special: token.special,
                single_word: token.single_word,
                takes_left_space: token.lstrip,
                takes_right_space: token.rstrip,
            };
            if token.normalized {
                normalized.push(found);
            } else {
                raw.push(found);
            }
        }
        special.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        special.dedup();
        Self {
            raw: Matcher::new(raw),
            normalized: Matcher::new(normalized),
            special,
        }
    }

    pub(super) fn special_spellings(&self) -> &[String] {
        &self.special
    }

    /// Cuts the text as it came.
    pub(super) fn cut_raw(
        &self,
        text: NormalizedString,
        special: SpecialTokens,
        plain_at: &[usize],
    ) -> Vec<Piece> {
        self.raw.cut(text, special, plain_at)
    }

    /// Cuts a piece that went through the normalizer.
    pub(super) fn cut_normalized(
        &self,
        text: NormalizedString,
        special: SpecialTokens,
        plain_at: &[usize],
    ) -> Vec<Piece> {
        self.normalized.cut(text, special, plain_at)
    }
}

#[derive(Debug)]
struct Matcher {
    /// Sorted by spelling, longest first within one first byte.
    tokens: Vec<AddedToken>,
    /// Where tokens that begin with a byte lie in `tokens`.
    by_first_byte: Vec<std::ops::Range<usize>>,
}

impl Matcher {
    fn new(mut tokens: Vec<AddedToken>) -> Self {
        let first = |token: &AddedToken| token.spelling.as_bytes()[0];
        tokens.retain(|token| !token.spelling.is_empty());
        tokens.sort_by(|a, b| {
            (first(a), b.spelling.len(), &a.spelling).cmp(&(
                first(b),
                a.spelling.len(),
                &b.spelling,
            ))
        });
        let place = |byte| {
            let start = tokens.partition_point(|token| first(token) < byte);
            start..tokens.partition_point(|token| first(token) <= byte)
        };
        let by_first_byte = (0..=u8::MAX).map(place).collect();
        Self {
            tokens,
            by_first_byte,
        }
    }

    fn find_at(&self, text: &[u8], at: usize) -> Option<&AddedToken> {
        self.tokens[self.by_first_byte[usize::from(text[at])].clone()]
            .iter()
            .find(|token| text[at..].starts_with(token.spelling.as_bytes()))
    }

    fn cut(
        &self,
        text: NormalizedString,
        special: SpecialTokens,
        plain_at: &[usize],
    ) -> Vec<Piece> {
        let content = text.get();
        let mut ranges: Vec<(std::ops::Range<usize>, Option<u32>)> = Vec::new();
        let (mut done, mut at) = (0, 0);
        while at < content.len() {
            let Some(token) = self.find_at(content.as_bytes(), at) else {
                at += 1;
                continue;
            };
            let end = at + token.spelling.len();
            let plain = token.special
                && (special == SpecialTokens::Plain || is_broken(&text, at..end, plain_at));
            if plain || (token.single_word && !is_alone(content, at, end)) {
                // Where the spelling is the user's, go on right behind its first byte: a shorter genuine token may follow.
                at += if plain && special == SpecialTokens::Parse {
                    1
                } else {
                    token.spelling.len()
                };
                continue;
            }
            let start = if token.takes_left_space {
                content[..at].trim_end().len().max(done)
            } else {
                at
            };
            let end = if token.takes_right_space {
                content.len() - content[end..].trim_start().len()
            } else {
                end
            };
            if start > done {
                ranges.push((done..start, None));
            }
            ranges.push((start..end, Some(token.id)));
            (done, at) = (end, end);
        }
        if ranges.is_empty() {
            return vec![(text, None)];
        }
        if done < content.len() {
            ranges.push((done..content.len(), None));
        }
        let slice = |(range, id): (std::ops::Range<usize>, Option<u32>)| {
            let piece = text
                .slice(Range::Normalized(range))
                .expect("matches of whole spellings end at characters");
            let tokens = id.map(|id| {
                let value = piece.get().to_owned();
                let length = value.len();
                vec![Token::new(id, value, (0, length))]
            });
            (piece, tokens)
        };
        ranges.into_iter().map(slice).collect()
    }
}

/// Whether one of the sorted positions (in the text as it came) lies between two bytes of a part of a piece.
fn is_broken(piece: &NormalizedString, part: std::ops::Range<usize>, plain_at: &[usize]) -> bool {
    if plain_at.is_empty() {
        return false;
    }
    let shift = piece.offsets_original().0;
    // A part that has no place in the original text cannot be traced to the template, so it is not trusted.
    let Some(original) = piece.convert_offsets(Range::Normalized(part)) else {
        return true;
    };
    let next = plain_at.partition_point(|&position| position <= shift + original.start);
    plain_at
        .get(next)
        .is_some_and(|&position| position < shift + original.end)
}

fn is_alone(text: &str, start: usize, end: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(is_word)
        && !text[end..].chars().next().is_some_and(is_word)
}
