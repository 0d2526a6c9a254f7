//! What to look at and when: each key once at a time, soonest first, later and later while it fails. Pure: times are arguments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest one.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Events that come together are one look.
const GATHER: Duration = Duration::from_millis(20);

/// Keys and when each is due.
#[derive(Debug)]
pub struct Queue<K: Ord + Clone> {
    entries: BTreeMap<K, Entry>,
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    /// Whether it is being looked at; what comes meanwhile waits for its end.
    is_running: bool,
    failures: u32,
}

/// How long to wait after so many failures in a row: longer each time. `jitter`, between 0 and 1000, spreads what failed together.
pub fn pause_after(failures: u32, jitter: u32) -> Duration {
    let doubled = FIRST_PAUSE * 2_u32.pow(failures.clamp(1, 16) - 1);
    let pause = doubled.min(LONGEST_PAUSE);
    pause / 2 + pause / 2 * jitter.min(1000) / 1000
}

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something happens.
    Quiet,
    /// Look again after this long.
    Again(Duration),
    /// A part of it failed, which has a pace of its own; the rest is done again after this long.
    Hampered(Duration),
    /// It failed.
    Failed,
    /// The key is gone.
    Gone,
}

impl<K: Ord + Clone> Queue<K> {
    /// Something happened to a key.
    pub fn touch(&mut self, key: K, now: Instant) {
        let entry = self.entries.entry(key).or_default();
        // What fails is not tried at the pace of what happens around it.
        let pause = match entry.failures {
            0 => GATHER,
            failures => FIRST_PAUSE * 2_u32.pow(failures.min(6) - 1),
        };
        let due = now + pause;
        entry.due = Some(entry.due.map_or(due, |old| old.min(due)));
    }

    /// The keys that are due, at most `room`, which are being looked at from now on.
    pub fn take(&mut self, now: Instant, room: usize) -> Vec<K> {
        let mut due: Vec<(Instant, K)> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_running)
            .filter_map(|(key, entry)| Some((entry.due.filter(|due| *due <= now)?, key.clone())))
            .collect();
        due.sort();
        due.truncate(room);
        for (_, key) in &due {
            if let Some(entry) = self.entries.get_mut(key) {
                (entry.is_running, entry.due) = (true, None);
            }
        }
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// A look ended. `jitter` is between 0 and 1000 and spreads what failed together.
    pub fn done(&mut self, key: &K, outcome: Outcome, jitter: u32, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.is_running = false;
        let pause = match outcome {
            Outcome::Gone if entry.due.is_none() => {
                self.entries.remove(key);
                return;
            }
            Outcome::Quiet | Outcome::Gone => {
                entry.failures = 0;
                return;
            }
            Outcome::Again(pause) | Outcome::Hampered(pause) => {
                entry.failures = 0;
                pause
            }
            Outcome::Failed => {
                entry.failures += 1;
                // What happens meanwhile must not make a loop out of a failure.
                entry.due = None;
                pause_after(entry.failures, jitter)
            }
        };
        let due = now + pause;
        entry.due = Some(entry.due.map_or(due, |old| old.min(due)));
    }

    /// When the next key is due.
    pub fn next_due(&self) -> Option<Instant> {
        let waiting = self.entries.values().filter(|entry| !entry.is_running);
        waiting.filter_map(|entry| entry.due).min()
    }

    /// Keys that wait or are being looked at.
    pub fn len(&self) -> usize {
        let busy = |entry: &&Entry| entry.is_running || entry.due.is_some();
        self.entries.values().filter(busy).count()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_looked_at_once_at_a_time_and_again_for_what_came_meanwhile() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        queue.touch("a", at(0));
        queue.touch("a", at(5));
        assert!(queue.take(at(10), 8).is_empty(), "more may come");
        assert_eq!(queue.take(at(20), 8), ["a"]);
        queue.touch("a", at(21));
        assert!(queue.take(at(100), 8).is_empty(), "it is being looked at");
        queue.done(&"a", Outcome::Quiet, 0, at(100));
        assert_eq!(queue.take(at(100), 8), ["a"]);
        queue.done(&"a", Outcome::Quiet, 0, at(120));
        assert!(queue.is_empty() && queue.next_due().is_none());
    }

    #[test]
    fn a_bound_lets_the_longest_waiting_go_first() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        for (index, key) in ["c", "a", "b"].into_iter().enumerate() {
            queue.touch(key, start + Duration::from_millis(index as u64));
        }
        let now = start + Duration::from_secs(1);
        assert_eq!(queue.take(now, 2), ["c", "a"]);
        assert_eq!(queue.take(now, 2), ["b"]);
    }

    #[test]
    fn failures_wait_longer_each_time_up_to_a_minute_and_apart_from_each_other() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            queue.touch("a", now);
            now += Duration::from_mins(2);
            assert_eq!(queue.take(now, 1), ["a"]);
            queue.touch("a", now);
            queue.done(&"a", Outcome::Failed, 1000, now);
            pauses.push(queue.next_due().unwrap() - now);
        }
        assert_eq!(pauses[..3], [200, 400, 800].map(Duration::from_millis));
        assert_eq!(pauses[11], LONGEST_PAUSE);
        queue.touch("b", now);
        now += Duration::from_secs(1);
        assert_eq!(queue.take(now, 1), ["b"]);
        queue.done(&"b", Outcome::Failed, 0, now);
        assert_eq!(queue.next_due().unwrap() - now, Duration::from_millis(100));
    }

    #[test]
    fn a_key_that_is_gone_is_forgotten_unless_it_came_back() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch("a", now);
        let later = now + Duration::from_secs(1);
        queue.take(later, 1);
        queue.done(&"a", Outcome::Gone, 0, later);
        assert!(queue.is_empty());
        queue.touch("a", now);
        queue.take(later, 1);
        queue.touch("a", later);
        queue.done(&"a", Outcome::Gone, 0, later);
        assert_eq!(queue.len(), 1);
    }
}
