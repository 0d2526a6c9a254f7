//! What a step's result changes.

use super::{Outcome, Scheduler, Verdict};
use crate::sequence::State;

impl Scheduler {
    /// Takes the result of the planned step: one token per sampling row, in row order. `judge` sees each new token and says
    /// whether the sequence goes on; one that reached its `max_output` ends in any case. Rows of sequences that ended since
    /// the plan are dropped, and nobody is asked about their tokens.
    ///
    /// O(rows + tokens of the step).
    pub fn complete(
        &mut self,
        sampled: impl IntoIterator<Item = u32>,
        mut judge: impl FnMut(&Outcome) -> Verdict,
    ) {
        // Without a step in flight there is no row, and so no token to take.
        let rows = if std::mem::take(&mut self.in_flight) {
            self.batch.rows.len()
        } else {
            0
        };
        let mut sampled = sampled.into_iter();
        let mut sample_index = 0;
        for row_index in 0..rows {
            let (row, at) = (self.batch.rows[row_index], self.row_sequences[row_index]);
            let token = row.samples.then(|| {
                let token = sampled.next();
                sample_index += 1;
                token.expect("the backend returned fewer tokens than rows that sample")
            });
            let step = self.step;
            let sequence = self.sequence_mut(at);
            let is_current = sequence.id == row.sequence
                && sequence.state == State::Running
                && sequence.planned_step == step;
            if !is_current {
                continue;
            }
            sequence.computed += row.token_count;
            self.name_full_blocks(at);
            let Some(token) = token else { continue };
            let sequence = self.sequence_mut(at);
            sequence.tokens.push(token);
            let outcome = Outcome {
                id: sequence.id,
                sample_index: sample_index - 1,
                token,
                output_tokens: sequence.output_tokens(),
                is_last: sequence.output_tokens() == sequence.max_output,
            };
            let verdict = judge(&outcome);
            if outcome.is_last || verdict == Verdict::Stop {
                self.learn_output(at);
                self.end(at);
            }
        }
        assert!(
            sampled.next().is_none(),
            "the backend returned more tokens than rows that sample"
        );
    }

    /// Names the blocks that became full, so that others of the scope find them. Only now: before this the numbers of the last
    /// position were not written.
    fn name_full_blocks(&mut self, at: u32) {
        let block_tokens = self.config.limits.block_tokens;
        let Self {
            sequences,
            pool,
            keyer,
            ..
        } = self;
        let sequence = &mut sequences[at as usize];
        let full = sequence.computed / block_tokens;
        while sequence.named < full {
            let index = sequence.named;
            let root = &pool.scopes.get(sequence.scope).root;
            let digest = sequence.digest(keyer, root, block_tokens, index);
            let tokens =
                &sequence.tokens[(index * block_tokens) as usize..][..block_tokens as usize];
            pool.register(
                sequence.scope,
                sequence.blocks[index as usize],
                &digest,
                tokens,
            );
            sequence.named += 1;
        }
    }
}
