//! The second half of a step: from the last rows to tokens.

use weir_model::backend::{Ahead, BackendError, BackendLimits, Masks, Sampled};
use weir_model::config::ModelConfig;
use weir_scheduler::Batch;

use super::{BANNED_MAX, CudaBackend, FLIGHTS_MAX, Flight, LOGIT_ROWS_MAX};
use crate::device::{Address, Arguments, Device, DeviceError, Launch};
use crate::kernels::Kernel;
use crate::sampling::{self, PARAMS_SIZE, RESULT_SIZE, RowState};

/// Memory of the sampling kernel.
pub(crate) struct SamplerMemory {
    /// (logit rows, vocabulary) f32
    pub(super) logits: Address,
    pub(super) weights: Address,
    /// (slots, vocabulary) u32
    pub(super) counts: Address,
    /// (rows)
    pub(super) params: Address,
    /// (rows, words of a mask) u32
    pub(super) masks: Address,
    /// u32
    pub(super) banned: Address,
    /// Of a step and of the one started before it was read.
    pub(super) results: [Address; FLIGHTS_MAX],
    /// (context) u32 tokens to be counted
    pub(super) tokens: Address,
}

impl<D: Device> CudaBackend<D> {
    /// Makes masks and parameters while the device computes, and starts sampling.
    pub(super) fn sample(
        &mut self,
        batch: &Batch,
        masks: &dyn Masks,
        results: Address,
    ) -> Result<(), DeviceError> {
        self.params.clear();
        self.banned.clear();
        self.masks.clear();
        let words = mask_words(&self.config);
        let mut mask_rows = 0;
        for place in &self.sampling {
            let row = &batch.rows[place.row as usize];
            let slot = &self.slots[row.slot.0 as usize];
            let params = slot.params.as_ref().expect("checked to be open");
            let mask = masks.mask(row.sequence, place.drafts).map(|mask| {
                let bytes = mask.iter().take(words).flat_map(|word| word.to_le_bytes());
                self.masks.extend(bytes);
                // What a mask does not say may not come.
                self.masks.resize((mask_rows as usize + 1) * words * 4, 0);
                mask_rows += 1;
                mask_rows - 1
            });
            let position = row.start + row.token_count;
            let state = RowState {
                slot: row.slot.0,
                position: position.into(),
                output_len: position.saturating_sub(slot.prompt_len),
                mask,
                banned: u32::try_from(self.banned.len() / 4).unwrap_or(u32::MAX),
            };
            if state.output_len < params.min_tokens {
                let tokens = params.masked_until_min.iter();
                self.banned
                    .extend(tokens.flat_map(|token| token.to_le_bytes()));
            }
            self.params.extend(sampling::params(params, &state));
        }
        if self.banned.len() > 4 * BANNED_MAX {
            return Err(DeviceError::Operation {
                operation: "sampling".to_owned(),
                cause: format!("the rows ban more than {BANNED_MAX} tokens together"),
            });
        }
        let memory = [
            (self.sampler.params, &self.params),
            (self.sampler.banned, &self.banned),
            (self.sampler.masks, &self.masks),
        ];
        for (address, bytes) in memory {
            if !bytes.is_empty() {
                self.device.write(address, bytes)?;
            }
        }
        let rows = self.sampling.len();
        for first in (0..rows).step_by(LOGIT_ROWS_MAX) {
            let count = (rows - first).min(LOGIT_ROWS_MAX);
            self.sample_group(first, count, results)?;
        }
        Ok(())
    }

    /// Logits and tokens of some of the sampling rows.
    fn sample_group(
        &mut self,
        first: usize,
        rows: usize,
        results: Address,
    ) -> Result<(), DeviceError> {
        let logits = self.sampler.logits;
        self.pass().logits(first, rows, logits)?;
        let memory = &self.sampler;
        let arguments = Arguments::new()
            .at(logits)
            .at(memory.weights)
            .at(memory.params.after((first * PARAMS_SIZE) as u64))
            .at(memory.counts)
            .at(memory.masks)
            .at(memory.banned)
            .at(self.buffers.last_tokens)
            .at(results.after((first * RESULT_SIZE) as u64))
            .int(self.config.vocab_size)
            .int(mask_words(&self.config));
        self.device.launch(&Launch {
            kernel: Kernel::Sample,
            grid: [rows, 1, 1],
            threads: sampling::THREADS,
            arguments,
        })
    }

    /// The raw logits (vocabulary) after the last token of each sampling row, for tests and tools: runs the batch as `step` does but
    /// chooses nothing.
    ///
    /// # Errors
    /// As [`Backend::step`].
    pub fn step_logits(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, BackendError> {
        self.check(batch)?;
        let failed = |error: DeviceError| BackendError::Device {
            step: batch.step,
            what: error.to_string(),
        };
        self.start(batch).map_err(failed)?;
        let (vocab, logits) = (self.config.vocab_size, self.sampler.logits);
        let rows = self.sampling.len();
        let mut all = Vec::with_capacity(rows);
        for first in (0..rows).step_by(LOGIT_ROWS_MAX) {
            let count = (rows - first).min(LOGIT_ROWS_MAX);
            self.pass().logits(first, count, logits).map_err(failed)?;
            let mut bytes = vec![0; count * vocab * 4];
            self.device.read(logits, &mut bytes).map_err(failed)?;
            let (words, _) = bytes.as_chunks::<4>();
            let numbers: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
            all.extend(numbers.chunks_exact(vocab).map(<[f32]>::to_vec));
        }
        Ok(all)
    }
}

impl<D: Device> Ahead for CudaBackend<D> {
    fn launch(&mut self, batch: &Batch, masks: &dyn Masks) -> Result<(), BackendError> {
        let failed = |what: String| BackendError::Device {
            step: batch.step,
            what,
        };
        let Some(mut sequences) = self.spare.pop() else {
            return Err(failed("more steps were started than may be".to_owned()));
        };
        self.check(batch)?;
        let place = self.launched % FLIGHTS_MAX;
        let bytes = self.sampling.len() * RESULT_SIZE;
        let results = self.sampler.results[place];
        let started = self
            .start(batch)
            .and_then(|()| self.sample(batch, masks, results))
            .and_then(|()| self.device.begin_read(place, results, bytes));
        started.map_err(|error| failed(error.to_string()))?;
        self.launched += 1;
        sequences.clear();
        let rows = self.sampling.iter();
        sequences.extend(rows.map(|place| batch.rows[place.row as usize].sequence.0));
        self.flights.push_back(Flight {
            step: batch.step,
            place,
            sequences,
        });
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), BackendError> {
        sampled.clear();
        let Some(Flight {
            step,
            place,
            sequences,
        }) = self.flights.pop_front()
        else {
            let what = "no step was started".to_owned();
            return Err(BackendError::Device { step: 0, what });
        };
        let failed = |what: String| BackendError::Device { step, what };
        let bytes = &mut self.results[..sequences.len() * RESULT_SIZE];
        self.device
            .end_read(place, bytes)
            .map_err(|error| failed(error.to_string()))?;
        for (sequence, bytes) in sequences.iter().zip(bytes.chunks_exact(RESULT_SIZE)) {
            let broken = || {
                failed(format!(
                    "logits of sequence {sequence} are not numbers; the weights are broken"
                ))
            };
            sampled.push(sampling::result(bytes).ok_or_else(broken)?);
        }
        self.spare.push(sequences);
        Ok(())
    }
}

impl SamplerMemory {
    pub(crate) fn new(
        device: &mut impl Device,
        config: &ModelConfig,
        limits: &BackendLimits,
    ) -> Result<Self, DeviceError> {
        let (rows, vocab) = (limits.max_running as usize, config.vocab_size);
        let logits = rows.min(LOGIT_ROWS_MAX) * vocab * 4;
        let mut room = |bytes: usize| device.allocate("sampling", bytes as u64);
        Ok(Self {
            logits: room(logits)?,
            weights: room(logits)?,
            counts: room(rows * vocab * 4)?,
            params: room(rows * PARAMS_SIZE)?,
            masks: room(rows * mask_words(config) * 4)?,
            banned: room(4 * BANNED_MAX)?,
            results: [room(rows * RESULT_SIZE)?, room(rows * RESULT_SIZE)?],
            tokens: room(limits.context_tokens as usize * 4)?,
        })
    }
}

/// Words of a mask over the vocabulary.
pub(super) fn mask_words(config: &ModelConfig) -> usize {
    config.vocab_size.div_ceil(32)
}
