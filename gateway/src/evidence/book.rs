//! One model's counts.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use weir_rollout::evidence::{Counts, EntryKey, Ledger};

/// Runs of a tenant are judged together in blocks of this length.
const BLOCK: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Book {
    entries: BTreeMap<EntryKey, Counts>,
    /// Begun blocks, by entry and tenant: since when, runs, bad ones.
    blocks: BTreeMap<(EntryKey, String), (Instant, u64, u64)>,
    sequence: u64,
}

impl Book {
    /// Makes room for an entry; the oldest table goes first. An entry that was closed is not opened again: its counters would fall.
    pub(super) fn open(&mut self, key: &EntryKey) {
        if self.entries.contains_key(key) {
            return;
        }
        let is_older = |oldest: &EntryKey| key < oldest;
        let is_full = self.entries.len() >= Ledger::MAX_ENTRIES;
        if is_full && self.entries.keys().next().is_some_and(is_older) {
            return;
        }
        self.entries.insert(key.clone(), Counts::default());
        while self.entries.len() > Ledger::MAX_ENTRIES {
            self.entries.pop_first();
        }
    }

    pub(super) fn count(&mut self, key: &EntryKey, counts: impl FnOnce(&mut Counts)) {
        if let Some(entry) = self.entries.get_mut(key) {
            counts(entry);
        }
    }

    /// A settled run of a tenant.
    pub(super) fn block(&mut self, key: &EntryKey, tenant: &str, is_bad: bool, now: Instant) {
        let place = (key.clone(), tenant.to_owned());
        let (_, runs, bad) = self.blocks.entry(place).or_insert((now, 0, 0));
        *runs += 1;
        *bad += u64::from(is_bad);
    }

    /// Counts the blocks that are over, each by its share of bad runs in sixteenths.
    pub(super) fn close_blocks(&mut self, now: Instant) {
        let entries = &mut self.entries;
        self.blocks.retain(|(key, _), (since, runs, bad)| {
            let is_open = now.duration_since(*since) < BLOCK;
            if !is_open && let Some(counts) = entries.get_mut(key) {
                let level = usize::try_from(16 * *bad / (*runs).max(1)).unwrap_or(16);
                counts.error_blocks[level.min(16)] += 1;
            }
            is_open
        });
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&EntryKey, &Counts)> {
        self.entries.iter()
    }

    pub(super) fn snapshot(&mut self) -> (u64, Vec<(EntryKey, Counts)>) {
        self.sequence += 1;
        let entries = self.entries.iter();
        let entries = entries.map(|(key, counts)| (key.clone(), counts.clone()));
        (self.sequence, entries.collect())
    }
}
