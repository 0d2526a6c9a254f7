//! Snapshots of many gateways, merged so that late, doubled and reordered ones change nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evidence::Counts;
use crate::routing::TableOrder;

/// Under what runs were counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EntryKey {
    /// The table whose coin was flipped.
    pub table: TableOrder,
    /// The attempt it belongs to, empty outside attempts.
    pub attempt: String,
    /// The version the coin chose.
    pub digest: String,
}

/// What one gateway counted since it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// The gateway.
    pub gateway: String,
    /// Its life: another one starts its counters at 0.
    pub boot: String,
    /// Rises with every snapshot of a life.
    pub sequence: u64,
    /// Cumulative counts, by what they were counted under.
    pub entries: Vec<(EntryKey, Counts)>,
}

/// Everything that gateways reported, the newest of each life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    lives: BTreeMap<(String, String), BTreeMap<EntryKey, (u64, Counts)>>,
}

impl Ledger {
    /// Lives of gateways that are remembered; with more, the caller retires old tables first.
    pub const MAX_LIVES: usize = 1_024;
    /// Entries of one life: eight tables of two versions.
    pub const MAX_ENTRIES: usize = 16;

    /// Merges a snapshot: of each life and entry the highest sequence counts. Nothing changes on an error.
    ///
    /// # Errors
    /// A counter that falls within one life, counts that cannot be, or a bound that is reached.
    pub fn merge(&mut self, snapshot: &Snapshot) -> Result<(), MergeError> {
        let life = (snapshot.gateway.clone(), snapshot.boot.clone());
        if self.lives.len() >= Self::MAX_LIVES && !self.lives.contains_key(&life) {
            return Err(MergeError::TooManyLives);
        }
        let mut merged = self.lives.get(&life).cloned().unwrap_or_default();
        for (key, counts) in &snapshot.entries {
            let wrong = |counter| (snapshot.gateway.clone(), counter);
            if let Some(counter) = counts.impossible() {
                let (gateway, counter) = wrong(counter);
                return Err(MergeError::Impossible { gateway, counter });
            }
            let known = merged.get(key);
            let fallen = known.and_then(|(sequence, known)| {
                if *sequence < snapshot.sequence {
                    counts.fallen_since(known)
                } else {
                    known.fallen_since(counts)
                }
            });
            if let Some(counter) = fallen {
                let (gateway, counter) = wrong(counter);
                return Err(MergeError::Fallen { gateway, counter });
            }
            if known.is_none_or(|(sequence, _)| *sequence < snapshot.sequence) {
                merged.insert(key.clone(), (snapshot.sequence, counts.clone()));
            }
        }
        while merged.len() > Self::MAX_ENTRIES {
            merged.pop_first();
        }
        self.lives.insert(life, merged);
        Ok(())
    }

    /// The sum over all lives of what was counted under a table and attempt for a version.
    pub fn total(&self, table: TableOrder, attempt: &str, digest: &str) -> Counts {
        let key = EntryKey {
            table,
            attempt: attempt.to_owned(),
            digest: digest.to_owned(),
        };
        let mut total = Counts::default();
        for (_, counts) in self.lives.values().filter_map(|entries| entries.get(&key)) {
            total.add(counts);
        }
        total
    }

    /// Forgets what was counted under tables before `oldest`, and lives of which nothing is left.
    pub fn retire_before(&mut self, oldest: TableOrder) {
        for entries in self.lives.values_mut() {
            entries.retain(|key, _| key.table >= oldest);
        }
        self.lives.retain(|_, entries| !entries.is_empty());
    }
}

/// Why a snapshot was not merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A counter fell, which is never clamped: the gateway's counts cannot be trusted.
    #[error(
        "counter {counter} of gateway \"{gateway}\" fell within one life: its snapshot is left out; restart the gateway"
    )]
    Fallen {
        /// Whose.
        gateway: String,
        /// Which.
        counter: &'static str,
    },
    /// Counts contradict each other.
    #[error(
        "counter {counter} of gateway \"{gateway}\" is larger than it can be: its snapshot is left out; restart the gateway"
    )]
    Impossible {
        /// Whose.
        gateway: String,
        /// Which.
        counter: &'static str,
    },
    /// Too many lives.
    #[error(
        "more than {} lives of gateways are remembered: retire the tables that are no longer judged",
        Ledger::MAX_LIVES
    )]
    TooManyLives,
}
