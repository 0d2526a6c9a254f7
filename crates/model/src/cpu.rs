//! The reference backend: the forward pass on the CPU.
//!
//! A row's result does not depend on the batch around it. Every output of a matrix product is one sum over the columns in order,
//! attention goes over the cached positions in fixed groups, and nothing is shared between rows; so a sequence gives the same
//! logits, bit for bit, alone or among others, in one prefill or in chunks, from a cold or a warm prefix, at any number of
//! threads and on any level of instructions.

mod adapters;
mod buffers;
mod forward;
pub(crate) mod kernels;
mod logits;
mod options;
mod pool;
mod sample;
mod score;
#[cfg(test)]
mod tests;
mod turns;

pub use kernels::Level;
pub(crate) use options::kv_block_bytes;
pub use options::{CpuOptions, KvType, WeightFormat};
pub use turns::CpuThreads;

use std::sync::Mutex;

use weir_scheduler::{Batch, SlotId};

use crate::backend::{
    Adapters, Backend, BackendError, BackendLimits, DeviceName, Masks, Place, Sampled,
    SamplingParams, Scored, check_batch,
};
use crate::config::ModelConfig;
use crate::network::Network;
use crate::sampler::{NotANumber, Scratch, TokenCounts};
use crate::weights::{TensorFiles, WeightsError};
use adapters::HeldAdapters;
use buffers::{Buffers, LOGIT_ROWS_MAX};
use forward::Forward;
use kernels::{HEAD_DIM_MAX, Kernels, KvCache};
pub(crate) use kernels::{Packer, with_packer};
use options::{kv_shape, limits};
use pool::Pool;

/// The backend cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The weights are unusable.
    #[error("cannot load the weights")]
    Weights(#[source] WeightsError),
    /// An option is out of bounds.
    #[error("engine option {option} = {value} {why}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong and what would be right.
        why: String,
    },
    /// The network's shape is beyond the kernels.
    #[error(
        "head_dim {head_dim} is above {HEAD_DIM_MAX}, which is the widest the CPU kernels hold"
    )]
    HeadDim {
        /// Width of a head.
        head_dim: usize,
    },
    /// There is no memory for quantized weights.
    #[error("cannot get memory for quantized weights")]
    Memory(#[source] std::io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread of the CPU backend")]
    Thread(#[source] std::io::Error),
}

/// A network on the CPU.
pub struct CpuBackend {
    config: ModelConfig,
    network: Network,
    kernels: Kernels,
    threads: CpuThreads,
    cache: KvCache,
    buffers: Buffers,
    slots: Vec<Slot>,
    adapters: HeldAdapters,
    /// One for each thread.
    scratch: Vec<Mutex<Scratch>>,
    /// (logit rows) what the row of a group sampled
    chosen: Vec<Mutex<Result<Sampled, NotANumber>>>,
    /// Places of the step that are sampled at.
    sampling: Vec<Place>,
    /// What the last step said of prompts.
    scored: Vec<Scored>,
    limits: BackendLimits,
}

/// A sequence's sampling state.
#[derive(Default)]
struct Slot {
    params: Option<SamplingParams>,
    prompt_len: u32,
    counts: TokenCounts,
    /// The prompt, where its tokens are scored.
    scored: Vec<u32>,
}

impl CpuBackend {
    /// Maps the weights and allocates everything a step needs. `options.threads` has no say: the threads are there.
    ///
    /// # Errors
    /// Weights do not fit the configuration, or an option is out of bounds.
    pub fn new(
        files: TensorFiles,
        config: &ModelConfig,
        options: &CpuOptions,
        threads: CpuThreads,
    ) -> Result<Self, CpuError> {
        if config.head_dim > HEAD_DIM_MAX {
            return Err(CpuError::HeadDim {
                head_dim: config.head_dim,
            });
        }
        let limits = limits(config, options)?;
        let kernels = Kernels::at_most(options.level);
        let mut packer = Packer {
            kernels: &kernels,
            threads: &threads,
        };
        let network = Network::load(files, config, options.weights, &mut packer)?;
        let running = limits.max_running as usize;
        Ok(Self {
            kernels,
            cache: KvCache::new(kv_shape(config, options, limits.blocks as usize)),
            buffers: Buffers::new(config, &limits),
            slots: (0..running).map(|_| Slot::default()).collect(),
            adapters: HeldAdapters::new(&limits),
            scratch: (0..threads.count())
                .map(|_| Mutex::new(Scratch::new(config.vocab_size)))
                .collect(),
            chosen: (0..LOGIT_ROWS_MAX)
                .map(|_| Mutex::new(Err(NotANumber)))
                .collect(),
            sampling: Vec::with_capacity(limits.max_batch_tokens as usize),
            scored: Vec::new(),
            config: config.clone(),
            network,
            threads,
            limits,
        })
    }

    /// Instructions in use.
    pub fn level(&self) -> Level {
        self.kernels.level()
    }

    fn forward<'a>(&'a mut self, pool: &'a mut Pool) -> Forward<'a> {
        Forward {
            config: &self.config,
            network: &self.network,
            kernels: &self.kernels,
            pool,
            cache: &mut self.cache,
            buffers: &mut self.buffers,
            adapters: &mut self.adapters,
        }
    }

    /// Last tokens of one group of sampling rows.
    fn logit_group(&self, group: usize) -> ([u32; LOGIT_ROWS_MAX], usize) {
        let mut last = [0; LOGIT_ROWS_MAX];
        let rows = self
            .sampling
            .iter()
            .skip(group * LOGIT_ROWS_MAX)
            .take(LOGIT_ROWS_MAX);
        let count = rows
            .zip(&mut last)
            .map(|(place, last)| *last = place.token)
            .count();
        (last, count)
    }

    fn check(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let slots = &self.slots;
        let is_open = |slot: SlotId| {
            slots
                .get(slot.0 as usize)
                .is_some_and(|slot| slot.params.is_some())
        };
        let vocab = (self.config.vocab_size, false);
        check_batch(batch, &self.limits, vocab, is_open, &mut self.sampling)
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> DeviceName {
        DeviceName {
            kind: "cpu",
            name: self.kernels.level().name().to_owned(),
        }
    }

    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn open(&mut self, at: SlotId, params: &SamplingParams, prompt: &[u32], output: &[u32]) {
        let slot = &mut self.slots[at.0 as usize];
        slot.counts.clear();
        if params.is_penalised() {
            for &token in prompt {
                slot.counts.add_prompt(token);
            }
            for &token in output {
                slot.counts.add_output(token);
            }
        }
        slot.scored.clear();
        if params.prompt_logprobs.is_some() && output.is_empty() {
            slot.scored.extend_from_slice(prompt);
        }
        slot.prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        slot.params = Some(params.clone());
        self.adapters.close(at);
    }

    fn close(&mut self, slot: SlotId) {
        self.slots[slot.0 as usize].params = None;
        self.adapters.close(slot);
    }

    fn step(
        &mut self,
        batch: &Batch,
        masks: &dyn Masks,
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), BackendError> {
        sampled.clear();
        self.scored.clear();
        self.check(batch)?;
        let threads = self.threads.clone();
        let mut turn = threads.turn();
        self.forward(&mut turn).run(batch);
        self.score(&mut turn, batch)?;
        self.sample((&mut turn, batch), masks, sampled)
    }

    fn take_scored(&mut self, scored: &mut Vec<Scored>) {
        scored.append(&mut self.scored);
    }

    fn adapters(&mut self) -> Option<&mut dyn Adapters> {
        Some(self)
    }
}
