//! From a row of logits to a token.
//!
//! The order is fixed: log-probabilities from the raw logits; then repetition, presence and frequency penalties, the mask of
//! end tokens and the grammar's mask; temperature; top-k; top-p over what top-k left; min-p; one draw. All of it depends on the row alone.

mod counts;
mod draw;
mod philox;
#[cfg(test)]
mod tests;

pub(crate) use counts::TokenCounts;
pub(crate) use draw::Scratch;

use weir_scheduler::SequenceId;

use crate::backend::{BackendError, Sampled, SamplingParams};
use crate::cpu::kernels::Kernels;

/// Logits hold something that is not a number: the weights are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotANumber;

/// What the device says of it.
pub(crate) fn broken_weights(step: u64, sequence: SequenceId) -> BackendError {
    BackendError::Device {
        step,
        what: format!(
            "logits of sequence {} are not numbers; the weights are broken",
            sequence.0
        ),
    }
}

/// Where a row stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPosition<'a> {
    /// Position in the sequence of the token to be chosen; the counter of the random numbers.
    pub position: u64,
    /// Tokens the row has put out so far.
    pub output_len: u32,
    /// Tokens its grammar allows, where it has one.
    pub mask: Option<&'a [u32]>,
    /// Output that the counts do not have yet: guesses that must come true for the row to matter.
    pub uncounted: &'a [u32],
}

/// What `logits` (vocabulary) expected of a token, with so many of the best alternatives.
pub(crate) fn score(
    kernels: &Kernels,
    logits: &[f32],
    token: u32,
    alternatives: u32,
) -> Result<Sampled, NotANumber> {
    let best = kernels.best(logits).ok_or(NotANumber)?;
    let log_sum = log_sum(kernels, logits, best);
    Ok(Sampled {
        token,
        logprob: draw::log_probability(logits[token as usize], log_sum),
        top: draw::top(logits, alternatives as usize, log_sum),
    })
}

/// The logarithm of the sum of all exponentials.
fn log_sum(kernels: &Kernels, logits: &[f32], best: usize) -> f64 {
    let sum = kernels.exp_sum(logits, logits[best], 1.0);
    f64::from(logits[best]) + sum.ln()
}

/// Chooses a token. `logits` (vocabulary) is used up.
pub(crate) fn sample(
    kernels: &Kernels,
    logits: &mut [f32],
    params: &SamplingParams,
    row: RowPosition<'_>,
    counts: &TokenCounts,
    scratch: &mut Scratch,
) -> Result<Sampled, NotANumber> {
    let raw_best = kernels.best(logits).ok_or(NotANumber)?;
    let mut sampled = Sampled {
        token: 0,
        logprob: 0.0,
        top: Vec::new(),
    };
    let mut raw = None;
    if let Some(alternatives) = params.logprobs {
        let log_sum = log_sum(kernels, logits, raw_best);
        sampled.top = draw::top(logits, alternatives as usize, log_sum);
        raw = Some(log_sum);
        scratch.keep_raw(logits);
    }
    if params.is_penalised() {
        if row.uncounted.is_empty() {
            apply_penalties(logits, params, counts);
        } else {
            apply_penalties(logits, params, scratch.counts_with(counts, row.uncounted));
        }
    }
    if row.output_len < params.min_tokens {
        for &token in params.masked_until_min.iter() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if let Some(mask) = row.mask {
        apply_mask(logits, mask);
    }
    let best = kernels.best(logits).ok_or(NotANumber)?;
    sampled.token = if params.temperature <= 0.0 || logits[best] == f32::NEG_INFINITY {
        u32::try_from(best).expect("vocabularies are below 2^32")
    } else {
        let max = logits[best];
        kernels.exp_all(logits, max, 1.0 / params.temperature);
        draw::draw(
            logits,
            params,
            philox::uniform(params.seed, row.position),
            scratch,
        )
    };
    if let Some(log_sum) = raw {
        sampled.logprob = draw::log_probability(scratch.raw(sampled.token), log_sum);
    }
    Ok(sampled)
}

/// Takes every token away whose bit is not set.
fn apply_mask(logits: &mut [f32], mask: &[u32]) {
    let mut chunks = logits.chunks_mut(32);
    for (&word, logits) in mask.iter().zip(chunks.by_ref()) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    for logits in chunks {
        logits.fill(f32::NEG_INFINITY);
    }
}

fn apply_penalties(logits: &mut [f32], params: &SamplingParams, counts: &TokenCounts) {
    for entry in counts.entries() {
        let Some(logit) = logits.get_mut(entry.token as usize) else {
            continue;
        };
        // CTRL's rule (arXiv 1909.05858): towards zero probability whatever the sign.
        if *logit > 0.0 {
            *logit /= params.repetition_penalty;
        } else {
            *logit *= params.repetition_penalty;
        }
        if entry.output_count > 0 {
            *logit -=
                params.presence_penalty + params.frequency_penalty * entry.output_count as f32;
        }
    }
}
