//! Measured rates, and the wait they predict.
//!
//! A run occupies a seat for a time that is learned from those that ended: per unit of work (a token of output, or sixteen of
//! the prompt), for each prompt-size class by itself. The wait is the seat time of all that goes before, divided by the seats
//! that are busy while runs wait. Seats are known, not measured, so that a worker that is lost counts at once; what is
//! measured are sums over windows, never single intervals, so that ends which come in batches are no noise.

use crate::types::{CLASSES, Finished};

/// Fixed point of shares.
const UNIT: u64 = 1024;
/// Prompt tokens that take a seat about as long as one output token: prompts are computed many tokens at a time.
const PROMPT_PER_UNIT: u64 = 16;
/// Ends that are remembered of each class: the mean of 64 exponential times is within an eighth of the truth.
const MEMORY: u64 = 64;
/// How long the share of busy seats is remembered, in ms of waiting.
const BUSY_WINDOW_MS: u64 = 20_000;

/// A ratio of sums that forgets: `of` per `per`.
#[derive(Clone, Copy, Debug, Default)]
struct Ratio {
    of: u64,
    per: u64,
    samples: u64,
}

impl Ratio {
    fn add(&mut self, of: u64, per: u64) {
        if self.samples == MEMORY {
            self.of -= self.of / MEMORY;
            self.per -= self.per / MEMORY;
        } else {
            self.samples += 1;
        }
        self.of = self.of.saturating_add(of);
        self.per = self.per.saturating_add(per);
    }

    /// `amount` times the ratio; `None` before the first sample.
    fn times(&self, amount: u64) -> Option<u64> {
        (self.per > 0).then(|| scaled(amount, self.of, self.per))
    }
}

/// a·b/c, for numbers whose product is wide; c is not 0.
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b) / u128::from(c.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}

/// What was learned of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Microseconds of a seat per 1/1024 of a unit.
    seat_us: Ratio,
    /// Output made per ceiling.
    output: Ratio,
}

/// Rates of one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    classes: [Class; CLASSES],
    all: Class,
    /// Mean seat time of a run, in microseconds per run.
    mean: Ratio,
    /// Seat time per unit as far as tokens tell, before any run ended.
    cold: Ratio,
    /// Busy seats and all seats, in ms, while runs wait.
    busy_ms: u64,
    seat_ms: u64,
    /// As of the last look: busy seats, all seats, and whether runs wait.
    busy: u64,
    seats: u64,
    is_waiting: bool,
    looked_ms: u64,
    /// When the pool last got something done.
    progress_ms: u64,
    tokens_ms: u64,
    /// The longest seat time of late, in microseconds.
    longest_us: u64,
}

/// Runs and their seat time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) runs: u64,
    pub(crate) us: u64,
}

impl Work {
    pub(crate) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.us = self.us.saturating_add(other.us);
    }
}

fn units(prompt_tokens: u64, output_tokens: u64) -> u64 {
    (output_tokens * UNIT + prompt_tokens * UNIT / PROMPT_PER_UNIT).max(UNIT)
}

impl Rates {
    /// Notes how many seats there are and how many are busy, from now on.
    pub(crate) fn look(&mut self, seats: u64, busy: u64, now_ms: u64) {
        self.pass(now_ms);
        if self.busy == 0 && busy > 0 {
            self.progress_ms = now_ms;
        }
        self.seats = seats;
        self.busy = busy.min(seats);
    }

    /// Whether runs wait, from now on.
    pub(crate) fn set_waiting(&mut self, is_waiting: bool, now_ms: u64) {
        self.pass(now_ms);
        if is_waiting && !self.is_waiting && self.busy == 0 {
            self.progress_ms = now_ms;
        }
        self.is_waiting = is_waiting;
    }

    /// Lets time pass with what was seen last. Only while runs wait do busy seats say what the pool can do.
    fn pass(&mut self, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.looked_ms);
        self.looked_ms = self.looked_ms.max(now_ms);
        if !self.is_waiting || self.seats == 0 {
            return;
        }
        self.busy_ms += self.busy * elapsed;
        self.seat_ms += self.seats * elapsed;
        if self.seat_ms > 2 * BUSY_WINDOW_MS * self.seats {
            self.busy_ms /= 2;
            self.seat_ms /= 2;
        }
    }

    pub(crate) fn finished(&mut self, class: usize, finished: &Finished, now_ms: u64) {
        self.pass(now_ms);
        self.progress_ms = self.progress_ms.max(now_ms);
        let us = finished.service_ms.saturating_mul(1000).max(500);
        let (prompt, output) = (
            u64::from(finished.prompt_tokens),
            u64::from(finished.output_tokens),
        );
        for known in [&mut self.classes[class], &mut self.all] {
            known.seat_us.add(us, units(prompt, output));
            if finished.ceiling > 0 {
                known.output.add(output, u64::from(finished.ceiling));
            }
        }
        self.mean.add(us, 1);
        self.longest_us = us.max(self.longest_us - self.longest_us / MEMORY);
    }

    pub(crate) fn tokens(&mut self, tokens: u64, now_ms: u64) {
        self.pass(now_ms);
        let elapsed = now_ms.saturating_sub(self.tokens_ms.max(self.progress_ms.min(now_ms)));
        if tokens > 0 {
            if elapsed > 0 {
                self.cold.add(self.busy * elapsed * 1000, tokens * UNIT);
            }
            self.progress_ms = self.progress_ms.max(now_ms);
        }
        self.tokens_ms = now_ms;
    }

    /// Output tokens a run of this class with this ceiling is expected to make.
    pub(crate) fn expected_output(&self, class: usize, ceiling: u32) -> u64 {
        let ceiling = u64::from(ceiling);
        let known = self.classes[class].output.times(ceiling);
        let expected = known.or_else(|| self.all.output.times(ceiling));
        expected.unwrap_or(ceiling).min(ceiling).max(1)
    }

    /// The seat time that a run is expected to take, in microseconds; 0 before anything was measured.
    pub(crate) fn seat_us(&self, class: usize, prompt_tokens: u32, ceiling: u32) -> u64 {
        let expected = self.expected_output(class, ceiling);
        let units = units(u64::from(prompt_tokens), expected);
        let known = self.classes[class].seat_us.times(units);
        known
            .or_else(|| self.all.seat_us.times(units))
            .or_else(|| self.cold.times(units))
            .unwrap_or(0)
    }

    /// How long it takes until a run starts that has so much work before it, of which `free` seats start at once, while more
    /// urgent work keeps coming: `urgent_us` per second. 0 before anything was measured.
    pub(crate) fn wait_ms(&self, ahead: Work, free: u64, urgent_us: u64, now_ms: u64) -> u64 {
        // Those that start at once cost no wait, and of the others the first end among those that run now is waited for.
        let (before, waits) = (ahead.runs + 1, (ahead.runs + 1).saturating_sub(free));
        if waits == 0 {
            return 0;
        }
        let first = self.mean.times(1).or_else(|| self.cold.times(UNIT));
        let us = scaled(ahead.us + first.unwrap_or(0), waits, before);
        let us = scaled(us, self.slowness(now_ms), UNIT);
        let seats = self.effective_seats();
        // So much seat time there is in a second; more urgent work takes its part of it first. Not more than three quarters are
        // foretold: what came of late may have been a burst.
        let given_us = seats * 1_000_000 / UNIT;
        let left_us = given_us.saturating_sub(urgent_us).max(given_us / 4).max(1);
        scaled(us, 1_000, left_us)
    }

    /// Seats that are busy while runs wait, in 1/1024: fewer than there are where memory is the narrower way.
    fn effective_seats(&self) -> u64 {
        let seats = self.seats.max(1);
        // Half a second in which all seats were busy, until there is more to go by.
        let prior = seats * 500;
        let busy = scaled(seats * UNIT, self.busy_ms + prior, self.seat_ms + prior);
        busy.max(UNIT)
    }

    /// In 1/1024: how much longer runs take than those that ended, as far as silence tells. A pool that gets nothing done is at
    /// least as slow as it has been silent.
    fn slowness(&self, now_ms: u64) -> u64 {
        if self.longest_us == 0 || self.busy == 0 || !self.is_waiting {
            return UNIT;
        }
        let silent_us = now_ms.saturating_sub(self.progress_ms) * 1000;
        scaled(silent_us, UNIT, self.longest_us).max(UNIT)
    }
}

/// How much came of late, over the present and the last window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrivals {
    begun_ms: u64,
    before: Arrived,
    now: Arrived,
}

/// What came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) tokens: u64,
    pub(crate) work: Work,
}

/// Long enough for a rate, short enough to forget a burst.
const ARRIVALS_MS: u64 = 5_000;

impl Arrivals {
    pub(crate) fn add(&mut self, tokens: u64, us: u64, now_ms: u64) {
        self.turn(now_ms);
        self.now.tokens += tokens;
        self.now.work.add(Work { runs: 1, us });
    }

    fn turn(&mut self, now_ms: u64) {
        let age = now_ms.saturating_sub(self.begun_ms);
        if age >= ARRIVALS_MS {
            self.before = if age < 2 * ARRIVALS_MS {
                self.now
            } else {
                Arrived::default()
            };
            self.now = Arrived::default();
            self.begun_ms = now_ms - age % ARRIVALS_MS;
        }
    }

    /// What is expected to come within so many ms, at the rate of late.
    pub(crate) fn within(&self, ms: u64, now_ms: u64) -> Arrived {
        let mut at = *self;
        at.turn(now_ms);
        let measured_ms = ARRIVALS_MS + now_ms.saturating_sub(at.begun_ms);
        let part = |before: u64, now: u64| scaled(before + now, ms, measured_ms);
        Arrived {
            tokens: part(at.before.tokens, at.now.tokens),
            work: Work {
                runs: part(at.before.work.runs, at.now.work.runs),
                us: part(at.before.work.us, at.now.work.us),
            },
        }
    }

    pub(crate) fn is_quiet(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.begun_ms) >= 2 * ARRIVALS_MS
    }
}
