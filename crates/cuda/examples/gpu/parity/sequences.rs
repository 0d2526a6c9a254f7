//! Sequences that start one after the other, their prompts in pieces, so that steps are of every kind; then some with one token each.

use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

use super::OPTIONS;

/// Which sequences there are, and how they come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// How many.
    pub(crate) count: u32,
    /// How many start in each step.
    pub(crate) starts: usize,
    /// Length of the first one's prompt.
    pub(crate) longest: usize,
    /// Most tokens of a prompt in one step.
    pub(crate) piece: u32,
    /// Steps with all of them; after these one leaves in each, so that the last steps are of eight sequences, seven, and so on.
    pub(crate) steps: u64,
    /// Tokens that the model has.
    pub(crate) vocab: u32,
}

/// A sequence with its blocks, strided over the pool so that tables matter.
struct Sequence {
    slot: u32,
    prompt: usize,
    tokens: Vec<u32>,
    done: u32,
}

/// All sequences, and the step they are in.
pub(crate) struct Sequences {
    plan: Plan,
    all: Vec<Sequence>,
    step: u64,
    /// Places in `all` of the rows that sample, in the order of the batch.
    sampling: Vec<usize>,
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl Sequences {
    pub(crate) fn new(plan: Plan) -> Self {
        let sequence = |slot: u32| {
            let prompt = match slot {
                0 => plan.longest,
                slot => 1 + slot as usize * 7 % 41,
            };
            let token = |at: u32| (slot * 31 + at * 17 + at * at % 13) % plan.vocab;
            Sequence {
                slot,
                prompt,
                tokens: (0..length(prompt)).map(token).collect(),
                done: 0,
            }
        };
        Self {
            plan,
            all: (0..plan.count).map(sequence).collect(),
            step: 0,
            sampling: Vec::new(),
        }
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..self.plan.count).map(SlotId)
    }

    /// Prompt and output so far of a slot.
    pub(crate) fn tokens(&self, slot: SlotId) -> (&[u32], &[u32]) {
        let sequence = &self.all[slot.0 as usize];
        sequence.tokens.split_at(sequence.prompt)
    }

    /// The next step; rows of one token come first.
    pub(crate) fn next(&mut self) -> Option<Batch> {
        self.step += 1;
        // The first one, whose context is the longest, stays to the end.
        let left = usize::try_from(self.step.saturating_sub(self.plan.steps)).unwrap_or(usize::MAX);
        let stay = self.all.len().saturating_sub(left);
        if stay == 0 {
            return None;
        }
        let mut batch = Batch {
            step: self.step,
            ..Batch::default()
        };
        self.sampling.clear();
        let started = self
            .plan
            .starts
            .saturating_mul(usize::try_from(self.step).unwrap_or(usize::MAX));
        let mut rows = Vec::new();
        for decodes in [true, false] {
            for (at, sequence) in self.all.iter_mut().enumerate().take(started.min(stay)) {
                let left = length(sequence.tokens.len()) - sequence.done;
                if (left == 1) != decodes || rows.contains(&at) {
                    continue;
                }
                rows.push(at);
                if add_row(&mut batch, sequence, left.min(self.plan.piece)) {
                    self.sampling.push(at);
                }
            }
        }
        Some(batch)
    }

    /// The slots that the last step samples for, in its order.
    pub(crate) fn sampled_slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.sampling.iter().map(|&at| SlotId(self.all[at].slot))
    }

    /// What the last step's rows that sample go on with.
    pub(crate) fn go_on(&mut self, tokens: impl IntoIterator<Item = u32>) {
        for (&at, token) in self.sampling.iter().zip(tokens) {
            self.all[at].tokens.push(token);
        }
    }
}

/// Whether it samples.
fn add_row(batch: &mut Batch, sequence: &mut Sequence, count: u32) -> bool {
    let end = sequence.done + count;
    let blocks = end.div_ceil(OPTIONS.block_tokens);
    let samples = end == length(sequence.tokens.len());
    batch.rows.push(Row {
        sequence: SequenceId(sequence.slot.into()),
        slot: SlotId(sequence.slot),
        start: sequence.done,
        token_offset: length(batch.tokens.len()),
        token_count: count,
        block_offset: length(batch.blocks.len()),
        block_count: blocks,
        draft_count: 0,
        samples,
    });
    let tokens = &sequence.tokens[sequence.done as usize..end as usize];
    batch.tokens.extend_from_slice(tokens);
    let of_pool = |block| BlockId(block * OPTIONS.max_running + sequence.slot);
    batch.blocks.extend((0..blocks).map(of_pool));
    sequence.done = end;
    samples
}
