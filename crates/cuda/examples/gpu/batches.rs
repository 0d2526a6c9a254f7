//! Batches made by hand: sequences with blocks of their own.

use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

pub(super) const BLOCK_TOKENS: u32 = 16;

/// Part of a sequence: tokens `start .. start + count`.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub slot: u32,
    pub start: u32,
    pub count: u32,
    pub samples: bool,
}

/// A step of pieces, each sequence with `blocks` blocks. `token` says what is where.
pub(super) fn batch(pieces: &[Piece], blocks: u32, token: impl Fn(u32, u32) -> u32) -> Batch {
    let mut batch = Batch {
        step: 1,
        ..Batch::default()
    };
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    for piece in pieces {
        let used = (piece.start + piece.count).div_ceil(BLOCK_TOKENS);
        batch.rows.push(Row {
            sequence: SequenceId(piece.slot.into()),
            slot: SlotId(piece.slot),
            start: piece.start,
            token_offset: length(batch.tokens.len()),
            token_count: piece.count,
            block_offset: length(batch.blocks.len()),
            block_count: used,
            draft_count: 0,
            samples: piece.samples,
        });
        let tokens = piece.start..piece.start + piece.count;
        batch
            .tokens
            .extend(tokens.map(|position| token(piece.slot, position)));
        let table = (0..used).map(|at| BlockId(piece.slot * blocks + at));
        batch.blocks.extend(table);
    }
    batch
}
