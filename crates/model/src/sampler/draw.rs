//! Filters and the draw, without sorting the vocabulary: weights are put into classes by their leading bits, and only tokens of
//! the classes that can be chosen are sorted.

use super::counts::TokenCounts;
use crate::backend::SamplingParams;

/// Leading bits of a positive f32 that make its class: eight of exponent, three of mantissa.
const CLASS_SHIFT: u32 = 20;
/// Weights are at most 1, so classes above 1's are never used.
const CLASSES: usize = (0x3F80_0000 >> CLASS_SHIFT) + 1;

/// Memory that a thread needs to sample, kept between rows.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Tokens that can be chosen, with their weights.
    candidates: Vec<(f32, u32)>,
    /// (classes) tokens and their weights' sum
    counts: Vec<u32>,
    masses: Vec<f64>,
    raw: Vec<f32>,
    /// Counts of a row whose guesses are not counted yet.
    ahead: TokenCounts,
}

impl Scratch {
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self {
            candidates: Vec::with_capacity(vocab_size),
            counts: vec![0; CLASSES],
            masses: vec![0.0; CLASSES],
            raw: Vec::with_capacity(vocab_size),
            ahead: TokenCounts::default(),
        }
    }

    /// Keeps the logits as they came, because filters overwrite them.
    pub(super) fn keep_raw(&mut self, logits: &[f32]) {
        self.raw.clear();
        self.raw.extend_from_slice(logits);
    }

    /// Counts with some more tokens of output.
    pub(super) fn counts_with(&mut self, counts: &TokenCounts, output: &[u32]) -> &TokenCounts {
        self.ahead.copy(counts);
        for &token in output {
            self.ahead.add_output(token);
        }
        &self.ahead
    }

    pub(super) fn raw(&self, token: u32) -> f32 {
        self.raw[token as usize]
    }
}

/// A token by its weight (the best has 1) among those the filters leave, for `uniform` in [0, 1).
pub(super) fn draw(
    weights: &[f32],
    params: &SamplingParams,
    uniform: f64,
    scratch: &mut Scratch,
) -> u32 {
    let Scratch {
        candidates,
        counts,
        masses,
        ..
    } = scratch;
    candidates.clear();
    if params.top_k == 0 && params.top_p >= 1.0 {
        let kept = weights
            .iter()
            .zip(0u32..)
            .filter(|&(&weight, _)| weight > 0.0 && weight >= params.min_p);
        candidates.extend(kept.map(|(&weight, token)| (weight, token)));
        return pick(candidates, uniform);
    }
    let floor = class_floor(weights, params, counts, masses);
    let kept = weights
        .iter()
        .zip(0u32..)
        .filter(|&(&weight, _)| weight > 0.0 && class(weight) >= floor);
    candidates.extend(kept.map(|(&weight, token)| (weight, token)));
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut total = 0.0;
    if params.top_k > 0 {
        candidates.truncate(params.top_k as usize);
        total = candidates
            .iter()
            .map(|&(weight, _)| f64::from(weight))
            .sum();
    } else if params.top_p < 1.0 {
        total = masses.iter().sum();
    }
    if params.top_p < 1.0 {
        let wanted = f64::from(params.top_p) * total;
        let mut mass = 0.0;
        let reached = candidates.iter().position(|&(weight, _)| {
            mass += f64::from(weight);
            mass >= wanted
        });
        candidates.truncate(reached.map_or(candidates.len(), |at| at + 1));
    }
    candidates.retain(|&(weight, _)| weight >= params.min_p);
    pick(candidates, uniform)
}

fn class(weight: f32) -> usize {
    ((weight.to_bits() >> CLASS_SHIFT) as usize).min(CLASSES - 1)
}

/// The lowest class that top-k or, without it, top-p can reach.
fn class_floor(
    weights: &[f32],
    params: &SamplingParams,
    counts: &mut [u32],
    masses: &mut [f64],
) -> usize {
    counts.fill(0);
    masses.fill(0.0);
    for &weight in weights.iter().filter(|&&weight| weight > 0.0) {
        counts[class(weight)] += 1;
        masses[class(weight)] += f64::from(weight);
    }
    let total: f64 = masses.iter().sum();
    let (mut count, mut mass) = (0u64, 0.0);
    for at in (0..CLASSES).rev() {
        count += u64::from(counts[at]);
        mass += masses[at];
        // Sums of the same numbers in another order may differ in the last bits; a little more than enough is sorted.
        let enough = match params.top_k {
            0 => mass >= f64::from(params.top_p) * total * (1.0 + 1e-9),
            k => count >= u64::from(k),
        };
        if enough {
            return at;
        }
    }
    0
}

/// The candidate under `uniform` when they lie one behind the other.
fn pick(candidates: &[(f32, u32)], uniform: f64) -> u32 {
    let total: f64 = candidates
        .iter()
        .map(|&(weight, _)| f64::from(weight))
        .sum();
    let at = uniform * total;
    let mut mass = 0.0;
    let found = candidates.iter().find(|&&(weight, _)| {
        mass += f64::from(weight);
        mass > at
    });
    found.or(candidates.last()).map_or(0, |&(_, token)| token)
}

/// The most likely tokens and their log-probabilities, best first, ties by id.
pub(super) fn top(logits: &[f32], count: usize, log_sum: f64) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count.min(logits.len()) + 1);
    if count == 0 {
        return best;
    }
    for (&logit, token) in logits.iter().zip(0u32..) {
        if best.len() == count && best.last().is_some_and(|&(_, worst)| logit <= worst) {
            continue;
        }
        let at = best.partition_point(|&(_, better)| better >= logit);
        best.insert(at, (token, logit));
        best.truncate(count);
    }
    for (_, logit) in &mut best {
        *logit = log_probability(*logit, log_sum);
    }
    best
}

#[expect(clippy::cast_possible_truncation, reason = "reported as f32")]
pub(super) fn log_probability(logit: f32, log_sum: f64) -> f32 {
    (f64::from(logit) - log_sum) as f32
}
