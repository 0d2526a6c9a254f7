//! The KV blocks: who references them, what they hold, and which one is taken next.
//!
//! A block is *free* (on the free list), *cached* (unreferenced, but named by a digest and evictable) or *referenced*.
//! A block that has a digest, or more than one reference, is never written again.

use crate::BlockId;
use crate::digest::Digest;
use crate::list::{Links, List, NONE};
use crate::scope::{ScopeIndex, Scopes};
use crate::table::Table;

/// Which list an unreferenced block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// Cached and never reused since it was written.
    Probation,
    /// Cached and reused at least once.
    Protected,
    Referenced,
}

/// No scope: the block has no digest.
const NO_SCOPE: u32 = u32::MAX;

/// Share of the pool the protected segment may hold, in eighths; the rest lets new prefixes prove themselves.
const PROTECTED_EIGHTHS: u32 = 6;

/// All blocks, in struct-of-arrays form. Allocate, release and evict are O(1); nothing allocates memory after `new`.
pub(crate) struct BlockPool {
    block_tokens: usize,
    references: Vec<u32>,
    place: Vec<Place>,
    reused: Vec<bool>,
    scope: Vec<u32>,
    digest: Vec<Digest>,
    /// (blocks, `block_tokens`) what each registered block holds.
    tokens: Vec<u32>,
    /// Links of the free list and the two cache segments.
    links: Links,
    /// Links of each scope's own list of cached blocks.
    scope_links: Links,
    free: List,
    probation: List,
    protected: List,
    referenced: u32,
    index: Table,
    pub(crate) scopes: Scopes,
}

impl BlockPool {
    pub(crate) fn new(blocks: u32, block_tokens: u32, scope_soft_cap: u32) -> Self {
        let count = blocks as usize;
        let mut links = Links::with_len(count);
        let mut free = List::new();
        for block in 0..blocks {
            free.push_back(&mut links, block);
        }
        Self {
            block_tokens: block_tokens as usize,
            references: vec![0; count],
            place: vec![Place::Free; count],
            reused: vec![false; count],
            scope: vec![NO_SCOPE; count],
            digest: vec![[0; 32]; count],
            tokens: vec![0; count * block_tokens as usize],
            links,
            scope_links: Links::with_len(count),
            free,
            probation: List::new(),
            protected: List::new(),
            referenced: 0,
            index: Table::with_capacity(count),
            scopes: Scopes::new(scope_soft_cap),
        }
    }

    pub(crate) fn total(&self) -> u32 {
        u32::try_from(self.references.len()).expect("made from a u32")
    }

    /// Blocks on the free list.
    pub(crate) fn free(&self) -> u32 {
        self.free.len()
    }

    /// Blocks that are cached and evictable.
    pub(crate) fn cached(&self) -> u32 {
        self.probation.len() + self.protected.len()
    }

    pub(crate) fn referenced(&self) -> u32 {
        self.referenced
    }

    /// Blocks `allocate` can still hand out.
    pub(crate) fn available(&self) -> u32 {
        self.free() + self.cached()
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.references[block.0 as usize]
    }

    /// Whether the holder of the block may write to it.
    pub(crate) fn is_writable(&self, block: BlockId) -> bool {
        let at = block.0 as usize;
        self.references[at] == 1 && self.scope[at] == NO_SCOPE
    }

    /// The block that holds exactly these tokens after exactly this prefix, if the scope has one. Scope, full digest and tokens
    /// must all agree: a collision of any one of them is not a hit.
    pub(crate) fn lookup(
        &self,
        scope: ScopeIndex,
        digest: &Digest,
        tokens: &[u32],
    ) -> Option<BlockId> {
        self.index
            .find(key_of(digest), |block| {
                let at = block as usize;
                self.scope[at] == scope.0
                    && self.digest[at] == *digest
                    && self.held(block) == tokens
            })
            .map(BlockId)
    }

    /// One more reference to a block that `lookup` found.
    pub(crate) fn acquire(&mut self, block: BlockId) {
        let at = block.0 as usize;
        if self.references[at] == 0 {
            self.unlist(block.0);
            self.place[at] = Place::Referenced;
            self.referenced += 1;
        }
        self.reused[at] = true;
        self.references[at] += 1;
    }

    /// A block to write to: a free one, else the least recently used of a scope above its cap, else the least recently used
    /// that was never reused, else the least recently used.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        if self.free.is_empty() {
            let victim = match self.scopes.above_cap() {
                Some(scope) => self.scopes.get(scope).cached.head(),
                None if !self.probation.is_empty() => self.probation.head(),
                None => self.protected.head(),
            };
            if victim == NONE {
                return None;
            }
            self.evict(victim);
        }
        let block = self.free.pop_front(&mut self.links)?;
        let at = block as usize;
        assert!(
            self.references[at] == 0 && self.place[at] == Place::Free,
            "block {block} was free and referenced"
        );
        self.place[at] = Place::Referenced;
        self.references[at] = 1;
        self.referenced += 1;
        Some(BlockId(block))
    }

    /// One reference less. Release a table from its end, so that tails are evicted before the heads they depend on.
    pub(crate) fn release(&mut self, block: BlockId) {
        let at = block.0 as usize;
        assert!(
            self.references[at] > 0,
            "block {} was released too often",
            block.0
        );
        self.references[at] -= 1;
        if self.references[at] > 0 {
            return;
        }
        self.referenced -= 1;
        if self.scope[at] == NO_SCOPE {
            self.place[at] = Place::Free;
            self.free.push_back(&mut self.links, block.0);
            return;
        }
        let scope = ScopeIndex(self.scope[at]);
        if self.reused[at] {
            self.place[at] = Place::Protected;
            self.protected.push_back(&mut self.links, block.0);
            self.demote_overflow();
        } else {
            self.place[at] = Place::Probation;
            self.probation.push_back(&mut self.links, block.0);
        }
        let Self {
            scopes,
            scope_links,
            ..
        } = self;
        scopes.get_mut(scope).cached.push_back(scope_links, block.0);
        scopes.weigh(scope);
    }

    /// Names a full block whose numbers are all written, so that others may find it. False when the prefix already has a block
    /// (the caller keeps its own copy, which then is never cached).
    pub(crate) fn register(
        &mut self,
        scope: ScopeIndex,
        block: BlockId,
        digest: &Digest,
        tokens: &[u32],
    ) -> bool {
        let at = block.0 as usize;
        assert!(
            self.is_writable(block),
            "block {} is named while shared or named already",
            block.0
        );
        assert!(
            tokens.len() == self.block_tokens,
            "only full blocks are named"
        );
        let taken = self.index.find(key_of(digest), |other| {
            self.digest[other as usize] == *digest
        });
        if taken.is_some() {
            return false;
        }
        self.digest[at] = *digest;
        self.tokens[at * self.block_tokens..][..self.block_tokens].copy_from_slice(tokens);
        self.scope[at] = scope.0;
        self.reused[at] = false;
        self.scopes.get_mut(scope).registered += 1;
        self.index.insert(key_of(digest), block.0);
        true
    }

    /// A sequence of the scope ended, its blocks are released. What a private scope cached goes with its last sequence.
    pub(crate) fn leave(&mut self, scope: ScopeIndex) {
        if self.scopes.leave(scope) {
            if self.scopes.get(scope).private {
                self.forget(scope, |_| {});
            }
            self.scopes.collect(scope);
        }
    }

    /// Drops every cached block of a scope, and tells which.
    pub(crate) fn forget(&mut self, scope: ScopeIndex, mut dropped: impl FnMut(BlockId)) {
        loop {
            let block = self.scopes.get(scope).cached.head();
            if block == NONE {
                return;
            }
            self.evict(block);
            dropped(BlockId(block));
        }
    }

    /// Takes the name from a cached block and puts it on the free list.
    fn evict(&mut self, block: u32) {
        let at = block as usize;
        assert!(
            self.references[at] == 0 && self.scope[at] != NO_SCOPE,
            "block {block} is evicted while in use"
        );
        let scope = ScopeIndex(self.scope[at]);
        self.unlist(block);
        self.index.remove(key_of(&self.digest[at]), block);
        self.scope[at] = NO_SCOPE;
        self.scopes.get_mut(scope).registered -= 1;
        self.place[at] = Place::Free;
        self.free.push_back(&mut self.links, block);
        self.scopes.collect(scope);
    }

    /// Takes a cached block out of its segment and its scope's list.
    fn unlist(&mut self, block: u32) {
        let at = block as usize;
        match self.place[at] {
            Place::Probation => self.probation.remove(&mut self.links, block),
            Place::Protected => self.protected.remove(&mut self.links, block),
            Place::Free | Place::Referenced => unreachable!("block {block} is not cached"),
        }
        let scope = ScopeIndex(self.scope[at]);
        let Self {
            scopes,
            scope_links,
            ..
        } = self;
        scopes.get_mut(scope).cached.remove(scope_links, block);
        scopes.weigh(scope);
    }

    /// Keeps the protected segment within its share: its oldest block must prove itself again.
    fn demote_overflow(&mut self) {
        if self.protected.len() > (self.total() / 8 * PROTECTED_EIGHTHS).max(1)
            && let Some(oldest) = self.protected.pop_front(&mut self.links)
        {
            self.place[oldest as usize] = Place::Probation;
            self.reused[oldest as usize] = false;
            self.probation.push_back(&mut self.links, oldest);
        }
    }

    fn held(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * self.block_tokens..][..self.block_tokens]
    }

    /// Checks everything that must hold between calls. O(blocks); for tests.
    pub(crate) fn check(&self) {
        let mut counts = [0_u32; 4];
        let mut named = 0;
        for at in 0..self.references.len() {
            counts[self.place[at] as usize] += 1;
            named += u32::from(self.scope[at] != NO_SCOPE);
            assert_eq!(
                self.references[at] > 0,
                self.place[at] == Place::Referenced,
                "block {at}: references and place disagree"
            );
            assert!(
                self.place[at] != Place::Free || self.scope[at] == NO_SCOPE,
                "block {at} is free and named"
            );
        }
        let lists = [
            self.free.len(),
            self.probation.len(),
            self.protected.len(),
            self.referenced,
        ];
        assert_eq!(counts, lists, "blocks per place against list lengths");
        assert_eq!(
            self.free() + self.cached() + self.referenced,
            self.total(),
            "blocks are conserved"
        );
        assert_eq!(
            self.index.len(),
            named as usize,
            "every named block is indexed once"
        );
    }
}

/// The digest is uniform under a secret key, so any eight bytes of it do as a hash.
fn key_of(digest: &Digest) -> u64 {
    let (first, _) = digest
        .split_first_chunk::<8>()
        .expect("a digest has 32 bytes");
    u64::from_le_bytes(*first)
}

#[cfg(test)]
mod tests;
