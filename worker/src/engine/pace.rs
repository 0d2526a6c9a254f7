//! How many tokens a step may have, from what steps cost.
//!
//! A prompt is computed in pieces, so that running sequences get their next token and new requests their place in a step within a
//! bounded time. Pieces cost: every step reads all weights once. So steps are longer while nobody else waits for them, and never so
//! short that reading weights is most of what they do.

use std::time::Duration;

use weir_scheduler::{Batch, Stats};

use super::cost::{CostFit, Costs, StepSize};

/// A step's length in milliseconds while others run or wait: the gap between two tokens of a running sequence.
const SHARED_MS: f64 = 40.0;
/// A step's length while one sequence has the device for itself.
const ALONE_MS: f64 = 120.0;
/// Where reading the weights alone takes most of [`SHARED_MS`], a step that decodes has this many times what its decodes cost for
/// prompts, which are over sooner and read weights less often; up to [`EXTRA_MS`], and never less than half of what decodes cost.
const OVER_DECODES: f64 = 2.0;
const EXTRA_MS: f64 = 120.0;
const LEAST_OVER_DECODES: f64 = 0.5;
/// A step that only computes prompts is as long as this many times its fixed cost: three quarters of it are work on prompts.
const OVER_FIXED: f64 = 4.0;
/// Prompt tokens of a step before anything is known.
const FIRST: u32 = 128;
/// Fewest prompt tokens of a step, however slow the device: progress must not depend on a measurement.
const LEAST: u32 = 16;

/// What a guess costs before anything is known, in 1/1024 of a token: a CPU reads weights once for a few rows.
const UNKNOWN_DRAFT_COST: u32 = 256;

/// Measured costs, and what follows from them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    fit: CostFit,
    /// Sequences that will decode in the next step.
    decodes: u32,
}

impl Pace {
    /// Learns from a step.
    pub(super) fn learn(&mut self, batch: &Batch, took: Duration) {
        let tokens = u32::try_from(batch.tokens.len()).unwrap_or(u32::MAX);
        let decodes = batch.decode_tokens();
        let size = StepSize {
            decodes,
            prompt: tokens.saturating_sub(decodes),
        };
        self.note(size, took);
    }

    /// Tokens of the next step, guesses not counted. Whoever got a token in the last step decodes in the next, unless it ended.
    pub(super) fn next(&mut self, stats: &Stats, last: &Batch) -> u32 {
        let sampled = last.rows.iter().filter(|row| row.samples).count();
        let decodes = u32::try_from(sampled).map_or(stats.running, |rows| rows.min(stats.running));
        let others = stats.running - decodes + stats.waiting.iter().sum::<u32>();
        self.decodes = decodes;
        self.budget(decodes, others.saturating_sub(1))
    }

    /// What a guess costs in the next step, in 1/1024 of what a token of it costs.
    pub(super) fn draft_cost(&self) -> u32 {
        let decodes = self.decodes.max(1);
        let Some(costs) = self.fit.costs() else {
            return UNKNOWN_DRAFT_COST;
        };
        let token = costs.of_decodes(decodes) / f64::from(decodes);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number is from 64 to 1024"
        )]
        let cost = (1024.0 * costs.decode / token).clamp(64.0, 1024.0) as u32;
        cost
    }

    fn note(&mut self, size: StepSize, took: Duration) {
        self.fit.note(size, took.as_secs_f64() * 1e3);
    }

    /// Tokens of the next step, for so many that decode and so many prompts that wait or are being computed besides the first.
    fn budget(&self, decodes: u32, others: u32) -> u32 {
        let Some(costs) = self.fit.costs() else {
            return decodes.saturating_add(FIRST);
        };
        let before = costs.of_decodes(decodes);
        let length = step_ms(&costs, decodes, others);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number is from 16 to a billion"
        )]
        let prompt = ((length - before) / costs.prompt).clamp(f64::from(LEAST), 1e9) as u32;
        decodes.saturating_add(prompt)
    }
}

/// How long a step with prompt tokens should be.
fn step_ms(costs: &Costs, decodes: u32, others: u32) -> f64 {
    if decodes > 0 {
        return shared_ms(costs.of_decodes(decodes));
    }
    let target = if others > 0 { SHARED_MS } else { ALONE_MS };
    // A fixed cost that was not told apart yet must not make a step much longer than one that is alone.
    target.max((OVER_FIXED * costs.fixed).min(ALONE_MS + costs.fixed))
}

/// How long a step should be whose decodes cost so much.
fn shared_ms(decodes_ms: f64) -> f64 {
    let extra = (OVER_DECODES * decodes_ms).min(EXTRA_MS);
    SHARED_MS.max(decodes_ms + extra.max(LEAST_OVER_DECODES * decodes_ms))
}

#[cfg(test)]
mod tests;
