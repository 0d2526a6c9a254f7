//! What is in the log and not yet in the checkpoint, by key. A view sees the versions up to its sequence.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::RwLock;

use crate::kv::{Batch, KvError};

/// A key as a table knows it: a value, or that it was removed.
pub(super) type Known = (Vec<u8>, Option<Vec<u8>>);

/// What became of a key: its value, or `None`, removed.
pub(super) struct Fate(pub(super) Option<Vec<u8>>);

#[derive(Default)]
pub(super) struct Table {
    entries: RwLock<BTreeMap<Box<[u8]>, Versions>>,
}

struct Versions {
    newest: Version,
    /// Oldest first; only those that an open view may still want.
    older: Vec<Version>,
}

struct Version {
    sequence: u64,
    value: Option<Box<[u8]>>,
}

impl Versions {
    fn at(&self, sequence: u64) -> Option<Fate> {
        std::iter::once(&self.newest)
            .chain(self.older.iter().rev())
            .find(|version| version.sequence <= sequence)
            .map(|version| Fate(version.value.as_deref().map(<[u8]>::to_vec)))
    }
}

impl Table {
    /// Adds a commit. Without an open view nobody can want what it replaces.
    pub(super) fn put(&self, sequence: u64, batch: &Batch, viewed: bool) {
        use std::collections::btree_map::Entry;
        let mut entries = self.entries.write();
        for (key, value) in batch {
            let value = value.as_deref().map(Box::from);
            let version = Version { sequence, value };
            match entries.entry(key.as_slice().into()) {
                Entry::Vacant(entry) => {
                    entry.insert(Versions {
                        newest: version,
                        older: vec![],
                    });
                }
                Entry::Occupied(entry) => {
                    let versions = entry.into_mut();
                    let replaced = std::mem::replace(&mut versions.newest, version);
                    if viewed {
                        versions.older.push(replaced);
                    } else {
                        versions.older = vec![];
                    }
                }
            }
        }
    }

    /// `None`: not touched up to this sequence.
    pub(super) fn get(&self, key: &[u8], sequence: u64) -> Option<Fate> {
        self.entries.read().get(key)?.at(sequence)
    }

    /// The first keys of a range, at most `limit`.
    pub(super) fn first(
        &self,
        from: Bound<&[u8]>,
        to: &[u8],
        sequence: u64,
        limit: usize,
    ) -> Vec<Known> {
        let entries = self.entries.read();
        entries
            .range::<[u8], _>((from, Bound::Excluded(to)))
            .filter_map(|(key, versions)| Some((key.to_vec(), versions.at(sequence)?.0)))
            .take(limit)
            .collect()
    }

    /// The last key of `[from, to)`.
    pub(super) fn last(&self, from: &[u8], to: &[u8], sequence: u64) -> Option<Known> {
        let entries = self.entries.read();
        entries
            .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
            .rev()
            .find_map(|(key, versions)| Some((key.to_vec(), versions.at(sequence)?.0)))
    }

    /// The newest of every key, in order.
    pub(super) fn each(
        &self,
        mut visit: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let entries = self.entries.read();
        entries
            .iter()
            .try_for_each(|(key, versions)| visit(key, versions.newest.value.as_deref()))
    }
}
