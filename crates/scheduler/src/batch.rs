//! What one engine step does: the contract between the scheduler, which plans it, and a backend, which carries it out.

/// One sequence of tokens that is being generated: a choice of a request. Chosen by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A running sequence's place in the backend's per-sequence arrays: dense, below `max_running`, reused after the sequence ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A block of KV memory: `block_tokens` positions over all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// One sequence's part of a step: the tokens at positions `start .. start + token_count` are run through the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which sequence.
    pub sequence: SequenceId,
    /// Its slot in the backend.
    pub slot: SlotId,
    /// Position of the first token of this row in the sequence.
    pub start: u32,
    /// Where this row's tokens begin in [`Batch::tokens`].
    pub token_offset: u32,
    /// How many tokens this row has; at least 1.
    pub token_count: u32,
    /// Where this row's block table begins in [`Batch::blocks`].
    pub block_offset: u32,
    /// Entries of the block table: enough for `start + token_count` positions.
    pub block_count: u32,
    /// The last so many tokens of the row are guesses of what will be sampled; decode rows only.
    pub draft_count: u32,
    /// Whether tokens are sampled: after the last position that is not a guess, and after each guess that the sample before it was
    /// equal to. So a row gives one token, and one more for each guess that came true. False for all but the last chunk of a prefill.
    pub samples: bool,
}

/// Instead of a token that the host has not seen yet: the one that the row's slot samples in the step before.
pub const UNSEEN: u32 = u32::MAX;

impl Row {
    /// Tokens of the row that are not guesses.
    pub fn known_count(&self) -> u32 {
        self.token_count - self.draft_count
    }
}

/// A planned step, in struct-of-arrays form. Decode rows come first, then prefill rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Number of the step, from 1.
    pub step: u64,
    /// The rows, decode rows (one token each, and guesses) first.
    pub rows: Vec<Row>,
    /// How many of `rows` are decode rows.
    pub decode_rows: u32,
    /// (tokens) all rows' token ids, row after row.
    pub tokens: Vec<u32>,
    /// (blocks) all rows' block tables, row after row: entry `i` holds positions `i * block_tokens ..`.
    pub blocks: Vec<BlockId>,
}

impl Batch {
    /// The token ids of a row.
    pub fn row_tokens(&self, row: &Row) -> &[u32] {
        &self.tokens[row.token_offset as usize..][..row.token_count as usize]
    }

    /// What a row's tokens are guessed to be followed by.
    pub fn row_drafts(&self, row: &Row) -> &[u32] {
        &self.row_tokens(row)[row.known_count() as usize..]
    }

    /// Tokens of the decode rows, guesses included.
    pub fn decode_tokens(&self) -> u32 {
        let rest = self.rows.get(self.decode_rows as usize);
        rest.map_or_else(
            || u32::try_from(self.tokens.len()).expect("bounded by the step's tokens"),
            |row| row.token_offset,
        )
    }

    /// The block table of a row.
    pub fn row_blocks(&self, row: &Row) -> &[BlockId] {
        &self.blocks[row.block_offset as usize..][..row.block_count as usize]
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Forgets the step but keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.decode_rows = 0;
    }
}
