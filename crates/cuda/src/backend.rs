//! The backend: the same contract as on the CPU, carried out by a device.

mod sample;

use std::collections::VecDeque;

use weir_model::backend::{
    Ahead, Backend, BackendError, BackendLimits, DeviceName, Masks, Place, Sampled, SamplingParams,
    check_batch,
};
use weir_model::config::ModelConfig;
use weir_model::network::{Layer, Network};
use weir_model::quant::Weights;
use weir_scheduler::{Batch, SlotId};

use crate::CudaError;
use crate::buffers::Buffers;
use crate::device::{Arguments, Device, DeviceError, Launch};
use crate::kernels::{Kernel, Variant};
use crate::memory::{Memory, fit};
use crate::metadata::{Metadata, StepShape, decode_rows};
use crate::options::{CudaOptions, block_bytes, limits};
use crate::pass::{Pass, Preparing};
use crate::sampling::{self, PARAMS_SIZE, RESULT_SIZE};
use crate::upload::{self, DeviceWeights};
pub(crate) use sample::SamplerMemory;
use sample::mask_words;

/// Steps that may be started and not read.
const FLIGHTS_MAX: usize = 2;
/// Rows whose logits are computed together: bounds their memory.
const LOGIT_ROWS_MAX: usize = 256;
/// Tokens that are banned until a sequence has its least number of tokens, over all rows of a step.
const BANNED_MAX: usize = 1 << 16;
/// Rows up to which each number of them has a recorded step of its own.
const EXACT_BUCKETS: usize = 8;

/// A network on a device.
pub struct CudaBackend<D> {
    device: D,
    config: ModelConfig,
    weights: DeviceWeights,
    buffers: Buffers,
    metadata: Metadata,
    sampler: SamplerMemory,
    slots: Vec<Slot>,
    /// Where the step samples: once in each sampling row.
    sampling: Vec<Place>,
    /// Steps that were started and not read, the oldest first, and the rows of ones that were.
    flights: VecDeque<Flight>,
    spare: Vec<Vec<u64>>,
    /// Steps that were ever started: even ones put their results into the first place, odd ones into the second.
    launched: usize,
    /// What the sampling kernel is told, as bytes.
    params: Vec<u8>,
    banned: Vec<u8>,
    masks: Vec<u8>,
    results: Vec<u8>,
    /// Rows of steps that are recorded, in order; a step of fewer rows fills up.
    buckets: Vec<usize>,
    /// Whether what was recorded is run.
    replays: bool,
    limits: BackendLimits,
}

/// A step that was started.
struct Flight {
    step: u64,
    /// Where its results are.
    place: usize,
    /// The sequences of its sampling rows.
    sequences: Vec<u64>,
}

/// A sequence's sampling state.
#[derive(Default)]
struct Slot {
    params: Option<SamplingParams>,
    prompt_len: u32,
    /// Tokens so far that the device has not counted yet, as bytes; the prompt's first.
    uncounted: Option<Vec<u8>>,
}

/// Sizes of recorded steps where so many sequences run: each up to eight, then twice the one before, and all of them.
fn buckets(running: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(2 * EXACT_BUCKETS), |size| Some(2 * size));
    let mut sizes: Vec<usize> = (1..=EXACT_BUCKETS)
        .chain(doubled)
        .take_while(|&size| size < running)
        .collect();
    sizes.push(running);
    sizes
}

fn is_quantized(network: &Network) -> bool {
    let mut all = network.layers.iter().flat_map(|layer| {
        let Layer {
            q, k, v, o, gate, ..
        } = layer;
        [q, k, v, o, gate, &layer.up, &layer.down]
    });
    all.any(|linear| matches!(linear.weight, Weights::Quantized(_)))
}

/// What the kernels have to be compiled for to run a network.
pub fn variant(network: &Network, config: &ModelConfig, options: &CudaOptions) -> Variant {
    Variant {
        act: upload::act_type(network),
        cache: options.cache,
        head_dim: config.head_dim,
    }
}

impl<D: Device> CudaBackend<D> {
    /// Copies a network to a device, whose kernels are compiled for its [`variant`], and records the steps that are replayed.
    ///
    /// # Errors
    /// An option is out of bounds, the kernels do not hold the model, or the device failed.
    pub fn new(
        mut device: D,
        network: &Network,
        config: &ModelConfig,
        options: &CudaOptions,
    ) -> Result<Self, CudaError> {
        // What no device could do is said before weights are copied.
        let least = block_bytes(config, options);
        limits(config, options, options.kv_bytes.unwrap_or(least))?;
        let act = upload::act_type(network);
        let weights =
            upload::upload(&mut device, network, config, act).map_err(CudaError::Device)?;
        let is_quantized = is_quantized(network);
        let limits = fit(&device, config, options, is_quantized)?;
        let memory = Memory::new(&mut device, config, options, (&limits, is_quantized));
        let Memory {
            buffers,
            metadata,
            sampler,
        } = memory.map_err(CudaError::Device)?;
        buffers
            .fill(&mut device, config, limits.context_tokens)
            .map_err(CudaError::Device)?;
        let running = limits.max_running as usize;
        let mut backend = Self {
            device,
            weights,
            buffers,
            metadata,
            sampler,
            slots: (0..running).map(|_| Slot::default()).collect(),
            sampling: Vec::with_capacity(running),
            flights: VecDeque::with_capacity(FLIGHTS_MAX),
            spare: (0..FLIGHTS_MAX)
                .map(|_| Vec::with_capacity(running))
                .collect(),
            launched: 0,
            params: Vec::with_capacity(running * PARAMS_SIZE),
            banned: Vec::with_capacity(4 * BANNED_MAX),
            masks: Vec::with_capacity(running * mask_words(config) * 4),
            results: vec![0; running * RESULT_SIZE],
            config: config.clone(),
            buckets: buckets(running),
            replays: true,
            limits,
        };
        backend.prepare().map_err(CudaError::Device)?;
        backend.record().map_err(CudaError::Device)?;
        Ok(backend)
    }

    /// Whether steps that were recorded are replayed, as they are by itself, or started anew: for comparisons.
    pub fn set_replays(&mut self, replays: bool) {
        self.replays = replays;
    }

    /// Has the device decide how it multiplies in steps of every size.
    fn prepare(&mut self) -> Result<(), DeviceError> {
        let BackendLimits {
            max_running,
            max_batch_tokens,
            ..
        } = self.limits;
        let logits = self.sampler.logits;
        for rows in 1..=max_running.max(max_batch_tokens) as usize {
            let shape = StepShape {
                tokens: rows,
                decodes: 0,
                tiles: 0,
                sampling: 0,
            };
            let mut device = Preparing(&mut self.device);
            let mut pass = Pass {
                device: &mut device,
                config: &self.config,
                weights: &self.weights,
                buffers: &self.buffers,
                metadata: &self.metadata,
                block_tokens: self.limits.block_tokens as usize,
            };
            pass.run(&shape)?;
            if rows <= LOGIT_ROWS_MAX.min(max_running as usize) {
                pass.logits(0, rows, logits)?;
            }
        }
        Ok(())
    }

    /// Runs a step of each recorded size that does nothing, and records it.
    fn record(&mut self) -> Result<(), DeviceError> {
        for rows in self.buckets.clone() {
            let shape = self.metadata.fill(&Batch::default(), &[], Some(rows));
            self.device
                .write(self.metadata.address, self.metadata.used(&shape))?;
            // What is loaded or chosen at a first run cannot be while recording.
            self.pass().run(&shape)?;
            self.device.begin_record(rows)?;
            let recorded = self.pass().run(&shape);
            let ended = self.device.end_record();
            // What broke a recording comes first: its end only says that it is broken.
            recorded?;
            ended?;
        }
        Ok(())
    }

    fn pass(&mut self) -> Pass<'_, D> {
        Pass {
            device: &mut self.device,
            config: &self.config,
            weights: &self.weights,
            buffers: &self.buffers,
            metadata: &self.metadata,
            block_tokens: self.limits.block_tokens as usize,
        }
    }

    /// The size of the recorded step that a batch fits.
    fn bucket(&self, batch: &Batch) -> Option<usize> {
        let rows = batch.rows.len();
        if decode_rows(batch) < rows || self.sampling.len() < rows {
            return None;
        }
        self.buckets.iter().copied().find(|&bucket| bucket >= rows)
    }

    fn check(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let slots = &self.slots;
        let is_open = |slot: SlotId| {
            slots
                .get(slot.0 as usize)
                .is_some_and(|slot| slot.params.is_some())
        };
        let vocab = (self.config.vocab_size, true);
        check_batch(batch, &self.limits, vocab, is_open, &mut self.sampling)
    }

    /// Starts the pass of a checked batch.
    fn start(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let bucket = self.bucket(batch);
        let shape = self.metadata.fill(batch, &self.sampling, bucket);
        self.count_tokens(batch)?;
        self.metadata.tables.update(&mut self.device, batch)?;
        let used = self.metadata.used(&shape);
        self.device.write(self.metadata.address, used)?;
        if !self.replay(bucket)? {
            self.pass().run(&shape)?;
        }
        Ok(())
    }

    fn replay(&mut self, bucket: Option<usize>) -> Result<bool, DeviceError> {
        match bucket {
            Some(bucket) if self.replays => self.device.replay(bucket),
            _ => Ok(false),
        }
    }

    /// Counts the tokens of sequences that were opened since the last step.
    fn count_tokens(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let vocab = self.config.vocab_size;
        for row in batch.rows.iter().filter(|row| row.samples) {
            let slot = &mut self.slots[row.slot.0 as usize];
            let Some(tokens) = slot.uncounted.take() else {
                continue;
            };
            self.device.write(self.sampler.tokens, &tokens)?;
            let (count, prompt) = (tokens.len() / 4, slot.prompt_len as usize);
            let counts = self.sampler.counts;
            let arguments = Arguments::new()
                .at(counts.after((row.slot.0 as usize * vocab * 4) as u64))
                .at(self.sampler.tokens)
                .int(prompt)
                .int(count - prompt)
                .int(vocab);
            self.device.launch(&Launch {
                kernel: Kernel::CountTokens,
                grid: [1, 1, 1],
                threads: sampling::THREADS,
                arguments,
            })?;
        }
        Ok(())
    }
}

impl<D: Device> Backend for CudaBackend<D> {
    fn name(&self) -> DeviceName {
        DeviceName {
            kind: "cuda",
            name: self.device.name(),
        }
    }

    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn open(&mut self, slot: SlotId, params: &SamplingParams, prompt: &[u32], output: &[u32]) {
        let slot = &mut self.slots[slot.0 as usize];
        slot.uncounted = params.is_penalised().then(|| {
            let tokens = prompt.iter().chain(output);
            tokens.flat_map(|token| token.to_le_bytes()).collect()
        });
        slot.prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        slot.params = Some(params.clone());
    }

    fn close(&mut self, slot: SlotId) {
        self.slots[slot.0 as usize] = Slot::default();
    }

    fn step(
        &mut self,
        batch: &Batch,
        masks: &dyn Masks,
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), BackendError> {
        self.launch(batch, masks)?;
        self.collect(sampled)
    }

    fn ahead(&mut self) -> Option<&mut dyn Ahead> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::buckets;

    #[test]
    fn the_last_recorded_step_has_all_sequences() {
        assert_eq!(buckets(1), [1]);
        assert_eq!(buckets(9), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(buckets(16).last(), Some(&16));
        assert_eq!(buckets(100)[8..], [16, 32, 64, 100]);
        assert_eq!(buckets(512)[8..], [16, 32, 64, 128, 256, 512]);
    }
}
