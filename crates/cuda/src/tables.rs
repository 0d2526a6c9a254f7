//! Block tables on the device, one for each slot. A step sends what changed since the one before: of a sequence that goes on, one entry in as
//! many steps as a block has positions.

use weir_model::backend::BackendLimits;
use weir_scheduler::{Batch, SlotId};

use crate::device::{Address, Arguments, Device, DeviceError, Launch};
use crate::kernels::Kernel;

/// Entries that are sent at a time; more go in several pieces.
const CHANGES_MAX: usize = 4096;
/// Bytes of a change: where, and the block.
const CHANGE: usize = 8;
/// Entries that are compared at a time, so that the compiler uses vectors.
const CHUNK: usize = 16;
/// Threads of a block of the kernel.
const THREADS: usize = 256;

/// See the module.
pub(crate) struct Tables {
    /// (slots, blocks of a context) i32
    pub address: Address,
    blocks: usize,
    /// What the device has.
    known: Vec<u32>,
    /// Changes that are not sent, as bytes, and where they go.
    changes: Vec<u8>,
    sent: Address,
}

impl Tables {
    pub(crate) fn new(
        device: &mut impl Device,
        limits: &BackendLimits,
    ) -> Result<Self, DeviceError> {
        let blocks = limits.context_tokens.div_ceil(limits.block_tokens) as usize;
        let entries = limits.max_running as usize * blocks;
        let mut room = |bytes: usize| device.allocate("block tables", bytes as u64);
        Ok(Self {
            address: room(4 * entries)?,
            sent: room(CHANGE * CHANGES_MAX)?,
            blocks,
            // The device's memory is zeros too.
            known: vec![0; entries],
            changes: Vec::with_capacity(CHANGE * CHANGES_MAX),
        })
    }

    /// Where the table of a slot begins.
    pub(crate) fn start(&self, slot: SlotId) -> usize {
        slot.0 as usize * self.blocks
    }

    /// Makes the device's tables those of a checked batch.
    pub(crate) fn update(
        &mut self,
        device: &mut impl Device,
        batch: &Batch,
    ) -> Result<(), DeviceError> {
        for row in &batch.rows {
            let start = self.start(row.slot);
            let table = batch.row_blocks(row);
            let count = table.len().min(self.blocks);
            for (at, blocks) in (start..).step_by(CHUNK).zip(table[..count].chunks(CHUNK)) {
                let known = &self.known[at..][..blocks.len()];
                let pairs = known.iter().zip(blocks);
                let differs = pairs.fold(0, |bits, (known, block)| bits | (known ^ block.0));
                if differs == 0 {
                    continue;
                }
                for (at, block) in (at..).zip(blocks) {
                    if self.known[at] != block.0 {
                        self.change(device, at, block.0)?;
                    }
                }
            }
        }
        self.send(device)
    }

    fn change(
        &mut self,
        device: &mut impl Device,
        at: usize,
        block: u32,
    ) -> Result<(), DeviceError> {
        if self.changes.len() == CHANGE * CHANGES_MAX {
            self.send(device)?;
        }
        self.known[at] = block;
        let place = u32::try_from(at).expect("tables are below 2^32 entries");
        self.changes.extend(place.to_le_bytes());
        self.changes.extend(block.to_le_bytes());
        Ok(())
    }

    fn send(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        let count = self.changes.len() / CHANGE;
        if count == 0 {
            return Ok(());
        }
        device.write(self.sent, &self.changes)?;
        self.changes.clear();
        let arguments = Arguments::new().at(self.sent).at(self.address).int(count);
        device.launch(&Launch {
            kernel: Kernel::UpdateTables,
            grid: [count.div_ceil(THREADS), 1, 1],
            threads: THREADS,
            arguments,
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_scheduler::{BlockId, Row, SequenceId};

    use super::*;
    use crate::idle::Idle;

    const LIMITS: BackendLimits = BackendLimits {
        blocks: 1 << 16,
        block_tokens: 16,
        max_running: 4,
        max_batch_tokens: 64,
        context_tokens: 16 * 2000,
        kv_bytes: 0,
        max_drafts: 0,
        scores_prompts: false,
    };

    fn batch(tables: &[(u32, Vec<u32>)]) -> Batch {
        let mut batch = Batch::default();
        for (slot, blocks) in tables {
            batch.rows.push(Row {
                sequence: SequenceId(1),
                slot: SlotId(*slot),
                start: 0,
                token_offset: 0,
                token_count: 1,
                block_offset: u32::try_from(batch.blocks.len()).unwrap(),
                block_count: u32::try_from(blocks.len()).unwrap(),
                draft_count: 0,
                samples: true,
            });
            batch.blocks.extend(blocks.iter().copied().map(BlockId));
        }
        batch
    }

    #[test]
    fn a_step_sends_only_what_changed() {
        let mut device = Idle::default();
        let mut tables = Tables::new(&mut device, &LIMITS).unwrap();
        let long: Vec<u32> = (1..=40).collect();
        let steps: [(&str, Batch, usize); 6] = [
            (
                "all that is new",
                batch(&[(0, long.clone()), (3, vec![7, 8])]),
                42,
            ),
            ("nothing", batch(&[(3, vec![7, 8]), (0, long.clone())]), 0),
            (
                "a block more",
                batch(&[(0, [&long[..], &[99]].concat())]),
                1,
            ),
            (
                "another sequence in the slot",
                batch(&[(0, vec![1, 5, 3])]),
                1,
            ),
            (
                "what it had is there still",
                batch(&[(0, [&[1, 5], &long[2..]].concat())]),
                0,
            ),
            (
                "more than goes at a time",
                batch(&[(1, vec![5; 2000]), (2, vec![6; 2000]), (3, vec![9; 2000])]),
                6000,
            ),
        ];
        for (name, batch, changes) in steps {
            let before = device.written();
            tables.update(&mut device, &batch).unwrap();
            let sent = device.written() - before;
            assert_eq!(sent, (CHANGE * changes) as u64, "{name}");
        }
    }
}
