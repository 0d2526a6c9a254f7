//! What the model expected of the tokens of prompts, for those who ask.

use std::sync::PoisonError;

use weir_scheduler::{Batch, SequenceId};

use super::CpuBackend;
use super::buffers::LOGIT_ROWS_MAX;
use super::kernels::for_rows;
use super::pool::Pool;
use super::sample::NO_TOKEN;
use crate::backend::{BackendError, Scored};
use crate::sampler::{self, NotANumber};

/// A token of a prompt whose logits are in the step.
#[derive(Clone, Copy)]
struct Due {
    sequence: SequenceId,
    position: u32,
    /// The token before it, an index into the batch's tokens.
    before: u32,
    token: u32,
    alternatives: u32,
    has_adapter: bool,
}

impl CpuBackend {
    /// Scores what the step has of prompts, group by group: logits of a whole prompt would take gigabytes.
    pub(super) fn score(&mut self, pool: &mut Pool, batch: &Batch) -> Result<(), BackendError> {
        let all = self.due(batch);
        let group = self.buffers.logits.len() / self.config.vocab_size;
        for due in all.chunks(group.min(LOGIT_ROWS_MAX)) {
            self.score_group(pool, batch.step, due)?;
        }
        Ok(())
    }

    fn due(&self, batch: &Batch) -> Vec<Due> {
        let mut all = Vec::new();
        for row in &batch.rows {
            let Some(slot) = self.slots.get(row.slot.0 as usize) else {
                continue;
            };
            let Some(params) = slot.params.as_ref().filter(|_| !slot.scored.is_empty()) else {
                continue;
            };
            let next = slot.scored.iter().skip(row.start as usize + 1);
            all.extend((0..row.known_count()).zip(next).map(|(at, &token)| Due {
                sequence: row.sequence,
                position: row.start + at + 1,
                before: row.token_offset + at,
                token,
                alternatives: params.prompt_logprobs.unwrap_or(0),
                has_adapter: self.adapters.has(row.slot),
            }));
        }
        all
    }

    fn score_group(&mut self, pool: &mut Pool, step: u64, due: &[Due]) -> Result<(), BackendError> {
        let mut before = [0; LOGIT_ROWS_MAX];
        for (at, due) in before.iter_mut().zip(due) {
            *at = due.before;
        }
        self.forward(pool).logits(&before[..due.len()]);
        let (kernels, chosen, vocab) = (&self.kernels, &self.chosen, self.config.vocab_size);
        for_rows(
            pool,
            &mut self.buffers.logits[..due.len() * vocab],
            vocab,
            &|at, logits| {
                let Due {
                    token,
                    alternatives,
                    ..
                } = due[at];
                let result = sampler::score(kernels, logits, token, alternatives);
                *chosen[at].lock().unwrap_or_else(PoisonError::into_inner) = result;
            },
        );
        for (due, chosen) in due.iter().zip(&mut self.chosen) {
            let chosen = chosen.get_mut().unwrap_or_else(PoisonError::into_inner);
            let token = std::mem::replace(chosen, Err(NotANumber));
            let token = match token {
                Ok(token) => token,
                // As where a token is sampled: the row ends there.
                Err(NotANumber) if due.has_adapter => NO_TOKEN,
                Err(NotANumber) => return Err(sampler::broken_weights(step, due.sequence)),
            };
            self.scored.push(Scored {
                sequence: due.sequence,
                position: due.position,
                token,
            });
        }
        Ok(())
    }
}
