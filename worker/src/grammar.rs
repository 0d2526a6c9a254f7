//! Compiles grammars beside the engine, a few at a time, and remembers those that come again.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use std::sync::{Mutex, PoisonError};
use tokio::sync::Semaphore;
use weir_grammar::{CallParser, GrammarError, Matcher, Source, Vocabulary};
use weir_model::tokenizer::Tokenizer;
use weir_protocol::worker::{Grammar, grammar::Kind};

/// Grammars compiled at the same time: a hostile one may take a second, and the engine needs the other cores.
const AT_ONCE: usize = 2;
/// Grammars remembered. A tenant has a handful; each takes up to a few megabytes.
const REMEMBERED: usize = 64;

/// A grammar that is ready to be followed.
pub(crate) struct Compiled {
    start: Mutex<Matcher>,
    /// For a grammar of calls.
    pub(crate) calls: Option<CallParser>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Compiled {
    /// A matcher at the beginning of an output.
    pub(crate) fn matcher(&self) -> Matcher {
        self.start
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fork()
    }
}

/// What a session has for a run with a grammar.
pub(crate) type Ready = Result<Arc<Compiled>, GrammarError>;

/// One loaded model's compiler.
#[derive(Debug)]
pub(crate) struct Compiler {
    tokenizer: Arc<Tokenizer>,
    end_tokens: Arc<[u32]>,
    /// Made when it is first needed: most workers never do.
    vocabulary: OnceLock<Result<Vocabulary, GrammarError>>,
    seats: Semaphore,
    remembered: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    by_grammar: HashMap<(i32, String), (Arc<Compiled>, u64)>,
    clock: u64,
}

impl Compiler {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, end_tokens: Arc<[u32]>) -> Self {
        Self {
            tokenizer,
            end_tokens,
            vocabulary: OnceLock::new(),
            seats: Semaphore::new(AT_ONCE),
            remembered: Mutex::default(),
        }
    }

    /// A grammar that was compiled before.
    pub(crate) fn known(&self, grammar: &Grammar) -> Option<Arc<Compiled>> {
        let mut remembered = self.remembered();
        remembered.clock += 1;
        let now = remembered.clock;
        let key = (grammar.kind, grammar.text.clone());
        let (compiled, used) = remembered.by_grammar.get_mut(&key)?;
        *used = now;
        Some(Arc::clone(compiled))
    }

    /// Compiles a grammar, or says why not. Refusals are not remembered: the gateway refuses nearly all of them before.
    pub(crate) async fn compile(self: Arc<Self>, grammar: Grammar) -> Ready {
        let gone = || GrammarError::Compile {
            what: "the grammar",
            why: "the compiler failed".to_owned(),
        };
        let Ok(_seat) = self.seats.acquire().await else {
            return Err(gone());
        };
        if let Some(compiled) = self.known(&grammar) {
            return Ok(compiled);
        }
        let compiler = Arc::clone(&self);
        let made = tokio::task::spawn_blocking(move || {
            let made = compiler.compile_here(&grammar)?;
            compiler.remember(grammar, &made);
            Ok(made)
        });
        made.await.unwrap_or_else(|_| Err(gone()))
    }

    fn compile_here(&self, grammar: &Grammar) -> Ready {
        let source = source(grammar)?;
        let vocabulary = self.vocabulary.get_or_init(|| self.read_vocabulary());
        let matcher = vocabulary
            .as_ref()
            .map_err(Clone::clone)?
            .compile(&source)?;
        Ok(Arc::new(Compiled {
            start: Mutex::new(matcher),
            calls: match &source {
                Source::Tools(spec) => Some(CallParser::new(spec)),
                _ => None,
            },
        }))
    }

    fn read_vocabulary(&self) -> Result<Vocabulary, GrammarError> {
        let table = self.tokenizer.table();
        if !table.is_exact() {
            return Err(GrammarError::Vocabulary);
        }
        let words = (0..u32::try_from(table.len()).unwrap_or(u32::MAX)).map(|token| {
            // A special token writes no text, so it is never part of an output.
            let is_text = !table.is_special(token);
            if is_text {
                table.bytes(token).to_vec()
            } else {
                Vec::new()
            }
        });
        Vocabulary::new(words.collect(), &self.end_tokens)
    }

    fn remember(&self, grammar: Grammar, compiled: &Arc<Compiled>) {
        let mut remembered = self.remembered();
        remembered.clock += 1;
        let now = remembered.clock;
        if remembered.by_grammar.len() >= REMEMBERED {
            let oldest = remembered
                .by_grammar
                .iter()
                .min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                remembered.by_grammar.remove(&oldest);
            }
        }
        remembered
            .by_grammar
            .insert((grammar.kind, grammar.text), (Arc::clone(compiled), now));
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Remembered> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn source(grammar: &Grammar) -> Result<Source, GrammarError> {
    match grammar.kind() {
        Kind::JsonSchema => Source::json_schema(&grammar.text),
        Kind::Regex => Ok(Source::Regex(grammar.text.clone())),
        Kind::Lark => Ok(Source::Lark(grammar.text.clone())),
        Kind::Tools => Source::tools(&grammar.text),
        Kind::Unspecified => Err(GrammarError::Compile {
            what: "the grammar",
            why: format!("its kind {} is unknown to this worker", grammar.kind),
        }),
    }
}
