//! Runs sequences on a backend without a scheduler: gives out blocks and slots and makes batches.

use std::path::PathBuf;

use weir_model::backend::{Backend as _, NoMasks, Sampled, SamplingParams};
use weir_model::cpu::Level;
use weir_model::{CpuBackend, CpuOptions, KvType, OpenFiles, WeightFormat, load_cpu};
use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

pub(crate) fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        kv_bytes: 1 << 20,
        kv_type: KvType::F32,
        block_tokens: 16,
        max_running: 8,
        max_batch_tokens: 256,
        context_tokens: 0,
        weights: WeightFormat::Stored,
        level: Level::Amx,
    }
}

pub(crate) fn load(name: &str, options: &CpuOptions) -> CpuBackend {
    load_cpu(&OpenFiles::from_dir(&golden(name)).unwrap(), options).unwrap()
}

/// A sequence with its blocks.
pub(crate) struct Sequence {
    pub slot: SlotId,
    pub tokens: Vec<u32>,
    pub done: u32,
    pub blocks: Vec<BlockId>,
}

impl Sequence {
    /// Blocks are strided over the pool, so that block tables matter.
    pub(crate) fn new(slot: u32, prompt: &[u32]) -> Self {
        let blocks = (0..8).map(|block| BlockId(block * 8 + slot)).collect();
        Self {
            slot: SlotId(slot),
            tokens: prompt.to_vec(),
            done: 0,
            blocks,
        }
    }
}

/// Adds a row with the next `count` tokens of a sequence; it samples if they are its last.
pub(crate) fn add_row(batch: &mut Batch, sequence: &mut Sequence, count: u32) {
    let end = sequence.done + count;
    let blocks = end.div_ceil(16);
    batch.rows.push(Row {
        sequence: SequenceId(sequence.slot.0.into()),
        slot: sequence.slot,
        start: sequence.done,
        token_offset: u32::try_from(batch.tokens.len()).unwrap(),
        token_count: count,
        block_offset: u32::try_from(batch.blocks.len()).unwrap(),
        block_count: blocks,
        draft_count: 0,
        samples: end as usize == sequence.tokens.len(),
    });
    batch
        .tokens
        .extend_from_slice(&sequence.tokens[sequence.done as usize..end as usize]);
    batch
        .blocks
        .extend_from_slice(&sequence.blocks[..blocks as usize]);
    sequence.done = end;
}

/// Runs a prompt in chunks of the given sizes (the last one repeats) and then generates.
pub(crate) fn generate(
    backend: &mut CpuBackend,
    slot: u32,
    prompt: &[u32],
    params: &SamplingParams,
    (chunks, count): (&[u32], usize),
) -> Vec<Sampled> {
    let mut sequence = Sequence::new(slot, prompt);
    backend.open(sequence.slot, params, prompt, &[]);
    let (mut all, mut sampled) = (Vec::new(), Vec::new());
    let mut chunks = chunks
        .iter()
        .copied()
        .chain(std::iter::repeat(*chunks.last().unwrap()));
    while all.len() < count {
        let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
        let mut batch = Batch {
            step: 1,
            ..Batch::default()
        };
        add_row(&mut batch, &mut sequence, left.min(chunks.next().unwrap()));
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        sequence
            .tokens
            .extend(sampled.iter().map(|sampled| sampled.token));
        all.append(&mut sampled);
    }
    backend.close(sequence.slot);
    all
}

pub(crate) fn tokens(sampled: &[Sampled]) -> Vec<u32> {
    sampled.iter().map(|sampled| sampled.token).collect()
}
