//! The one contract between an engine and the device that runs the model.

mod check;

use std::sync::Arc;

pub use check::{BadSize, Place, check_batch, check_sizes};

use weir_scheduler::{Batch, Limits, SequenceId, SlotId};

use crate::adapter::{Adapter, AdapterError};
use crate::config::ModelConfig;

/// How tokens of one sequence are chosen. Validated before it gets here.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy (ties go to the lowest token id).
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// Smallest probability relative to the best token's, in [0, 1]; 0 is off.
    pub min_p: f32,
    /// Same seed and same position: same random number, whatever the batch, slot or preemption.
    pub seed: u64,
    /// Counts output tokens only.
    pub presence_penalty: f32,
    /// Counts output tokens only.
    pub frequency_penalty: f32,
    /// Counts prompt and output tokens; 1 is off.
    pub repetition_penalty: f32,
    /// How many alternatives to report besides the sampled token; `None` reports nothing.
    pub logprobs: Option<u32>,
    /// The same for each token of the prompt but the first, as far as the prompt is computed before any output.
    pub prompt_logprobs: Option<u32>,
    /// Tokens that may not be sampled while fewer than `min_tokens` tokens are out (end tokens, stop ids).
    pub masked_until_min: Arc<[u32]>,
    /// See `masked_until_min`.
    pub min_tokens: u32,
}

impl SamplingParams {
    /// The likeliest token, with every filter and penalty off.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logprobs: None,
            prompt_logprobs: None,
            masked_until_min: [].into(),
            min_tokens: 0,
        }
    }

    /// Whether any penalty is on; off, tokens need not be counted.
    #[expect(clippy::float_cmp, reason = "exactly these values are off")]
    pub fn is_penalised(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// What a row of a batch sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The chosen token.
    pub token: u32,
    /// Its log-probability from the raw logits (before temperature and penalties), where asked for. Not a number where the logits of a
    /// row with an adapter were none: its weights are too large for what they met, the token means nothing, and the sequence must end.
    pub logprob: f32,
    /// The best alternatives, best first, where asked for.
    pub top: Vec<(u32, f32)>,
}

/// What a model expected of a token of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Whose prompt.
    pub sequence: SequenceId,
    /// The token's position in it, at least 1.
    pub position: u32,
    /// The token that is there, its log-probability and the best alternatives.
    pub token: Sampled,
}

/// What a backend can hold, fixed at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// KV blocks.
    pub blocks: u32,
    /// Positions per block.
    pub block_tokens: u32,
    /// Slots.
    pub max_running: u32,
    /// Tokens per step.
    pub max_batch_tokens: u32,
    /// Positions per sequence.
    pub context_tokens: u32,
    /// Bytes of KV memory.
    pub kv_bytes: u64,
    /// Guesses of a row: 0 where it takes none, `u32::MAX` where it takes any number.
    pub max_drafts: u32,
    /// Whether it knows [`SamplingParams::prompt_logprobs`].
    pub scores_prompts: bool,
}

impl BackendLimits {
    /// The part of them that a scheduler plans by.
    pub fn plan(&self) -> Limits {
        Limits {
            blocks: self.blocks,
            block_tokens: self.block_tokens,
            max_running: self.max_running,
            max_batch_tokens: self.max_batch_tokens,
            context_tokens: self.context_tokens,
        }
    }
}

/// Which tokens each sequence may sample next, for those whose output follows a grammar.
pub trait Masks: Sync {
    /// Bit `id % 32` of word `id / 32` says whether a token may come next, after the first `drafts` guesses of the sequence's row;
    /// tokens beyond the last word may not. `None` where every token may. Asked once for each place that is sampled at, after the
    /// forward pass, so that masks are made beside it; from any thread.
    fn mask(&self, sequence: SequenceId, drafts: u32) -> Option<Arc<[u32]>>;
}

/// No sequence follows a grammar.
#[derive(Clone, Copy, Debug)]
pub struct NoMasks;

impl Masks for NoMasks {
    fn mask(&self, _: SequenceId, _: u32) -> Option<Arc<[u32]>> {
        None
    }
}

/// A device that keeps what it samples, so that a step can be started before the one before it was read: a row of it then has
/// [`weir_scheduler::UNSEEN`] for a token.
pub trait Ahead {
    /// Starts a step. At most two are started and not collected.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn launch(&mut self, batch: &Batch, masks: &dyn Masks) -> Result<(), BackendError>;

    /// Waits for the oldest step that was started; its results go to `sampled` as those of [`Backend::step`] do.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), BackendError>;
}

/// An adapter that a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u32);

/// A device that applies adapters, row by row: a row without one is computed as if there were none.
pub trait Adapters {
    /// The network that adapters must be of.
    fn config(&self) -> &ModelConfig;

    /// Holds one more adapter, which was loaded for [`Adapters::config`].
    ///
    /// # Errors
    /// There are too many.
    fn insert(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, AdapterError>;

    /// Lets one go: no sequence that has it is in a batch any more.
    fn remove(&mut self, adapter: AdapterId);

    /// Gives one to a slot that was just opened, until it is closed.
    fn apply(&mut self, slot: SlotId, adapter: AdapterId);
}

/// What computes, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// `cpu` or `cuda`.
    pub kind: &'static str,
    /// Which of its kind: the instructions of a CPU's kernels, or a GPU's own name.
    pub name: String,
}

/// A device with one loaded model. All calls come from the engine thread.
pub trait Backend: Send {
    /// What it is.
    fn name(&self) -> DeviceName;

    /// What it can hold.
    fn limits(&self) -> BackendLimits;

    /// A sequence takes a slot. `prompt` and `output` are the tokens so far (output is not empty after a preemption): penalties
    /// count them and the random position continues after them.
    fn open(&mut self, slot: SlotId, params: &SamplingParams, prompt: &[u32], output: &[u32]);

    /// The slot's sequence is done or preempted.
    fn close(&mut self, slot: SlotId);

    /// Runs the batch and pushes, for each sampling row in order, one result and one more for each guess that came true
    /// ([`weir_scheduler::Row::samples`]), into `sampled` (cleared first). Each is what would be sampled without guesses. A row whose
    /// mask allows nothing samples any token; whoever made the mask refuses it.
    ///
    /// # Errors
    /// The device failed; the engine must not go on with it.
    fn step(
        &mut self,
        batch: &Batch,
        masks: &dyn Masks,
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), BackendError>;

    /// Moves what the last step said of prompts to the end of `scored`, in the order of positions within a sequence. What is computed
    /// again after a preemption is said again.
    fn take_scored(&mut self, scored: &mut Vec<Scored>) {
        let _ = scored;
    }

    /// The same device for whoever has adapters; `None` where it applies none.
    fn adapters(&mut self) -> Option<&mut dyn Adapters> {
        None
    }

    /// The same device for whoever plans ahead; `None` where a step's tokens are known before the next can start.
    fn ahead(&mut self) -> Option<&mut dyn Ahead> {
        None
    }
}

/// The device failed.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The batch breaks the contract; a fault of the scheduler.
    #[error("batch of step {step} breaks the backend's contract: {what}")]
    Batch {
        /// The step.
        step: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The device reported an error.
    #[error("device failed in step {step}: {what}")]
    Device {
        /// The step.
        step: u64,
        /// What the device said.
        what: String,
    },
}
