//! The tokens of a model by their bytes, as a tree that grammars are walked along.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::error::GrammarError;
use crate::matcher::Matcher;
use crate::source::Source;

/// The library's compiler calls itself once for each level of a schema, with frames of kilobytes.
const STACK_BYTES: usize = 64 << 20;
/// The library counts its work and stops; this is for what it does not count.
const PATIENCE: Duration = Duration::from_secs(3);
/// "No such token".
const NO_TOKEN: u32 = u32::MAX;

/// All tokens of a model. Cheap to share; every call is read-only.
#[derive(Clone)]
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    size: usize,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// `words` has the bytes of each token by its id; a token without bytes (a special one) is never part of an output. `end_tokens`
    /// end one.
    ///
    /// # Errors
    /// No token has bytes, or the library refuses them.
    pub fn new(mut words: Vec<Vec<u8>>, end_tokens: &[u32]) -> Result<Self, GrammarError> {
        // A grammar never needs this byte, and the library reads it as a mark of special tokens.
        for word in &mut words {
            if word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                word.clear();
            }
        }
        for end in end_tokens {
            if let Some(word) = words.get_mut(*end as usize) {
                word.clear();
            }
        }
        if words.iter().all(Vec::is_empty) {
            return Err(GrammarError::Vocabulary);
        }
        let size = u32::try_from(words.len()).map_err(|_| GrammarError::Vocabulary)?;
        let ends: Vec<u32> = end_tokens
            .iter()
            .copied()
            .filter(|end| *end < size)
            .collect();
        let mut trie = TokTrie::from(&TokRxInfo::new(size, NO_TOKEN), &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&environment, InferenceCapabilities::default(), &slices).map_err(
                |error| GrammarError::Compile {
                    what: "the vocabulary",
                    why: error.to_string(),
                },
            )?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self {
            factory: Arc::new(factory),
            size: words.len(),
        })
    }

    /// One token for each byte and one that ends: grammars are judged with it where no model is at hand.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn bytes() -> Result<Self, GrammarError> {
        let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        words.push(Vec::new());
        Self::new(words, &[256])
    }

    /// One past the highest token id.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Checks and compiles a grammar. Takes milliseconds; the work is bounded, so it may run on any thread that may wait.
    ///
    /// # Errors
    /// The grammar cannot be used with this vocabulary.
    pub fn compile(&self, source: &Source) -> Result<Matcher, GrammarError> {
        source.check()?;
        let (what, grammar) = (source.name(), source.top_level());
        let (answer, compiled) = mpsc::sync_channel(1);
        let vocabulary = self.clone();
        let failed = |why: &str| GrammarError::Compile {
            what,
            why: why.to_owned(),
        };
        thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Nobody waits any more after the patience; then the answer is dropped.
                let _ = answer.send(vocabulary.compile_here(what, grammar));
            })
            .map_err(|error| failed(&error.to_string()))?;
        match compiled.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(failed("it takes too long; make it simpler"))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(failed("the compiler failed on it")),
        }
    }

    fn compile_here(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
    ) -> Result<Matcher, GrammarError> {
        let parser = self.factory.create_parser(grammar);
        let mut matcher =
            Matcher::new(parser, self.size).map_err(|why| GrammarError::Compile { what, why })?;
        // The first mask shows whether there is any output at all, and warms the caches that copies share.
        match matcher.mask() {
            Ok(_) => Ok(matcher),
            Err(_) => Err(GrammarError::Nothing { what }),
        }
    }
}

/// A third to a tenth of the library's own bounds: a mask then takes a few milliseconds at most, and an automaton a few megabytes.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 25_000,
        max_lexer_states: 20_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}
