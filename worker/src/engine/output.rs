//! One choice of a run: sampled tokens in, text and finish out.

use std::sync::Arc;

use weir_grammar::{CallParser, CallPiece, GrammarError, Parsed};
use weir_model::backend::Sampled;
use weir_model::tokenizer::{DecodeStart, Detokenizer, StopMatcher, Tokenizer};
use weir_protocol::worker::{Finish, Logprob, PromptToken, ToolCall, finish::Reason, logprob::Top};

use super::request::Request;

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
    calls: Option<Calls>,
    tokens: u32,
}

/// Calls of tools in one choice's output.
#[derive(Debug)]
struct Calls {
    parser: CallParser,
    /// What the ids of the calls begin with: the run and the choice, so that an id is the same whoever asks.
    id: String,
}

/// What a token added.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Taken {
    /// Text that is decided; may be empty.
    pub(crate) text: String,
    /// Pieces of calls.
    pub(crate) calls: Vec<ToolCall>,
    /// Set when the choice is over.
    pub(crate) finish: Option<Finish>,
}

impl ChoiceText {
    pub(crate) fn new(tokenizer: &Tokenizer, request: &Request, choice: u32) -> Self {
        let rules = &request.rules;
        let start = if rules.continues_text {
            DecodeStart::Continuation
        } else {
            DecodeStart::Text
        };
        let parser = request
            .grammar
            .as_ref()
            .and_then(|grammar| grammar.calls.clone());
        Self {
            detokenizer: tokenizer.detokenizer(start),
            stops: StopMatcher::new(rules.stops.iter().map(String::as_str)),
            calls: parser.map(|parser| Calls {
                parser,
                id: format!("call_{:032x}{choice:02x}", u128::from_be_bytes(request.key)),
            }),
            tokens: 0,
        }
    }

    /// Takes a sampled token; `is_complete` says that the grammar allows nothing after it.
    ///
    /// # Errors
    /// What came is neither text nor a call, though the grammar let it through.
    pub(crate) fn take(
        &mut self,
        token: u32,
        rules: &EndRules,
        is_complete: bool,
    ) -> Result<Taken, GrammarError> {
        self.tokens += 1;
        let mut added = Taken::default();
        if rules.end_tokens.contains(&token) || rules.stop_tokens.contains(&token) {
            let end = self.flush(rules, &mut added)?;
            added.finish = Some(end.unwrap_or_else(|| finish(Reason::Stop)));
            return Ok(added);
        }
        added.finish = self.push(token, rules, &mut added)?;
        if added.finish.is_none() && (is_complete || self.tokens >= rules.max_tokens) {
            let reason = if is_complete {
                Reason::Stop
            } else {
                Reason::Length
            };
            let end = self.flush(rules, &mut added)?;
            added.finish = Some(end.unwrap_or_else(|| finish(reason)));
        }
        Ok(added)
    }

    /// What was held back, for a choice that ends without a further token.
    pub(crate) fn rest(&mut self, rules: &EndRules) -> String {
        let mut added = Taken::default();
        // A stop string that the last bytes complete no longer changes how the choice ends, only that it is not shown; and what does
        // not follow the grammar is not shown either.
        let _ = self.flush(rules, &mut added);
        added.text
    }

    fn push(
        &mut self,
        token: u32,
        rules: &EndRules,
        added: &mut Taken,
    ) -> Result<Option<Finish>, GrammarError> {
        let mut raw = String::new();
        self.detokenizer.push(token, &mut raw);
        let raw = self.without_calls(raw, false, added)?;
        if rules.stops.is_empty() || self.tokens <= rules.min_tokens {
            added.text.push_str(&raw);
            return Ok(None);
        }
        Ok(self
            .stops
            .push(&raw, &mut added.text)
            .map(|found| stopped_by(&rules.stops[found.index])))
    }

    fn flush(
        &mut self,
        rules: &EndRules,
        added: &mut Taken,
    ) -> Result<Option<Finish>, GrammarError> {
        let mut raw = String::new();
        self.detokenizer.finish(&mut raw);
        let raw = self.without_calls(raw, true, added)?;
        let found = self
            .stops
            .push(&raw, &mut added.text)
            .map(|found| stopped_by(&rules.stops[found.index]));
        if found.is_none() {
            self.stops.finish(&mut added.text);
        }
        Ok(found)
    }

    /// Takes pieces of calls out of some output; what is left is text.
    fn without_calls(
        &mut self,
        raw: String,
        is_last: bool,
        added: &mut Taken,
    ) -> Result<String, GrammarError> {
        let Some(Calls { parser, id }) = &mut self.calls else {
            return Ok(raw);
        };
        let mut parsed = Parsed::default();
        parser.push(&raw, &mut parsed)?;
        if is_last {
            parser.finish(&mut parsed);
        }
        added
            .calls
            .extend(parsed.pieces.into_iter().map(|piece| match piece {
                CallPiece::Name { index, name } => ToolCall {
                    index,
                    id: format!("{id}{index:02x}"),
                    name,
                    arguments: String::new(),
                },
                CallPiece::Arguments { index, part } => ToolCall {
                    index,
                    arguments: part,
                    ..ToolCall::default()
                },
            }));
        Ok(parsed.text)
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
    Logprob {
        logprob: sampled.logprob,
        token,
        token_bytes: token_bytes.into(),
        top: alternatives(tokenizer, sampled),
    }
}

/// What a row says about a token of the prompt; of the first nothing was expected.
pub(crate) fn prompt_token(
    tokenizer: &Tokenizer,
    token: u32,
    scored: Option<&Sampled>,
) -> PromptToken {
    let (token, token_bytes) = spelled(tokenizer, token);
    PromptToken {
        logprob: scored.map(|scored| scored.logprob),
        token,
        token_bytes: token_bytes.into(),
        top: scored.map_or_else(Vec::new, |scored| alternatives(tokenizer, scored)),
    }
}

fn alternatives(tokenizer: &Tokenizer, sampled: &Sampled) -> Vec<Top> {
    let top = sampled.top.iter().map(|(token_id, logprob)| {
        let (token, token_bytes) = spelled(tokenizer, *token_id);
        Top {
            token_id: *token_id,
            token,
            logprob: *logprob,
            token_bytes: token_bytes.into(),
        }
    });
    top.collect()
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
