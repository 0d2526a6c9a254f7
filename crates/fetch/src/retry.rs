//! When to try again. Pure: the caller has the clock and the dice.

use std::time::Duration;

/// The first wait: a connection that was cut is usually there again at once.
const FIRST: Duration = Duration::from_millis(250);
/// The longest wait between two attempts of one blob.
const LONGEST: Duration = Duration::from_secs(15);
/// Attempts that bring nothing, one after the other: about a minute of waiting.
const MOST: u32 = 8;
/// An attempt that brings less has brought nothing: a server that gives a few bytes a connection must not keep a fetch alive forever.
pub const WORTH: u64 = 256 << 10;

/// How often in a row nothing came, for one blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after an attempt that failed and brought `bytes`; none when it is enough. `dice` spreads those who failed together:
    /// the wait is half of it to the whole.
    pub fn after(&mut self, bytes: u64, dice: u32) -> Option<Duration> {
        if bytes >= WORTH {
            self.failures = 0;
        }
        self.failures += 1;
        if self.failures >= MOST {
            return None;
        }
        let whole = FIRST.saturating_mul(1 << (self.failures - 1)).min(LONGEST);
        Some(whole / 2 + (whole / 2).mul_f64(f64::from(dice) / f64::from(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_end() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = std::iter::from_fn(|| backoff.after(0, u32::MAX)).collect();
        let millis: Vec<_> = waits.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [250, 500, 1000, 2000, 4000, 8000, 15_000]);
        assert_eq!(backoff.after(0, 0), None);
    }

    #[test]
    fn whoever_brings_something_may_fail_for_ever() {
        let mut backoff = Backoff::default();
        for _ in 0..1000 {
            assert_eq!(backoff.after(WORTH, 0), Some(FIRST / 2));
        }
    }

    #[test]
    fn a_few_bytes_an_attempt_do_not_count() {
        let mut backoff = Backoff::default();
        assert_eq!(
            std::iter::from_fn(|| backoff.after(WORTH - 1, 0)).count(),
            7
        );
    }
}
