//! Text to token ids and back, over the `tokenizers` library.
//!
//! Two things are ours. Special tokens are cut out of a text here and not by the library, because only the caller knows which
//! of them a template wrote and which a user typed. And token ids become text through a table of bytes ([`TokenTable`]),
//! because the library's stream decoder allocates per token and stops for good on some invalid sequences.

mod added;
mod detokenizer;
mod stop;
mod table;
#[cfg(test)]
mod tests;

pub use detokenizer::{DecodeStart, Detokenizer};
pub use stop::{StopMatch, StopMatcher};
pub use table::TokenTable;

use std::sync::Arc;

use tokenizers::{Encoding, Model as _, OffsetType, PreTokenizedString, PreTokenizer as _};

use added::AddedTokens;

/// Name of the file the `tokenizers` library wrote.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// A tokenizer cannot be built or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is not one the library reads.
    #[error("\"{TOKENIZER_FILE}\" is not a tokenizer the tokenizers library 0.23 reads")]
    Parse(#[source] tokenizers::Error),
    /// The library failed on a text.
    #[error("cannot tokenize a text of {bytes} bytes")]
    Encode {
        /// Its length.
        bytes: usize,
        /// The cause.
        #[source]
        source: tokenizers::Error,
    },
}

/// What a special token's spelling means in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// It is the token: for text from a template or from a caller who owns the whole prompt.
    Parse,
    /// It is plain text: for text of an untrusted part.
    Plain,
}

/// A loaded tokenizer. Cheap to share; every call is read-only.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    added: AddedTokens,
    table: Arc<TokenTable>,
}

impl Tokenizer {
    /// From the bytes of `tokenizer.json`.
    ///
    /// # Errors
    /// The library cannot read it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = parse(bytes).map_err(TokenizerError::Parse)?;
        // Both are for training batches. A prompt is never cut or filled up in silence.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(TokenizerError::Parse)?;
        let table = Arc::new(TokenTable::build(&inner, bytes));
        Ok(Self {
            added: AddedTokens::new(&inner),
            inner,
            table,
        })
    }

    /// Token ids of a text alone, without the tokens a model wants at its ends.
    ///
    /// # Errors
    /// The library fails.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.encoding(text, special, &[])?.get_ids().to_vec())
    }

    /// Token ids of a text, with what the model wants at its ends (for most, BOS in front).
    ///
    /// # Errors
    /// The library fails.
    pub fn encode_with_ends(
        &self,
        text: &str,
        special: SpecialTokens,
    ) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.encoding(text, special, &[])?;
        let ends = self
            .inner
            .post_process(encoding, None, true)
            .map_err(|source| encode_error(text, source))?;
        Ok(ends.get_ids().to_vec())
    }

    /// As [`Self::encode`] with [`SpecialTokens::Parse`], but a special token's spelling that has one of the byte positions in
    /// `plain_at` (sorted) between two of its bytes is plain text.
    pub(crate) fn encode_except(
        &self,
        text: &str,
        plain_at: &[usize],
    ) -> Result<Vec<u32>, TokenizerError> {
        Ok(self
            .encoding(text, SpecialTokens::Parse, plain_at)?
            .get_ids()
            .to_vec())
    }

    /// The library's pipeline (added tokens, normalizer, pre-tokenizer, model) with our own cut at added tokens.
    fn encoding(
        &self,
        text: &str,
        special: SpecialTokens,
        plain_at: &[usize],
    ) -> Result<Encoding, TokenizerError> {
        let run = || -> Result<Encoding, tokenizers::Error> {
            let mut pieces = PreTokenizedString::from(text);
            pieces.split(|_, piece| Ok(self.added.cut_raw(piece, special, plain_at)))?;
            pieces.split(|_, mut piece| {
                if let Some(normalizer) = self.inner.get_normalizer() {
                    use tokenizers::Normalizer as _;
                    normalizer.normalize(&mut piece)?;
                }
                Ok(self.added.cut_normalized(piece, special, plain_at))
            })?;
            if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            let model = self.inner.get_model();
            pieces.tokenize(|piece| model.tokenize(piece.get()))?;
            pieces.into_encoding(None, 0, OffsetType::None)
        };
        run().map_err(|source| encode_error(text, source))
    }

    /// Text of token ids, special tokens left out, as if they began a text.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut detokenizer = self.detokenizer(DecodeStart::Text);
        let mut text = String::new();
        for &token in tokens {
            detokenizer.push(token, &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }

    /// A decoder for one stream of tokens.
    pub fn detokenizer(&self, start: DecodeStart) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.table), start)
    }

    /// The id of a token by its spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The spelling of a token in the vocabulary, for people: not its text.
    pub fn token_name(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// One past the highest token id.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// Text and kind of every token.
    pub fn table(&self) -> &Arc<TokenTable> {
        &self.table
    }

    /// Spellings of all special tokens, longest first.
    pub fn special_spellings(&self) -> &[String] {
        self.added.special_spellings()
    }
}

/// The library panics on some files that are no JSON, and on some that are.
fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, tokenizers::Error> {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes)?;
    std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes))
        .unwrap_or_else(|_| Err("the library gave up on it; compare it with the original".into()))
}

/// Leaves one of the BOS tokens a prompt begins with: a template and the tokenizer may both have put one there.
pub(crate) fn keep_one_bos(tokens: &mut Vec<u32>, bos: u32) {
    let leading = tokens.iter().take_while(|&&token| token == bos).count();
    tokens.drain(..leading.saturating_sub(1));
}

fn encode_error(text: &str, source: tokenizers::Error) -> TokenizerError {
    TokenizerError::Encode {
        bytes: text.len(),
        source,
    }
}
