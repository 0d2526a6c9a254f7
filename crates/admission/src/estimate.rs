//! Measured rates, and the wait they predict.

use crate::types::Finished;

/// Fixed point of averages.
const UNIT: u64 = 1024;

/// Samples an average remembers: noise of exponential intervals shrinks to about an eighth. It is slow to see a pool that got
/// slower, which is why silence counts too.
const MEMORY: u64 = 32;

/// An average in 1/1024: the plain mean of the first samples, then exponentially weighted.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: u64,
    samples: u64,
}

impl Average {
    fn add(&mut self, sample: u64) {
        self.samples = (self.samples + 1).min(MEMORY);
        let sample = sample.saturating_mul(UNIT);
        self.value = self.value - self.value / self.samples + sample / self.samples;
    }

    /// `None` before the first sample.
    fn get(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.value)
    }
}

/// Rates of one pool. Only what happens while runs wait says what the pool can do; an idle pool's throughput says what was asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    /// Between two seats that become free, in ms.
    turnover_ms: Average,
    /// Tokens per observation and ms per observation: their ratio is the rate. (The average of rates would be led by the
    /// shortest observations.)
    tokens: Average,
    tokens_ms: Average,
    /// Per output token of one run, in us.
    token_us: Average,
    /// Output made, in 1/1024 of the ceiling.
    used: Average,
    /// Since when runs have been waiting without a break.
    busy_since: Option<u64>,
    last_turnover: u64,
    last_tokens: u64,
}

impl Rates {
    /// Whether runs wait, after any change of the queue.
    pub(crate) fn set_busy(&mut self, is_busy: bool, now_ms: u64) {
        match (is_busy, self.busy_since) {
            (true, None) => self.busy_since = Some(now_ms),
            (false, Some(_)) => self.busy_since = None,
            _ => {}
        }
    }

    pub(crate) fn finished(&mut self, finished: &Finished, now_ms: u64) {
        if let Some(since) = self.busy_since {
            self.turnover_ms
                .add(now_ms.saturating_sub(since.max(self.last_turnover)));
        }
        self.last_turnover = now_ms;
        if finished.output_tokens > 0 {
            self.token_us
                .add(finished.service_ms * 1000 / u64::from(finished.output_tokens));
        }
        if finished.ceiling > 0 {
            self.used
                .add(u64::from(finished.output_tokens) * UNIT / u64::from(finished.ceiling));
        }
    }

    pub(crate) fn tokens(&mut self, tokens: u64, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.last_tokens);
        if elapsed == 0 {
            return;
        }
        if self
            .busy_since
            .is_some_and(|since| since <= self.last_tokens)
        {
            self.tokens.add(tokens);
            self.tokens_ms.add(elapsed);
        }
        self.last_tokens = now_ms;
    }

    /// Output tokens a run with this ceiling is expected to make.
    pub(crate) fn expected_output(&self, ceiling: u32) -> u64 {
        let used = self.used.get().map_or(UNIT, |used| used / UNIT);
        (u64::from(ceiling) * used.min(UNIT)).div_ceil(UNIT)
    }

    /// How long a run is expected to take once it started; 0 before anything was measured.
    pub(crate) fn service_ms(&self, ceiling: u32) -> u64 {
        let token_us = self.token_us.get().map_or(0, |us| us / UNIT);
        self.expected_output(ceiling) * token_us / 1000
    }

    /// How long it takes until so many runs with so many tokens went before; 0 before anything was measured.
    pub(crate) fn wait_ms(&self, runs: u64, tokens: u64, now_ms: u64) -> u64 {
        let by_runs = self.turnover_ms.get().map_or(0, |average| {
            // A pool that stopped turning over is at least as slow as it has been silent.
            let silent = self.busy_since.map_or(0, |since| {
                now_ms.saturating_sub(since.max(self.last_turnover))
            });
            runs.saturating_mul(average.max(silent.saturating_mul(UNIT))) / UNIT
        });
        let by_tokens = match (self.tokens.get(), self.tokens_ms.get()) {
            (Some(made), Some(ms)) if made > 0 => tokens.saturating_mul(ms) / made,
            _ => 0,
        };
        by_runs.max(by_tokens)
    }
}
