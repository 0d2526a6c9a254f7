//! The step after one that is being computed, planned before its tokens are known.

use super::Scheduler;
use crate::{Batch, Row, UNSEEN};

impl Scheduler {
    /// Whether a planned step waits for [`Scheduler::complete`].
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Plans the step after the one in flight, where nothing changes but that each sequence goes on: nobody waits, every sequence that can
    /// run samples in the step in flight, and there are blocks for all. Each row has one token, [`UNSEEN`]. `None`: the next
    /// step is for [`Scheduler::plan`] once this one is complete, and nothing was changed.
    ///
    /// One step is planned ahead at most. [`Scheduler::complete`] takes the results of the older step first, after which
    /// [`Scheduler::batch`] is the newer one. A sequence that ends by the older step, other than at its `max_output`, has a row in the newer one for
    /// nothing: its token is dropped.
    ///
    /// O(rows + entries of their block tables).
    pub fn plan_ahead(&mut self) -> Option<&Batch> {
        if !self.in_flight || self.is_ahead || self.waiting > 0 {
            return None;
        }
        // Where a row that guesses ends is not known.
        if self.batch.rows.iter().any(|row| row.draft_count > 0) {
            return None;
        }
        let block_tokens = self.config.limits.block_tokens;
        let (mut rows, mut blocks) = (0, 0);
        for &at in &self.running {
            let sequence = self.sequence(at);
            if sequence.is_paused() {
                continue;
            }
            let samples = sequence.planned_step == self.step
                && sequence.planned_tokens == sequence.remaining();
            if !samples {
                return None;
            }
            if sequence.output_tokens() + 1 < sequence.max_output {
                rows += 1;
                let held = u32::try_from(sequence.blocks.len()).expect("bounded by the pool");
                blocks += u32::from(sequence.len() / block_tokens == held);
            }
        }
        if rows == 0 || self.pool.available() < blocks {
            return None;
        }
        self.step += 1;
        self.is_ahead = true;
        self.ahead.clear();
        self.ahead.step = self.step;
        self.ahead_sequences.clear();
        for place in 0..self.running.len() {
            self.emit_ahead(self.running[place]);
        }
        self.ahead.decode_rows = rows;
        Some(&self.ahead)
    }

    fn emit_ahead(&mut self, at: u32) {
        let (step, block_tokens) = (self.step, self.config.limits.block_tokens);
        let sequence = self.sequence(at);
        if sequence.is_paused() || sequence.output_tokens() + 1 >= sequence.max_output {
            return;
        }
        let start = sequence.len();
        if (start / block_tokens) as usize == sequence.blocks.len() {
            let block = self.pool.allocate().expect("counted before");
            self.promised -= 1;
            self.sequence_mut(at).blocks.push(block);
        }
        let sequence = &mut self.sequences[at as usize];
        sequence.planned_step = step;
        sequence.planned_tokens = 1;
        let count = (start + 1).div_ceil(block_tokens);
        let table = &sequence.blocks[..count as usize];
        let written = table[(start / block_tokens) as usize];
        assert!(
            self.pool.is_writable(written),
            "step {step} writes to block {}, which is shared or named",
            written.0
        );
        let index = |length: usize| u32::try_from(length).expect("bounded by the step's tokens");
        self.ahead.rows.push(Row {
            sequence: sequence.id,
            slot: sequence.slot,
            start,
            token_offset: index(self.ahead.tokens.len()),
            token_count: 1,
            block_offset: index(self.ahead.blocks.len()),
            draft_count: 0,
            block_count: count,
            samples: true,
        });
        self.ahead.tokens.push(UNSEEN);
        self.ahead.blocks.extend_from_slice(table);
        self.ahead_sequences.push(at);
    }

    /// The newer step is the one in flight now, where there is one.
    pub(super) fn advance(&mut self) {
        if std::mem::take(&mut self.is_ahead) {
            std::mem::swap(&mut self.batch, &mut self.ahead);
            std::mem::swap(&mut self.row_sequences, &mut self.ahead_sequences);
            self.in_flight = true;
        }
    }
}
