//! A `Submit` frame, checked: everything behind this file relies on its numbers being in range.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_model::backend::{AdapterId, SamplingParams};
use weir_protocol::frames::run_bytes;
use weir_protocol::worker::{Grammar, Sampling, Submit, rejected::Code};
use weir_scheduler::Priority;

use super::output::EndRules;
use super::spans::RunTrace;
use crate::grammar::{Compiled, Ready};

/// A run's id.
pub(crate) type RunKey = [u8; 16];

/// Choices of one run: OpenAI's own limit.
const CHOICES_MAX: u32 = 128;
/// Alternatives per token: as much as any client of the OpenAI API may ask for, and little enough to send with every token.
const LOGPROBS_MAX: u32 = 20;
/// Log-probabilities of one prompt's tokens and their alternatives: some 10 MB.
const PROMPT_LOGPROBS_MAX: u64 = 1 << 16;
/// Stop strings per run, and the length of one: each is matched against every byte of output.
const STOPS_MAX: usize = 32;
const STOP_BYTES_MAX: usize = 1024;
/// End tokens of a run's own.
const STOP_TOKENS_MAX: usize = 256;

/// What the engine serves, as far as a request must fit it.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// Manifest digest of the loaded version.
    pub(crate) version_digest: String,
    /// The model's end tokens.
    pub(crate) end_tokens: Arc<[u32]>,
    /// One past the highest token id.
    pub(crate) vocab: u32,
    /// Positions per sequence.
    pub(crate) context_tokens: u32,
    /// Whether the device says what it expected of a prompt's tokens.
    pub(crate) scores_prompts: bool,
    /// Adapters of the version, by their own manifest digests.
    pub(crate) adapters: BTreeMap<String, ServedAdapter>,
}

/// An adapter that runs may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServedAdapter {
    /// At the device.
    pub(crate) id: AdapterId,
    /// Its manifest digest, which lists every file of it by digest.
    pub(crate) content: [u8; 32],
    /// Positions per sequence; the signer may have allowed fewer than the base's.
    pub(crate) context_tokens: u32,
}

/// A request that can be carried out.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: RunKey,
    pub(crate) epoch: u64,
    /// What is applied to the model for it.
    pub(crate) adapter: Option<ServedAdapter>,
    pub(crate) prompt: Vec<u32>,
    pub(crate) choices: u32,
    pub(crate) scope: Option<[u8; 32]>,
    pub(crate) priority: Priority,
    pub(crate) credit: u64,
    pub(crate) rules: EndRules,
    /// Of the first choice; the others differ in their seed.
    pub(crate) sampling: SamplingParams,
    /// What its output must look like.
    pub(crate) grammar: Option<Arc<Compiled>>,
    /// The trace that it is a part of.
    pub(crate) trace: Option<RunTrace>,
}

/// Why nothing was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

pub(crate) fn refuse<T>(code: Code, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        code,
        message: message.into(),
    })
}

/// A run's id from its bytes.
pub(crate) fn run_key(bytes: &[u8]) -> Result<RunKey, Refusal> {
    match run_bytes(bytes) {
        Some(run) => Ok(run),
        None => refuse(
            Code::Invalid,
            format!("a run id has 16 bytes, this one has {}", bytes.len()),
        ),
    }
}

impl Request {
    /// Checks a frame against what is served.
    pub(crate) fn check(
        submit: Submit,
        grammar: Option<Ready>,
        served: &Served,
    ) -> Result<Self, Refusal> {
        let key = run_key(&submit.run)?;
        let adapter = adapter_of(&submit, served)?;
        let max_tokens = check_lengths(&submit, served, adapter.as_ref())?;
        let scope = trust_scope(&submit.trust_scope)?;
        let sampling = submit.sampling.unwrap_or_else(greedy);
        check_sampling(&sampling, served)?;
        check_scores(&submit.prompt, &sampling, served)?;
        let grammar = check_grammar(submit.grammar.as_ref(), grammar, &sampling)?;
        let end_tokens = if sampling.ignore_eos {
            Arc::from([])
        } else {
            Arc::clone(&served.end_tokens)
        };
        let masked: Vec<u32> = end_tokens
            .iter()
            .chain(&sampling.stop_token_ids)
            .copied()
            .collect();
        let params = SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed.unwrap_or_else(|| seed_of(&key)),
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            logprobs: sampling.logprobs,
            prompt_logprobs: sampling.prompt_logprobs,
            masked_until_min: masked.into(),
            min_tokens: sampling.min_tokens.min(max_tokens),
        };
        let rules = EndRules {
            end_tokens,
            stop_tokens: sampling.stop_token_ids,
            stops: sampling.stop,
            max_tokens,
            min_tokens: params.min_tokens,
            // A grammar speaks of every byte, the first space included.
            continues_text: submit.continues_text
                || grammar
                    .as_ref()
                    .is_some_and(|grammar| grammar.calls.is_none()),
        };
        Ok(Self {
            trace: RunTrace::read(&submit.trace, key, submit.epoch),
            key,
            epoch: submit.epoch,
            adapter,
            prompt: submit.prompt,
            choices: submit.choices.max(1),
            scope,
            priority: Priority::from_wire(submit.priority),
            credit: submit.credit,
            rules,
            sampling: params,
            grammar,
        })
    }
}

/// What the version that a run names needs beside the model: nothing, or an adapter.
fn adapter_of(submit: &Submit, served: &Served) -> Result<Option<ServedAdapter>, Refusal> {
    if submit.version_digest == served.version_digest {
        return Ok(None);
    }
    if let Some(adapter) = served.adapters.get(&submit.version_digest) {
        return Ok(Some(*adapter));
    }
    refuse(
        Code::UnknownVersion,
        format!(
            "this worker serves {} and {} adapters of it, not {}",
            served.version_digest,
            served.adapters.len(),
            submit.version_digest
        ),
    )
}

/// The scope that a run shares prefixes in; none is nobody else's.
fn trust_scope(bytes: &[u8]) -> Result<Option<[u8; 32]>, Refusal> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let scope = bytes.try_into().map_err(|_| Refusal {
        code: Code::Invalid,
        message: format!("a trust scope has 32 bytes, this one has {}", bytes.len()),
    });
    scope.map(Some)
}

/// Checks prompt, output and choices; returns the output limit that also keeps within the context.
fn check_lengths(
    submit: &Submit,
    served: &Served,
    adapter: Option<&ServedAdapter>,
) -> Result<u32, Refusal> {
    let context = adapter.map_or(served.context_tokens, |adapter| adapter.context_tokens);
    let prompt = u32::try_from(submit.prompt.len()).unwrap_or(u32::MAX);
    if prompt == 0 {
        return refuse(
            Code::Invalid,
            "the prompt is empty; it needs at least one token",
        );
    }
    if prompt >= context {
        return refuse(
            Code::TooLarge,
            format!(
                "a prompt of {prompt} tokens leaves no room for output in a context of {context}"
            ),
        );
    }
    if let Some(token) = submit.prompt.iter().find(|token| **token >= served.vocab) {
        return refuse(
            Code::Invalid,
            format!(
                "token {token} is not in the vocabulary of {} tokens",
                served.vocab
            ),
        );
    }
    if submit.max_output_tokens == 0 {
        return refuse(
            Code::Invalid,
            "the output limit is 0; it must be at least 1",
        );
    }
    if submit.choices > CHOICES_MAX {
        return refuse(
            Code::Invalid,
            format!("{} choices are more than {CHOICES_MAX}", submit.choices),
        );
    }
    Ok(submit.max_output_tokens.min(context - prompt))
}

fn check_sampling(sampling: &Sampling, served: &Served) -> Result<(), Refusal> {
    let s = sampling;
    let ranges = [
        ("temperature", s.temperature, 0.0, 100.0),
        ("top_p", s.top_p, f32::MIN_POSITIVE, 1.0),
        ("min_p", s.min_p, 0.0, 1.0),
        ("presence_penalty", s.presence_penalty, -100.0, 100.0),
        ("frequency_penalty", s.frequency_penalty, -100.0, 100.0),
        ("repetition_penalty", s.repetition_penalty, 1e-3, 1e3),
    ];
    for (name, value, low, high) in ranges {
        // Written so that NaN is refused as well.
        if !(low..=high).contains(&value) {
            return refuse(
                Code::Invalid,
                format!("{name} {value} is not within {low} and {high}"),
            );
        }
    }
    if s.logprobs
        .max(s.prompt_logprobs)
        .is_some_and(|count| count > LOGPROBS_MAX)
    {
        return refuse(
            Code::Invalid,
            format!("more than {LOGPROBS_MAX} alternatives per token"),
        );
    }
    if s.stop.len() > STOPS_MAX
        || s.stop
            .iter()
            .any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX)
    {
        return refuse(
            Code::Invalid,
            format!("at most {STOPS_MAX} stop strings of 1 to {STOP_BYTES_MAX} bytes are possible"),
        );
    }
    if s.stop_token_ids.len() > STOP_TOKENS_MAX
        || s.stop_token_ids.iter().any(|token| *token >= served.vocab)
    {
        return refuse(
            Code::Invalid,
            format!(
                "at most {STOP_TOKENS_MAX} stop tokens are possible, each below {}",
                served.vocab
            ),
        );
    }
    Ok(())
}

/// What is said of a prompt is kept until its first token of output.
fn check_scores(prompt: &[u32], sampling: &Sampling, served: &Served) -> Result<(), Refusal> {
    let Some(alternatives) = sampling.prompt_logprobs else {
        return Ok(());
    };
    if !served.scores_prompts {
        let what = "prompt_logprobs are not possible on this worker's device; leave them out";
        return refuse(Code::Invalid, what);
    }
    let entries = prompt.len() as u64 * (1 + u64::from(alternatives));
    if entries > PROMPT_LOGPROBS_MAX {
        return refuse(
            Code::Invalid,
            format!(
                "prompt_logprobs of {} tokens with {alternatives} alternatives each are {entries} entries, and {PROMPT_LOGPROBS_MAX} are possible; ask for fewer alternatives, or in parts",
                prompt.len()
            ),
        );
    }
    Ok(())
}

/// A grammar ends the output by itself, so nothing may keep it from that or end it elsewhere: stop strings, which cut the text, are
/// the client's own wish.
fn check_grammar(
    asked: Option<&Grammar>,
    ready: Option<Ready>,
    sampling: &Sampling,
) -> Result<Option<Arc<Compiled>>, Refusal> {
    let grammar = match (asked, ready) {
        (None, _) => return Ok(None),
        (Some(_), Some(Ok(grammar))) => grammar,
        (Some(_), Some(Err(error))) => {
            return refuse(Code::Invalid, format!("grammar_error: {error}"));
        }
        (Some(_), None) => {
            return refuse(Code::Invalid, "grammar_error: the grammar was not compiled");
        }
    };
    if sampling.ignore_eos || sampling.min_tokens > 0 || !sampling.stop_token_ids.is_empty() {
        return refuse(
            Code::Invalid,
            "grammar_error: ignore_eos, min_tokens and stop_token_ids are not possible with a grammar",
        );
    }
    Ok(Some(grammar))
}

/// Best token each time, nothing else.
fn greedy() -> Sampling {
    Sampling {
        top_p: 1.0,
        repetition_penalty: 1.0,
        ..Sampling::default()
    }
}

/// A run without a seed takes one from its id, which is random: no clock and no generator here, and a run that is looked into
/// later can be repeated.
fn seed_of(run: &RunKey) -> u64 {
    let (high, low) = run.split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    split_mix(split_mix(half(high)) ^ half(low))
}

/// One step of `SplitMix64` (Steele, Lea and Flood 2014).
fn split_mix(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
