//! A device whose KV of a position is a hash of the whole prefix, read through the block table: a block that is stale, shared by
//! mistake, overwritten or of another scope changes every later token.

use std::collections::BTreeMap;

use weir_scheduler::{Batch, Event, SequenceId, SlotId, UNSEEN};

use crate::random::mix;

pub(crate) const VOCAB: u64 = 97;

pub(crate) struct Device {
    block_tokens: u32,
    kv: Vec<u64>,
    /// Who may read what a block holds.
    owner: Vec<u64>,
    slots: BTreeMap<SlotId, SequenceId>,
    /// Positions each sequence has computed or found in the cache.
    progress: BTreeMap<SequenceId, u32>,
    /// What each slot sampled last.
    last: BTreeMap<SlotId, u32>,
    pub(crate) computed_tokens: u64,
}

impl Device {
    pub(crate) fn new(blocks: u32, block_tokens: u32) -> Self {
        Self {
            block_tokens,
            kv: vec![0; (blocks * block_tokens) as usize],
            owner: vec![0; blocks as usize],
            slots: BTreeMap::new(),
            progress: BTreeMap::new(),
            last: BTreeMap::new(),
            computed_tokens: 0,
        }
    }

    pub(crate) fn on_event(&mut self, event: &Event) {
        match *event {
            Event::Started {
                id,
                slot,
                cached_tokens,
                ..
            } => {
                assert!(cached_tokens.is_multiple_of(self.block_tokens));
                assert_eq!(self.slots.insert(slot, id), None, "{slot:?} is open");
                self.progress.insert(id, cached_tokens);
            }
            Event::Preempted { id, slot } | Event::Closed { id, slot } => {
                assert_eq!(self.slots.remove(&slot), Some(id), "{slot:?} is not its");
                self.progress.remove(&id);
            }
        }
    }

    pub(crate) fn open_slots(&self) -> usize {
        self.slots.len()
    }

    /// Runs a batch; `owner_of` says whose a sequence is.
    pub(crate) fn step(&mut self, batch: &Batch, owner_of: impl Fn(SequenceId) -> u64) -> Vec<u32> {
        let mut sampled = Vec::new();
        for row in &batch.rows {
            let owner = owner_of(row.sequence);
            assert_eq!(
                self.slots.get(&row.slot),
                Some(&row.sequence),
                "a row in a slot that was not opened for it"
            );
            let progress = self.progress.get_mut(&row.sequence).unwrap();
            assert_eq!(*progress, row.start, "rows go on where the last ended");
            *progress += row.known_count();
            let blocks = batch.row_blocks(row);
            let (first, end) = (row.start / self.block_tokens, row.start + row.token_count);
            for block in &blocks[..first as usize] {
                assert_eq!(
                    self.owner[block.0 as usize], owner,
                    "{:?} reads a block of another scope",
                    row.sequence
                );
            }
            let place = |position: u32| {
                let block = blocks[(position / self.block_tokens) as usize];
                (block.0 * self.block_tokens + position % self.block_tokens) as usize
            };
            for (position, token) in (row.start..end).zip(batch.row_tokens(row)) {
                let before = if position == 0 {
                    0
                } else {
                    self.kv[place(position - 1)]
                };
                let token = match *token {
                    UNSEEN => self.last[&row.slot],
                    token => token,
                };
                self.kv[place(position)] = after(before, token);
                self.owner[blocks[(position / self.block_tokens) as usize].0 as usize] = owner;
            }
            self.computed_tokens += u64::from(row.token_count);
            if row.samples {
                let mut last = row.start + row.known_count() - 1;
                sampled.push(token_of(self.kv[place(last)]));
                for guess in batch.row_drafts(row) {
                    if sampled.last() != Some(guess) {
                        break;
                    }
                    last += 1;
                    *progress += 1;
                    sampled.push(token_of(self.kv[place(last)]));
                }
                self.last.insert(row.slot, *sampled.last().unwrap());
            }
        }
        sampled
    }
}

/// What the sequence makes when it runs alone, until the limit or an end token.
pub(crate) fn alone(prompt: &[u32], max_output: u32) -> Vec<u32> {
    let mut state = prompt.iter().fold(0, |state, token| after(state, *token));
    let mut output = Vec::new();
    while output.len() < max_output as usize {
        let token = token_of(state);
        output.push(token);
        if is_end(token) {
            break;
        }
        state = after(state, token);
    }
    output
}

pub(crate) fn is_end(token: u32) -> bool {
    token == 0
}

/// A hash of all tokens, with the last one in its lowest bits.
fn after(state: u64, token: u32) -> u64 {
    let hash = mix(state ^ (u64::from(token) + 1).wrapping_mul(0xA076_1D64_78BD_642F));
    hash & !0x7F | u64::from(token)
}

/// Mostly what follows from the last token alone, so that outputs repeat themselves and guesses come true.
fn token_of(state: u64) -> u32 {
    let hash = mix(state);
    let token = if hash % 16 < 14 {
        // Four tokens follow each other.
        let last = state & 0x7F;
        (last & !3 | (last + 1) & 3) % VOCAB
    } else {
        (hash >> 8) % VOCAB
    };
    u32::try_from(token).unwrap()
}
