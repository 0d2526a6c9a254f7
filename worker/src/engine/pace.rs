//! How many tokens a step may have, from what steps cost.
//!
//! A prompt is computed in pieces, so that running sequences get their next token and new requests their place in a step within a
//! bounded time. Pieces cost: every step reads all weights once. So steps are longer while nobody else waits for them.

use std::time::Duration;

use weir_scheduler::{Batch, Stats};

/// A step's length while others run or wait.
const SHARED: Duration = Duration::from_millis(50);
/// A step's length while one sequence has the device for itself.
const ALONE: Duration = Duration::from_millis(120);
/// Prompt tokens of a step before anything is known.
const FIRST: u32 = 128;
/// Fewest prompt tokens of a step, however slow the device: progress must not depend on a measurement.
const LEAST: u32 = 16;
/// Averages are over about so many steps.
const STEPS: f64 = 8.0;

/// What a step computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepSize {
    /// Sequences that got one token computed.
    decodes: u32,
    /// Tokens of prompts.
    prompt: u32,
}

/// Measured costs.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Nanoseconds of a step without prompt tokens.
    decode: Option<f64>,
    /// Nanoseconds of one prompt token more.
    token: Option<f64>,
}

impl Pace {
    /// Learns from a step.
    pub(super) fn learn(&mut self, batch: &Batch, took: Duration) {
        let tokens = u32::try_from(batch.tokens.len()).unwrap_or(u32::MAX);
        let size = StepSize {
            decodes: batch.decode_rows,
            prompt: tokens.saturating_sub(batch.decode_rows),
        };
        self.note(size, took);
    }

    /// Tokens of the next step. Whoever of the `sampled` got a token in the last step decodes in the next, unless it ended.
    pub(super) fn next(&self, stats: &Stats, sampled: usize) -> u32 {
        let decodes = u32::try_from(sampled).map_or(stats.running, |rows| rows.min(stats.running));
        let others = stats.running - decodes + stats.waiting.iter().sum::<u32>();
        self.budget(decodes, others.saturating_sub(1))
    }

    fn note(&mut self, size: StepSize, took: Duration) {
        let took = took.as_nanos() as f64;
        if size.prompt == 0 {
            blend(&mut self.decode, took);
        } else if size.prompt >= LEAST {
            // What the reading of weights costs is in the price of a token, so a long step is never expected to be shorter than it is.
            let decode = if size.decodes == 0 {
                0.0
            } else {
                self.decode.unwrap_or(0.0)
            };
            blend(
                &mut self.token,
                ((took - decode) / f64::from(size.prompt)).max(1.0),
            );
        }
    }

    /// Tokens of the next step, for so many that decode and so many prompts that wait or are being computed besides the first.
    fn budget(&self, decodes: u32, others: u32) -> u32 {
        let Some(token) = self.token else {
            return decodes.saturating_add(FIRST);
        };
        let is_shared = decodes > 0 || others > 0;
        let length = if is_shared { SHARED } else { ALONE }.as_nanos() as f64;
        let decode = if decodes == 0 {
            0.0
        } else {
            self.decode.unwrap_or(0.0)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number is from 16 to a billion"
        )]
        let prompt = ((length - decode) / token).clamp(f64::from(LEAST), 1e9) as u32;
        decodes.saturating_add(prompt)
    }
}

fn blend(average: &mut Option<f64>, new: f64) {
    *average = Some(average.map_or(new, |old| old + (new - old) / STEPS));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: &[(u32, u32, u64)]) -> Pace {
        let mut pace = Pace::default();
        for &(decodes, prompt, millis) in steps {
            pace.note(StepSize { decodes, prompt }, Duration::from_millis(millis));
        }
        pace
    }

    #[test]
    fn a_step_is_as_long_as_others_can_wait() {
        type Case = (&'static str, &'static [(u32, u32, u64)], (u32, u32), u32);
        let cases: [Case; 7] = [
            ("nothing is known", &[], (0, 0), 128),
            ("nothing is known, and some run", &[], (7, 3), 135),
            (
                "half a millisecond a token, alone",
                &[(0, 100, 50)],
                (0, 0),
                240,
            ),
            ("the same, with others", &[(0, 100, 50)], (0, 1), 100),
            (
                "decodes take their part",
                &[(4, 0, 10), (4, 100, 60)],
                (4, 0),
                84,
            ),
            ("very slow", &[(0, 16, 16_000)], (2, 0), 18),
            ("small steps teach nothing", &[(0, 3, 300)], (0, 0), 128),
        ];
        for (name, steps, (decodes, others), want) in cases {
            assert_eq!(after(steps).budget(decodes, others), want, "{name}");
        }
    }

    #[test]
    fn one_slow_step_changes_little() {
        let mut pace = after(&[(0, 100, 50)]);
        pace.note(
            StepSize {
                decodes: 0,
                prompt: 100,
            },
            Duration::from_millis(90),
        );
        assert_eq!(pace.budget(0, 1), 90);
    }
}
