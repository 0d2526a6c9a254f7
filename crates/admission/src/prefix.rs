//! Which worker probably has a prompt's beginning in its prefix cache: a bounded memory of where prompts went.

use std::collections::BTreeMap;

use crate::route::WorkerId;

/// A beginning of a prompt. The hash is keyed by the trust scope and the version: equal hashes may share, others never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Of all its tokens.
    pub hash: u64,
    /// How many they are.
    pub tokens: u32,
}

/// Workers that are remembered of one prefix: a popular one is on several.
const WORKERS: usize = 4;

/// The prefixes of late and who had them, the least recently used forgotten first.
#[derive(Debug)]
pub struct Prefixes {
    capacity: usize,
    held: BTreeMap<u64, Held>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

#[derive(Debug, Default)]
struct Held {
    used: u64,
    /// The latest last.
    workers: Vec<WorkerId>,
}

impl Prefixes {
    /// Remembers at most `capacity` prefixes.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            held: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Tokens of the longest of these prefixes (shortest first) that a worker probably has.
    pub fn held_by(&self, worker: WorkerId, prefixes: &[Prefix]) -> u32 {
        let has = |prefix: &&Prefix| {
            let held = self.held.get(&prefix.hash);
            held.is_some_and(|held| held.workers.contains(&worker))
        };
        prefixes.iter().rev().find(has).map_or(0, |p| p.tokens)
    }

    /// A prompt with these prefixes went to a worker.
    pub fn went_to(&mut self, worker: WorkerId, prefixes: &[Prefix]) {
        for prefix in prefixes {
            self.uses += 1;
            let held = self.held.entry(prefix.hash).or_default();
            self.by_use.remove(&held.used);
            held.used = self.uses;
            self.by_use.insert(self.uses, prefix.hash);
            held.workers.retain(|known| *known != worker);
            if held.workers.len() == WORKERS {
                held.workers.remove(0);
            }
            held.workers.push(worker);
        }
        while self.held.len() > self.capacity {
            if let Some((_, oldest)) = self.by_use.pop_first() {
                self.held.remove(&oldest);
            }
        }
    }

    /// A worker had fewer tokens of these prefixes than was thought: it has evicted the rest.
    pub fn had_only(&mut self, worker: WorkerId, prefixes: &[Prefix], tokens: u32) {
        for prefix in prefixes.iter().filter(|prefix| prefix.tokens > tokens) {
            if let Some(held) = self.held.get_mut(&prefix.hash) {
                held.workers.retain(|known| *known != worker);
            }
        }
    }

    /// A worker's memory is gone.
    pub fn forget(&mut self, worker: WorkerId) {
        for held in self.held.values_mut() {
            held.workers.retain(|known| *known != worker);
        }
    }

    /// How many prefixes are remembered.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(hashes: std::ops::Range<u64>) -> Vec<Prefix> {
        let prefix = |hash: u64| Prefix {
            hash,
            tokens: u32::try_from(hash % 100).unwrap() * 16,
        };
        hashes.map(prefix).collect()
    }

    const ONE: WorkerId = WorkerId(1);
    const TWO: WorkerId = WorkerId(2);

    #[test]
    fn the_longest_prefix_that_went_to_a_worker_counts() {
        let mut memory = Prefixes::new(100);
        memory.went_to(ONE, &prefixes(1..4));
        memory.went_to(TWO, &prefixes(1..2));
        assert_eq!(memory.held_by(ONE, &prefixes(1..6)), 48);
        assert_eq!(memory.held_by(TWO, &prefixes(1..6)), 16);
        assert_eq!(memory.held_by(ONE, &prefixes(101..104)), 0, "another scope");
        memory.had_only(ONE, &prefixes(1..4), 32);
        assert_eq!(memory.held_by(ONE, &prefixes(1..6)), 32);
        memory.forget(ONE);
        assert_eq!(memory.held_by(ONE, &prefixes(1..6)), 0);
        assert_eq!(memory.held_by(TWO, &prefixes(1..6)), 16);
    }

    #[test]
    fn the_memory_is_bounded_and_forgets_what_was_not_used() {
        let mut memory = Prefixes::new(10);
        memory.went_to(ONE, &prefixes(1..4));
        for start in (10..90).step_by(4) {
            memory.went_to(TWO, &prefixes(start..start + 4));
            memory.went_to(ONE, &prefixes(1..4));
            assert!(memory.len() <= 10 && memory.by_use.len() == memory.len());
        }
        assert_eq!(
            memory.held_by(ONE, &prefixes(1..4)),
            48,
            "used all the time"
        );
        assert_eq!(memory.held_by(TWO, &prefixes(10..14)), 0);
    }

    #[test]
    fn a_popular_prefix_is_remembered_of_a_few_workers() {
        let mut memory = Prefixes::new(10);
        for id in 0..9 {
            memory.went_to(WorkerId(id), &prefixes(1..2));
        }
        let known = (0..9).filter(|id| memory.held_by(WorkerId(*id), &prefixes(1..2)) > 0);
        assert_eq!(known.collect::<Vec<_>>(), [5, 6, 7, 8]);
    }
}
