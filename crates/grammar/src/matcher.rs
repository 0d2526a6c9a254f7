//! Follows one output through its grammar.

use std::sync::Arc;

use llguidance::TokenParser;

use crate::error::GrammarError;

/// Which tokens may come next: bit `id % 32` of word `id / 32`.
pub type Mask = Arc<[u32]>;

/// Where one output stands in its grammar. Its state is a function of the tokens it was given.
pub struct Matcher {
    inner: llguidance::Matcher,
    words: usize,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(
        parser: Result<TokenParser, impl std::fmt::Display>,
        vocabulary: usize,
    ) -> Result<Self, String> {
        let parser = parser.map_err(|error| first_line(&error.to_string()))?;
        let inner = llguidance::Matcher::new(Ok(parser));
        match inner.get_error() {
            Some(error) => Err(first_line(&error)),
            None => Ok(Self {
                inner,
                words: vocabulary.div_ceil(32),
            }),
        }
    }

    /// A copy for another output from the same state. Copies share nothing, so none can use up another's bounds.
    pub fn fork(&self) -> Self {
        Self {
            inner: self.inner.deep_clone(),
            words: self.words,
        }
    }

    /// Takes the next token of the output; not an end token.
    ///
    /// # Errors
    /// The grammar does not allow it, or following it took too much work: the matcher is of no use any more.
    pub fn advance(&mut self, token: u32) -> Result<(), GrammarError> {
        self.inner
            .consume_token(token)
            .map_err(|error| left(&error))
    }

    /// How many of these tokens the grammar allows one after another. The matcher stays where it is.
    ///
    /// # Errors
    /// Telling took too much work, or a token does not exist: the matcher is of no use any more.
    pub fn allowed(&mut self, tokens: &[u32]) -> Result<usize, GrammarError> {
        self.inner
            .validate_tokens(tokens)
            .map_err(|error| left(&error))
    }

    /// Which tokens may come next; end tokens where the output may end here.
    ///
    /// # Errors
    /// Nothing may follow, or telling took too much work.
    pub fn mask(&mut self) -> Result<Mask, GrammarError> {
        let allowed = self.inner.compute_mask().map_err(|error| left(&error))?;
        let mut words: Vec<u32> = allowed
            .as_slice()
            .iter()
            .copied()
            .take(self.words)
            .collect();
        words.resize(self.words, 0);
        Ok(words.into())
    }

    /// Whether the output is whole and nothing can follow it.
    pub fn is_complete(&self) -> bool {
        self.inner.is_stopped() && self.inner.stop_reason().is_ok()
    }

    /// Whether the output may end here.
    ///
    /// # Errors
    /// Telling took too much work.
    pub fn may_end(&mut self) -> Result<bool, GrammarError> {
        self.inner.is_accepting().map_err(|error| left(&error))
    }
}

fn left(error: &impl std::fmt::Display) -> GrammarError {
    GrammarError::Left {
        why: first_line(&error.to_string()),
    }
}

/// The library adds its state and back traces on further lines.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(300).collect()
}
