//! How many tokens a model's workers compute in a second: from counters that begin anew with every worker. Pure: times are arguments.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// What is looked back on: shorter than a load that is worth a worker, longer than a step.
const WINDOW: Duration = Duration::from_secs(10);

/// Counters of workers by name.
pub type Counted = BTreeMap<String, u64>;

/// The counters of the last seconds.
#[derive(Debug, Default)]
pub struct Rate {
    seen: VecDeque<(Instant, Counted)>,
}

impl Rate {
    /// Tokens a second over the window that ends `now`; `None` before there is one.
    pub fn next(&mut self, counted: Counted, now: Instant) -> Option<u64> {
        let age = |at: Instant| now.saturating_duration_since(at);
        // The newest one that is older than the window stays: the window begins with it.
        while self.seen.get(1).is_some_and(|(at, _)| age(*at) >= WINDOW) {
            self.seen.pop_front();
        }
        self.seen.push_back((now, counted));
        let (first_at, _) = self.seen.front()?;
        let window = age(*first_at);
        if window < WINDOW {
            return None;
        }
        let (_, last) = self.seen.back()?;
        // A worker counts from where it was first seen: it may have worked for hours, and only now be asked for. Of one that went, nothing
        // is known; one that started again counts from nothing on.
        let computed = last.iter().map(|(worker, tokens)| {
            let mut seen = self.seen.iter();
            let before = seen.find_map(|(_, counted)| counted.get(worker));
            let before = before.copied().unwrap_or(*tokens);
            tokens.checked_sub(before).unwrap_or(*tokens)
        });
        let computed: u64 = computed.sum();
        let window_ms = u64::try_from(window.as_millis()).ok()?;
        (computed.saturating_mul(1_000)).checked_div(window_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(workers: &[(&str, u64)]) -> Counted {
        let of = |(name, tokens): &(&str, u64)| ((*name).to_owned(), *tokens);
        workers.iter().map(of).collect()
    }

    #[test]
    fn tokens_of_all_workers_are_told_over_the_last_seconds_alone() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let mut told = Vec::new();
        for look in 0..20 {
            let at = start + Duration::from_secs(2 * look);
            // 100 a second, and from the 20th second on nothing.
            let tokens = 200 * look.min(10);
            told.push(rate.next(counted(&[("a", tokens), ("b", 5)]), at));
        }
        assert_eq!(told[..5], [None; 5]);
        assert_eq!(told[5..11], [Some(100); 6]);
        assert_eq!(told[13], Some(40));
        assert_eq!(told[15..], [Some(0); 5]);
        assert!(rate.seen.len() < 8, "memory does not grow with time");
    }

    #[test]
    fn a_worker_that_comes_goes_or_starts_again_makes_no_jump() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        rate.next(counted(&[("a", 1_000_000), ("b", 7)]), at(0));
        // "a" started again, "b" went, "c" came with the work of hours.
        rate.next(counted(&[("a", 100), ("c", 9_000_000)]), at(5));
        let now = counted(&[("a", 300), ("c", 9_000_700), ("d", 9_000_000)]);
        assert_eq!(rate.next(now, at(10)), Some(100));
    }
}
