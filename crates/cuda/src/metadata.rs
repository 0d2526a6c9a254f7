//! What a step tells the kernels: where tokens, positions and rows lie, in one piece of memory that is copied at once.
//!
//! The places never change, so that recorded steps find what is new where it was when they were recorded.

use weir_model::backend::{BackendLimits, Place};
use weir_scheduler::{Batch, UNSEEN};

use crate::device::{Address, Device, DeviceError};
use crate::tables::Tables;

/// Query rows of a tile of a prompt's attention.
const TILE_ROWS: usize = 64;

/// Where each part begins, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// (tokens) i32, then likewise
    pub tokens: usize,
    pub positions: usize,
    pub places: usize,
    /// (rows)
    pub starts: usize,
    pub lengths: usize,
    /// (rows) tokens whose logits are wanted
    pub sampling: usize,
    /// (tiles, 4)
    pub tiles: usize,
    pub size: usize,
}

/// A step's metadata on the host, and where it goes.
pub(crate) struct Metadata {
    pub address: Address,
    /// Of the step that was filled in last.
    pub at: Layout,
    /// For steps that are recorded, where a row is a token: so they are short.
    recorded: Layout,
    /// For any.
    any: Layout,
    pub tables: Tables,
    bytes: Vec<u8>,
    group: usize,
    block_tokens: u32,
}

/// How large a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Tokens, those that fill up included.
    pub tokens: usize,
    /// Rows of one token, which come first; those that fill up included.
    pub decodes: usize,
    /// Tiles of the other rows' attention.
    pub tiles: usize,
    /// Tokens whose logits are wanted, those that fill up included.
    pub sampling: usize,
}

impl Layout {
    fn new(tokens: usize, rows: usize, tiles: usize) -> Self {
        let mut end = 0;
        let mut part = |bytes: usize| {
            let begin = end;
            end += bytes.next_multiple_of(16);
            begin
        };
        Self {
            tokens: part(4 * tokens),
            positions: part(4 * tokens),
            places: part(4 * tokens),
            starts: part(4 * rows),
            lengths: part(4 * rows),
            sampling: part(4 * rows),
            tiles: part(16 * tiles),
            size: end,
        }
    }
}

impl Metadata {
    /// For a model whose keys are shared by `group` heads.
    pub(crate) fn new(
        device: &mut impl Device,
        limits: &BackendLimits,
        group: usize,
    ) -> Result<Self, DeviceError> {
        let rows = limits.max_running as usize;
        let tokens = rows.max(limits.max_batch_tokens as usize);
        // Each row begins a tile of its own.
        let tiles = (tokens * group).div_ceil(TILE_ROWS) + rows;
        let any = Layout::new(tokens, rows, tiles);
        Ok(Self {
            address: device.allocate("what a step is told", any.size as u64)?,
            at: any,
            recorded: Layout::new(rows, rows, 0),
            any,
            tables: Tables::new(device, limits)?,
            bytes: vec![0; any.size],
            group,
            block_tokens: limits.block_tokens,
        })
    }

    /// Where a part is on the device.
    pub(crate) fn on_device(&self, part: usize) -> Address {
        self.address.after(part as u64)
    }

    fn put(&mut self, part: usize, index: usize, value: i32) {
        self.bytes[part + 4 * index..][..4].copy_from_slice(&value.to_le_bytes());
    }

    /// Fills in a checked batch. `sampling` has the places that it samples at. With `filled`, rows that do nothing are added up
    /// to so many; then all rows must have one token and sample.
    pub(crate) fn fill(
        &mut self,
        batch: &Batch,
        sampling: &[Place],
        filled: Option<usize>,
    ) -> StepShape {
        self.at = match filled {
            Some(_) => self.recorded,
            None => self.any,
        };
        let decodes = decode_rows(batch);
        let mut tiles = 0;
        for (index, row) in batch.rows.iter().enumerate() {
            let table = batch.row_blocks(row);
            for (i, (position, &token)) in (row.start..).zip(batch.row_tokens(row)).enumerate() {
                let at = row.token_offset as usize + i;
                let block = table[(position / self.block_tokens) as usize].0;
                let place = block * self.block_tokens + position % self.block_tokens;
                let token = match token {
                    UNSEEN => -1 - row.slot.0.cast_signed(),
                    token => token.cast_signed(),
                };
                self.put(self.at.tokens, at, token);
                self.put(self.at.positions, at, position.cast_signed());
                self.put(self.at.places, at, place.cast_signed());
            }
            let start = i32::try_from(self.tables.start(row.slot)).expect("below 2^31 entries");
            if index < decodes {
                self.put(self.at.starts, index, start);
                self.put(self.at.lengths, index, row.start.cast_signed() + 1);
                continue;
            }
            let (first, count) = (
                row.token_offset.cast_signed(),
                row.token_count.cast_signed(),
            );
            for first_row in (0i32..)
                .step_by(TILE_ROWS)
                .take((row.token_count as usize * self.group).div_ceil(TILE_ROWS))
            {
                for (i, value) in [first, count, first_row, start].into_iter().enumerate() {
                    self.put(self.at.tiles, 4 * tiles + i, value);
                }
                tiles += 1;
            }
        }
        for (row, place) in sampling.iter().enumerate() {
            self.put(self.at.sampling, row, place.token.cast_signed());
        }
        let rows = batch.rows.len();
        for row in rows..filled.unwrap_or(rows) {
            for (part, value) in [
                (self.at.tokens, 0),
                (self.at.positions, 0),
                (self.at.places, -1),
                (self.at.starts, 0),
                (self.at.lengths, 0),
                (self.at.sampling, -1),
            ] {
                self.put(part, row, value);
            }
        }
        match filled {
            Some(rows) => StepShape {
                tokens: rows,
                decodes: rows,
                tiles: 0,
                sampling: rows,
            },
            None => StepShape {
                tokens: batch.tokens.len(),
                decodes,
                tiles,
                sampling: sampling.len(),
            },
        }
    }

    /// What has to be copied for the batch that was filled in, of this shape: one run of bytes up to the last one that counts.
    pub(crate) fn used(&self, shape: &StepShape) -> &[u8] {
        let end = match shape.tiles {
            0 => self.at.sampling + 4 * shape.sampling,
            tiles => self.at.tiles + 16 * tiles,
        };
        &self.bytes[..end]
    }
}

/// Rows at the beginning that have one token.
pub(crate) fn decode_rows(batch: &Batch) -> usize {
    batch
        .rows
        .iter()
        .take_while(|row| row.token_count == 1)
        .count()
}
