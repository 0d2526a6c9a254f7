//! One choice of a run: sampled tokens in, text and finish out.

use std::sync::Arc;

use weir_model::backend::Sampled;
use weir_model::tokenizer::{DecodeStart, Detokenizer, StopMatcher, Tokenizer};
use weir_protocol::worker::{Finish, Logprob, finish::Reason, logprob::Top};

/// What ends every choice of a run.
#[derive(Clone, Debug)]
pub(crate) struct EndRules {
    /// The model's end tokens; empty for a run that ignores them.
    pub(crate) end_tokens: Arc<[u32]>,
    /// The run's own end tokens.
    pub(crate) stop_tokens: Vec<u32>,
    /// The run's stop strings.
    pub(crate) stops: Vec<String>,
    /// Tokens per choice, at most; at least 1.
    pub(crate) max_tokens: u32,
    /// Tokens before which no stop string counts. End tokens are masked until then by the backend.
    pub(crate) min_tokens: u32,
    /// Whether the output goes on from the prompt's text.
    pub(crate) continues_text: bool,
}

/// One choice's stream of text.
#[derive(Debug)]
pub(crate) struct ChoiceText {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    tokens: u32,
}

/// What a token added.
#[derive(Debug, PartialEq)]
pub(crate) struct Taken {
    /// Text that is decided; may be empty.
    pub(crate) text: String,
    /// Set when the choice is over.
    pub(crate) finish: Option<Finish>,
}

impl ChoiceText {
    pub(crate) fn new(tokenizer: &Tokenizer, rules: &EndRules) -> Self {
        let start = if rules.continues_text {
            DecodeStart::Continuation
        } else {
            DecodeStart::Text
        };
        Self {
            detokenizer: tokenizer.detokenizer(start),
            stops: StopMatcher::new(rules.stops.iter().map(String::as_str)),
            tokens: 0,
        }
    }

    /// Takes a sampled token.
    pub(crate) fn take(&mut self, token: u32, rules: &EndRules) -> Taken {
        self.tokens += 1;
        let mut text = String::new();
        if rules.end_tokens.contains(&token) || rules.stop_tokens.contains(&token) {
            let finish = self
                .flush(rules, &mut text)
                .unwrap_or_else(|| finish(Reason::Stop));
            return Taken {
                text,
                finish: Some(finish),
            };
        }
        if let Some(stopped) = self.push(token, rules, &mut text) {
            return Taken {
                text,
                finish: Some(stopped),
            };
        }
        if self.tokens >= rules.max_tokens {
            let finish = self
                .flush(rules, &mut text)
                .unwrap_or_else(|| finish(Reason::Length));
            return Taken {
                text,
                finish: Some(finish),
            };
        }
        Taken { text, finish: None }
    }

    /// What was held back, for a choice that ends without a further token.
    pub(crate) fn rest(&mut self, rules: &EndRules) -> String {
        let mut text = String::new();
        // A stop string that the last bytes complete no longer changes how the choice ends, only that it is not shown.
        let _ = self.flush(rules, &mut text);
        text
    }

    fn push(&mut self, token: u32, rules: &EndRules, text: &mut String) -> Option<Finish> {
        if rules.stops.is_empty() || self.tokens <= rules.min_tokens {
            self.detokenizer.push(token, text);
            return None;
        }
        let mut raw = String::new();
        self.detokenizer.push(token, &mut raw);
        self.stops
            .push(&raw, text)
            .map(|found| stopped_by(&rules.stops[found.index]))
    }

    fn flush(&mut self, rules: &EndRules, text: &mut String) -> Option<Finish> {
        let mut raw = String::new();
        self.detokenizer.finish(&mut raw);
        let found = self
            .stops
            .push(&raw, text)
            .map(|found| stopped_by(&rules.stops[found.index]));
        if found.is_none() {
            self.stops.finish(text);
        }
        found
    }
}

/// A finish without a message.
pub(crate) fn finish(reason: Reason) -> Finish {
    Finish {
        reason: reason.into(),
        message: String::new(),
        stop: String::new(),
    }
}

fn stopped_by(stop: &str) -> Finish {
    Finish {
        stop: stop.to_owned(),
        ..finish(Reason::Stop)
    }
}

/// What a row says about its token's probability.
pub(crate) fn logprob(tokenizer: &Tokenizer, sampled: &Sampled) -> Logprob {
    let (token, token_bytes) = spelled(tokenizer, sampled.token);
    let top = sampled.top.iter().map(|(token_id, logprob)| {
        let (token, token_bytes) = spelled(tokenizer, *token_id);
        Top {
            token_id: *token_id,
            token,
            logprob: *logprob,
            token_bytes: token_bytes.into(),
        }
    });
    Logprob {
        logprob: sampled.logprob,
        token,
        token_bytes: token_bytes.into(),
        top: top.collect(),
    }
}

/// A token's text and bytes. A special token writes no text and is shown by its name, so that a client can tell it from nothing.
fn spelled(tokenizer: &Tokenizer, token: u32) -> (String, Vec<u8>) {
    let table = tokenizer.table();
    let bytes = table.bytes(token);
    if table.is_special(token) || bytes.is_empty() {
        let name = tokenizer.token_name(token).unwrap_or_default();
        let bytes = name.clone().into_bytes();
        return (name, bytes);
    }
    (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
}
