//! Logits as they are, for tests, tools and measurements of quality.

use weir_scheduler::Batch;

use super::CpuBackend;
use super::buffers::LOGIT_ROWS_MAX;
use crate::backend::BackendError;

impl CpuBackend {
    /// The raw logits (vocabulary) after the last token of each sampling row, for tests and tools: runs the batch as `step` does
    /// but chooses nothing.
    ///
    /// # Errors
    /// As [`Backend::step`].
    pub fn step_logits(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, BackendError> {
        self.check(batch)?;
        let threads = self.threads.clone();
        let mut turn = threads.turn();
        self.forward(&mut turn).run(batch);
        let mut rows = Vec::new();
        for group in 0..self.sampling.len().div_ceil(LOGIT_ROWS_MAX) {
            let (last, count) = self.logit_group(group);
            let vocab = self.config.vocab_size;
            rows.extend(
                self.forward(&mut turn)
                    .logits(&last[..count])
                    .chunks_exact(vocab)
                    .map(<[f32]>::to_vec),
            );
        }
        Ok(rows)
    }

    /// Calls `f` with the raw logits (vocabulary) after each token of the batch, in order: what the model expected next.
    ///
    /// # Errors
    /// As [`Backend::step`].
    pub fn all_logits(
        &mut self,
        batch: &Batch,
        mut f: impl FnMut(usize, &[f32]),
    ) -> Result<(), BackendError> {
        self.check(batch)?;
        let threads = self.threads.clone();
        let mut turn = threads.turn();
        self.forward(&mut turn).run(batch);
        let vocab = self.config.vocab_size;
        let tokens: Vec<u32> = (0u32..).take(batch.tokens.len()).collect();
        let group = LOGIT_ROWS_MAX.min(self.limits.max_running as usize);
        for tokens in tokens.chunks(group) {
            let mut forward = self.forward(&mut turn);
            let logits = forward.logits(tokens);
            for (token, logits) in tokens.iter().zip(logits.chunks_exact(vocab)) {
                f(*token as usize, logits);
            }
        }
        Ok(())
    }
}
