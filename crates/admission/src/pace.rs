//! How fast one worker computes, learned from what it says of itself.

/// Observations that are remembered.
const MEMORY: f64 = 64.0;

/// A step takes a time of its own and a time for each token in it. Both are fitted (least squares) to what a worker got done in
/// times in which it always had something to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    steps_steps: f64,
    steps_tokens: f64,
    tokens_tokens: f64,
    steps_us: f64,
    tokens_us: f64,
}

/// The two times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Times {
    pub(crate) step_us: f64,
    pub(crate) token_us: f64,
}

/// A worker whose pace is not known yet may take this long for a step: the first one on a cold machine is slow.
const COLD_STALL_MS: u64 = 30_000;
/// Nobody is left out sooner: a busy machine may stop a process for a while.
const LEAST_STALL_MS: u64 = 5_000;
/// So many full steps without one that ends are no slow step.
const STALL_STEPS: f64 = 8.0;

impl Pace {
    /// The worker made so many steps of so many tokens in all in `us`, and was never without work in it.
    pub fn observe(&mut self, steps: u64, tokens: u64, us: u64) {
        if steps == 0 || us == 0 {
            return;
        }
        let (steps, tokens, us) = (steps as f64, tokens as f64, us as f64);
        let keep = 1.0 - 1.0 / MEMORY;
        // Each observation weighs as much as its time, not as its square.
        for (sum, of) in [
            (&mut self.steps_steps, steps * steps / us),
            (&mut self.steps_tokens, steps * tokens / us),
            (&mut self.tokens_tokens, tokens * tokens / us),
            (&mut self.steps_us, steps),
            (&mut self.tokens_us, tokens),
        ] {
            *sum = *sum * keep + of;
        }
    }

    /// `None` before anything was observed.
    pub(crate) fn times(&self) -> Option<Times> {
        if self.steps_steps <= 0.0 {
            return None;
        }
        let by_step = Times {
            step_us: self.steps_us / self.steps_steps,
            token_us: 0.0,
        };
        if self.tokens_tokens <= 0.0 {
            return Some(by_step);
        }
        let by_token = Times {
            step_us: 0.0,
            token_us: self.tokens_us / self.tokens_tokens,
        };
        let determinant =
            self.steps_steps * self.tokens_tokens - self.steps_tokens * self.steps_tokens;
        // Steps that were all alike do not tell the two apart; then the step has all of it.
        if determinant <= 1e-6 * self.steps_steps * self.tokens_tokens {
            return Some(by_step);
        }
        let step_us =
            (self.steps_us * self.tokens_tokens - self.tokens_us * self.steps_tokens) / determinant;
        let token_us =
            (self.tokens_us * self.steps_steps - self.steps_us * self.steps_tokens) / determinant;
        Some(if step_us < 0.0 {
            by_token
        } else if token_us < 0.0 {
            by_step
        } else {
            Times { step_us, token_us }
        })
    }

    /// How long the worker may get nothing done before it counts as stalled: several of its longest steps.
    pub fn stall_after_ms(&self, max_batch_tokens: u32) -> u64 {
        let Some(times) = self.times() else {
            return COLD_STALL_MS;
        };
        let step_us = times.step_us + times.token_us * f64::from(max_batch_tokens);
        whole(STALL_STEPS * step_us / 1000.0).max(LEAST_STALL_MS)
    }
}

/// The nearest whole number that is not above; saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts of floats saturate"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 2 ms and 0.1 ms per token, in prefill and in decode.
    fn learned() -> Pace {
        let mut pace = Pace::default();
        for (steps, tokens) in [(10, 5_000), (40, 320), (20, 2_000), (30, 240)] {
            pace.observe(steps, tokens, steps * 2_000 + tokens * 100);
        }
        pace
    }

    #[test]
    fn steps_and_tokens_are_told_apart() {
        let times = learned().times().unwrap();
        assert!((times.step_us - 2_000.0).abs() < 1.0, "{times:?}");
        assert!((times.token_us - 100.0).abs() < 0.1, "{times:?}");
    }

    #[test]
    fn steps_that_are_all_alike_have_all_the_time() {
        let mut pace = Pace::default();
        assert_eq!(pace.times(), None);
        pace.observe(0, 10, 1_000);
        assert_eq!(pace.times(), None);
        for _ in 0..5 {
            pace.observe(100, 800, 250_000);
        }
        let times = pace.times().unwrap();
        assert!((times.step_us - 2_500.0).abs() < 1.0 && times.token_us == 0.0);
    }

    #[test]
    fn a_worker_of_long_steps_stalls_later() {
        assert_eq!(Pace::default().stall_after_ms(2_048), 30_000);
        assert_eq!(learned().stall_after_ms(512), 5_000);
        // 2 ms + 8,192 x 0.1 ms, eight times.
        let after = learned().stall_after_ms(8_192);
        assert!((6_560..=6_575).contains(&after), "{after}");
    }
}
