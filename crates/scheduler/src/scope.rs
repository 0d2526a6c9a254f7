//! Who may see which cached prefixes: one entry per trust scope that has live sequences or registered blocks.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::list::List;

/// A scope's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeIndex(pub(crate) u32);

pub(crate) struct Scope {
    pub(crate) root: Digest,
    /// The authenticated scope; it has one root for each adapter, and one without.
    trust: Option<[u8; 32]>,
    /// Dies with its last sequence: nothing of it may outlive the request.
    pub(crate) private: bool,
    /// Live sequences.
    sequences: u32,
    /// Blocks that carry a digest of this scope, referenced or not.
    pub(crate) registered: u32,
    /// Those of them that nobody references, least recently used first.
    pub(crate) cached: List,
    /// Place in [`Scopes::over`], while above the soft cap.
    over_at: Option<u32>,
}

pub(crate) struct Scopes {
    entries: Vec<Scope>,
    unused: Vec<u32>,
    by_root: BTreeMap<Digest, u32>,
    /// Scopes with more cached blocks than the soft cap: the first to give some up.
    over: Vec<u32>,
    soft_cap: u32,
}

impl Scopes {
    pub(crate) fn new(soft_cap: u32) -> Self {
        Self {
            entries: Vec::new(),
            unused: Vec::new(),
            by_root: BTreeMap::new(),
            over: Vec::new(),
            soft_cap,
        }
    }

    pub(crate) fn get(&self, scope: ScopeIndex) -> &Scope {
        &self.entries[scope.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, scope: ScopeIndex) -> &mut Scope {
        &mut self.entries[scope.0 as usize]
    }

    pub(crate) fn find(&self, root: &Digest) -> Option<ScopeIndex> {
        self.by_root.get(root).copied().map(ScopeIndex)
    }

    /// What is known of an authenticated scope, whatever the adapters.
    pub(crate) fn of(&self, trust: &[u8; 32]) -> Vec<ScopeIndex> {
        let known = self.by_root.values().copied().map(ScopeIndex);
        known
            .filter(|scope| self.get(*scope).trust.as_ref() == Some(trust))
            .collect()
    }

    /// How many scopes are known.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_root.len()
    }

    /// A sequence of the scope begins to live. Without an authenticated scope it is private.
    pub(crate) fn enter(&mut self, root: Digest, trust: Option<[u8; 32]>) -> ScopeIndex {
        if let Some(found) = self.find(&root) {
            self.get_mut(found).sequences += 1;
            return found;
        }
        let fresh = Scope {
            root,
            trust,
            private: trust.is_none(),
            sequences: 1,
            registered: 0,
            cached: List::new(),
            over_at: None,
        };
        let index = if let Some(index) = self.unused.pop() {
            self.entries[index as usize] = fresh;
            index
        } else {
            self.entries.push(fresh);
            // At most every known scope is above its cap; growing here keeps eviction free of allocation.
            self.over.reserve(self.entries.len() - self.over.len());
            self.unused.reserve(self.entries.len() - self.unused.len());
            u32::try_from(self.entries.len() - 1)
                .expect("scopes are bounded by sequences and blocks")
        };
        self.by_root.insert(root, index);
        ScopeIndex(index)
    }

    /// A sequence of the scope ended. True when it was the last one.
    pub(crate) fn leave(&mut self, scope: ScopeIndex) -> bool {
        let entry = self.get_mut(scope);
        assert!(
            entry.sequences > 0,
            "a sequence left a scope it was never in"
        );
        entry.sequences -= 1;
        entry.sequences == 0
    }

    /// Forgets a scope without sequences and blocks.
    pub(crate) fn collect(&mut self, scope: ScopeIndex) {
        let entry = self.get(scope);
        if entry.sequences == 0 && entry.registered == 0 {
            assert!(
                entry.over_at.is_none(),
                "an empty scope is above its cache cap"
            );
            let root = entry.root;
            // Eviction and the end of the last sequence may both find it empty; only the first counts.
            if self.by_root.remove(&root).is_some() {
                self.unused.push(scope.0);
            }
        }
    }

    /// A scope above its soft cap.
    pub(crate) fn above_cap(&self) -> Option<ScopeIndex> {
        self.over.last().copied().map(ScopeIndex)
    }

    /// Brings the list of scopes above the cap up to date after the scope's cached blocks changed.
    pub(crate) fn weigh(&mut self, scope: ScopeIndex) {
        let cap = self.soft_cap;
        let entry = self.get(scope);
        match (entry.cached.len() > cap, entry.over_at) {
            (true, None) => {
                let at = u32::try_from(self.over.len()).expect("fewer than 2^32 scopes");
                self.get_mut(scope).over_at = Some(at);
                self.over.push(scope.0);
            }
            (false, Some(at)) => {
                self.over.swap_remove(at as usize);
                if let Some(moved) = self.over.get(at as usize).copied() {
                    self.entries[moved as usize].over_at = Some(at);
                }
                self.get_mut(scope).over_at = None;
            }
            _ => {}
        }
    }
}
