//! What a step's result changes.

use super::{Outcome, Scheduler, Verdict};
use crate::Row;
use crate::sequence::State;

/// What the backend sampled, as far as it is not taken yet.
struct Results<I> {
    tokens: I,
    taken: usize,
}

impl<I: Iterator<Item = u32>> Results<I> {
    /// The next token and its place among all.
    fn next(&mut self) -> (usize, u32) {
        let token = self.tokens.next();
        self.taken += 1;
        let token = token.expect("the backend returned fewer tokens than rows that sample");
        (self.taken - 1, token)
    }
}

impl Scheduler {
    /// Takes the result of the planned step, row by row in their order: one token for each row that samples, and one more for each
    /// of its guesses that came true. `judge` sees each new token and says whether the sequence goes on; one that reached its
    /// `max_output` ends in any case. Rows of sequences that ended since the plan are dropped, and nobody is asked about their
    /// tokens; nor about those behind the token that ended a sequence.
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
        let mut results = Results {
            tokens: sampled.into_iter(),
            taken: 0,
        };
        for row_index in 0..rows {
            let (row, at) = (self.batch.rows[row_index], self.row_sequences[row_index]);
            let step = self.batch.step;
            let sequence = self.sequence_mut(at);
            let is_current = sequence.id == row.sequence
                && sequence.state == State::Running
                // More where the next step is planned already.
                && sequence.planned_step >= step;
            if is_current {
                sequence.computed += row.known_count();
                self.name_full_blocks(at);
            }
            if row.samples {
                self.take_row(&row, is_current.then_some(at), &mut results, &mut judge);
            }
        }
        assert!(
            results.tokens.next().is_none(),
            "the backend returned more tokens than rows that sample"
        );
        self.advance();
    }

    /// Takes the tokens of one row, for its sequence if that still runs.
    fn take_row(
        &mut self,
        row: &Row,
        mut alive: Option<u32>,
        results: &mut Results<impl Iterator<Item = u32>>,
        judge: &mut impl FnMut(&Outcome) -> Verdict,
    ) {
        let mut accepted = 0;
        if alive.is_some() {
            self.drafted += u64::from(row.draft_count);
        }
        for place in 0..=row.draft_count {
            let (sample_index, token) = results.next();
            let guess = self.batch.row_drafts(row).get(place as usize);
            let is_draft = guess == Some(&token);
            if let Some(at) = alive {
                accepted += u32::from(is_draft);
                self.accepted += u64::from(is_draft);
                if place > 0 {
                    self.sequence_mut(at).computed += 1;
                    self.name_full_blocks(at);
                }
                let ends = self.take_token(at, (sample_index, token, is_draft), judge);
                alive = alive.filter(|_| !ends);
            }
            if !is_draft {
                break;
            }
        }
        if let Some(at) = alive
            && row.draft_count > 0
        {
            self.sequence_mut(at).luck.learn(row.draft_count, accepted);
        }
    }

    /// Adds a token to a sequence; returns whether that ended it.
    fn take_token(
        &mut self,
        at: u32,
        (sample_index, token, is_draft): (usize, u32, bool),
        judge: &mut impl FnMut(&Outcome) -> Verdict,
    ) -> bool {
        let sequence = self.sequence_mut(at);
        sequence.tokens.push(token);
        let outcome = Outcome {
            id: sequence.id,
            sample_index,
            token,
            output_tokens: sequence.output_tokens(),
            is_draft,
            is_last: sequence.output_tokens() == sequence.max_output,
        };
        let verdict = judge(&outcome);
        let ends = outcome.is_last || verdict == Verdict::Stop;
        if ends {
            self.learn_output(at);
            self.end(at);
        }
        ends
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
