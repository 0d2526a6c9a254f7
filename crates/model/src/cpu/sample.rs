//! From logits to tokens, group by group, on all threads.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use weir_scheduler::Batch;

use super::CpuBackend;
use super::buffers::LOGIT_ROWS_MAX;
use super::kernels::for_rows;
use super::pool::Pool;
use crate::backend::{BackendError, Masks, Sampled, SamplingParams};
use crate::sampler::{self, NotANumber, RowPosition, Scratch};

/// Of a row with an adapter whose logits are no numbers.
pub(super) const NO_TOKEN: Sampled = Sampled {
    token: 0,
    logprob: f32::NAN,
    top: Vec::new(),
};

impl CpuBackend {
    /// Chooses the tokens of a step whose rows have run.
    pub(super) fn sample(
        &mut self,
        (pool, batch): (&mut Pool, &Batch),
        masks: &dyn Masks,
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), BackendError> {
        // Whether the guesses of the present row came true so far.
        let mut holds = true;
        for group in 0..self.sampling.len().div_ceil(LOGIT_ROWS_MAX) {
            self.choose_group((&mut *pool, batch), group, masks);
            self.keep_group(batch, group, (sampled, &mut holds))?;
        }
        Ok(())
    }

    /// Chooses a token at each place of a group, as if all guesses before it had come true.
    fn choose_group(
        &mut self,
        (pool, batch): (&mut Pool, &Batch),
        group: usize,
        masks: &dyn Masks,
    ) {
        let (last, count) = self.logit_group(group);
        self.forward(pool).logits(&last[..count]);
        let places = &self.sampling[group * LOGIT_ROWS_MAX..][..count];
        let (kernels, slots, scratch, chosen) =
            (&self.kernels, &self.slots, &self.scratch, &self.chosen);
        let vocab = self.config.vocab_size;
        for_rows(
            pool,
            &mut self.buffers.logits[..count * vocab],
            vocab,
            &|at, logits| {
                let place = places[at];
                let row = &batch.rows[place.row as usize];
                let slot = &slots[row.slot.0 as usize];
                let params = slot.params.as_ref().expect("checked to be open");
                let position = row.start + row.known_count() + place.drafts;
                let mask = masks.mask(row.sequence, place.drafts);
                // Guesses of earlier groups that came true are counted already.
                let uncounted = place
                    .drafts
                    .min(u32::try_from(at).expect("a group is small"));
                let drafts = &batch.row_drafts(row)[..place.drafts as usize];
                let at_row = RowPosition {
                    position: position.into(),
                    output_len: position.saturating_sub(slot.prompt_len),
                    mask: mask.as_deref(),
                    uncounted: &drafts[(place.drafts - uncounted) as usize..],
                };
                // There is one for each thread, so one is free.
                let mut free = scratch
                    .iter()
                    .cycle()
                    .find_map(take)
                    .expect("cycles until found");
                let result =
                    sampler::sample(kernels, logits, params, at_row, &slot.counts, &mut free);
                *chosen[at].lock().unwrap_or_else(PoisonError::into_inner) = result;
            },
        );
    }

    /// Keeps what was chosen where the guesses before it came true.
    fn keep_group(
        &mut self,
        batch: &Batch,
        group: usize,
        (sampled, holds): (&mut Vec<Sampled>, &mut bool),
    ) -> Result<(), BackendError> {
        let places = self.sampling.iter().skip(group * LOGIT_ROWS_MAX);
        for (place, chosen) in places.zip(&mut self.chosen) {
            let row = &batch.rows[place.row as usize];
            *holds |= place.drafts == 0;
            let chosen = chosen.get_mut().unwrap_or_else(PoisonError::into_inner);
            let chosen = std::mem::replace(chosen, Err(NotANumber));
            if !*holds {
                continue;
            }
            let chosen = match chosen {
                Ok(chosen) => chosen,
                // It is the adapter that is broken, and nobody else's row.
                Err(NotANumber) if self.adapters.has(row.slot) => NO_TOKEN,
                Err(NotANumber) => {
                    return Err(sampler::broken_weights(batch.step, row.sequence));
                }
            };
            let guess = batch.row_drafts(row).get(place.drafts as usize);
            *holds = guess == Some(&chosen.token) && !chosen.logprob.is_nan();
            let slot = &mut self.slots[row.slot.0 as usize];
            let params = slot.params.as_ref();
            if params.is_some_and(SamplingParams::is_penalised) {
                slot.counts.add_output(chosen.token);
            }
            sampled.push(chosen);
        }
        Ok(())
    }
}

/// The lock, unless another thread has it.
fn take(scratch: &Mutex<Scratch>) -> Option<MutexGuard<'_, Scratch>> {
    match scratch.try_lock() {
        Ok(guard) => Some(guard),
        // What a panic left behind is overwritten by the next use.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
