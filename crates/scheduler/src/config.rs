//! What a scheduler is told once, when it is made.

use crate::lookup::DRAFTS_MAX;

/// What the device can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV blocks. A backend that needs a null block (for padded rows) keeps one more for itself.
    pub blocks: u32,
    /// Positions per block.
    pub block_tokens: u32,
    /// Slots: sequences that run at the same time.
    pub max_running: u32,
    /// Tokens per step, decode and prefill together; at least `max_running`.
    pub max_batch_tokens: u32,
    /// Prompt and output tokens per sequence.
    pub context_tokens: u32,
}

/// How admission treats KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A sequence starts only when its longest possible output fits beside everything already promised: nothing that makes
    /// progress is ever preempted (a paused sequence still may be).
    GuaranteedNoEvict,
    /// A sequence starts when its prompt and the expected growth of the running ones fit; growth beyond that preempts.
    MaxUtilization,
}

/// How urgent a sequence is. The order is the order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Someone waits for every token.
    Interactive,
    /// The default.
    Standard,
    /// Nobody waits; served when there is room, and by aging when there never is.
    Batch,
}

impl Priority {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// From the wire's number: 0 interactive, 1 standard, anything else batch.
    pub fn from_wire(number: u32) -> Self {
        match number {
            0 => Self::Interactive,
            1 => Self::Standard,
            _ => Self::Batch,
        }
    }
}

/// Prompt-size classes: short, medium, long.
pub const CLASSES: usize = 3;

/// Everything a scheduler needs to know. [`Config::new`] has the defaults and the reasons for them.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the device can hold.
    pub limits: Limits,
    /// How admission treats KV memory.
    pub mode: Mode,
    /// Guesses per decode row and step, at most [`crate::DRAFTS_MAX`]; 0 is none.
    pub max_drafts: u32,
    /// Sequences that may wait; one more is refused.
    pub max_waiting: u32,
    /// Largest count of uncached prompt tokens of the short and of the medium class.
    pub class_bounds: [u32; CLASSES - 1],
    /// Shares of the prefill budget while several classes have work.
    pub class_weights: [u32; CLASSES],
    /// Long prompts that may be partly prefilled at the same time, counting those at least as urgent.
    pub max_long_prefills: u32,
    /// Steps after which a waiting flow counts one priority higher.
    pub aging_steps: u64,
    /// Steps during which others may pass a sequence that waits for memory; after them nobody may.
    pub patience_steps: u64,
    /// Steps without admission after a preemption.
    pub hysteresis_steps: u64,
    /// Steps a paused sequence keeps its memory while others want it.
    pub pause_grace_steps: u64,
    /// Cached blocks a scope may keep while memory is short; above it, it is evicted before others.
    pub scope_soft_cap: u32,
    /// Secret of this process: prefix digests are keyed by it.
    pub key: [u8; 32],
    /// See [`crate::cache_identity`].
    pub identity: [u8; 32],
}

impl Config {
    /// Defaults for a device: classes as in the pool's own defaults (512 and 4,096 tokens); weights that double per class, so a
    /// long prompt keeps at least a seventh; aging slow enough that priorities mean something and fast enough to be felt.
    pub fn new(limits: Limits, key: [u8; 32], identity: [u8; 32]) -> Self {
        Self {
            limits,
            mode: Mode::MaxUtilization,
            max_drafts: 0,
            max_waiting: 1024,
            class_bounds: [512, 4096],
            class_weights: [4, 2, 1],
            max_long_prefills: 2,
            aging_steps: 256,
            patience_steps: 64,
            hysteresis_steps: 16,
            pause_grace_steps: 32,
            scope_soft_cap: (limits.blocks / 2).max(1),
            key,
            identity,
        }
    }

    /// The class of a prompt with so many tokens to compute.
    pub fn class_of(&self, uncached_tokens: u32) -> usize {
        self.class_bounds
            .iter()
            .position(|bound| uncached_tokens <= *bound)
            .unwrap_or(CLASSES - 1)
    }

    /// # Errors
    /// Names the first number that makes no sense.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let positive = [
            ("blocks", limits.blocks),
            ("block_tokens", limits.block_tokens),
            ("max_running", limits.max_running),
            ("max_batch_tokens", limits.max_batch_tokens),
            ("context_tokens", limits.context_tokens),
            ("max_waiting", self.max_waiting),
            ("max_long_prefills", self.max_long_prefills),
            (
                "class_weights",
                self.class_weights.iter().copied().min().unwrap_or(0),
            ),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero { field });
        }
        if self.aging_steps == 0 {
            return Err(ConfigError::Zero {
                field: "aging_steps",
            });
        }
        if self.max_drafts as usize > DRAFTS_MAX {
            return Err(ConfigError::TooManyDrafts {
                drafts: self.max_drafts,
            });
        }
        if limits.max_batch_tokens < limits.max_running {
            return Err(ConfigError::BatchTooSmall {
                max_batch_tokens: limits.max_batch_tokens,
                max_running: limits.max_running,
            });
        }
        if self.class_bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(ConfigError::ClassesOutOfOrder);
        }
        Ok(())
    }
}

/// A configuration no scheduler can work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number that must be positive is zero.
    #[error("scheduler setting \"{field}\" is 0; it must be at least 1")]
    Zero {
        /// Which.
        field: &'static str,
    },
    /// Every running sequence decodes in every step, so a step must have room for all.
    #[error(
        "a step of {max_batch_tokens} tokens cannot decode {max_running} running sequences; raise max_batch_tokens or lower max_running"
    )]
    BatchTooSmall {
        /// Tokens per step.
        max_batch_tokens: u32,
        /// Slots.
        max_running: u32,
    },
    /// A row holds only so many guesses.
    #[error("{drafts} drafts per row are more than {DRAFTS_MAX}; lower max_drafts")]
    TooManyDrafts {
        /// Asked for.
        drafts: u32,
    },
    /// The bounds of the prompt-size classes must grow.
    #[error("prompt-size class bounds must grow from one class to the next")]
    ClassesOutOfOrder,
}
