//! What goes into and comes out of a scheduler.

use crate::config::Priority;
use crate::{SequenceId, SlotId};

/// A sequence to generate.
#[derive(Clone, Copy, Debug)]
pub struct NewSequence<'a> {
    /// Chosen by the caller, never reused.
    pub id: SequenceId,
    /// The prompt.
    pub tokens: &'a [u32],
    /// Tokens to generate at most; the sequence ends by itself when they are made.
    pub max_output: u32,
    /// How urgent it is.
    pub priority: Priority,
    /// Who may reuse its prefixes: the scope of an authenticated tenant. `None` means nobody but its own group.
    pub scope: Option<[u8; 32]>,
    /// Digest of the content of the adapter that it is computed with: prefixes of different adapters are different ones.
    pub adapter: Option<[u8; 32]>,
    /// The request it belongs to: the choices of one request (`n > 1`) share the prompt even without a scope. Never reused.
    pub group: u64,
    /// Whether every token of its prompt is computed before its first output, whatever the cache has: something is said of each.
    pub uncached: bool,
}

/// Why a sequence was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to continue.
    #[error("the prompt is empty; it needs at least one token")]
    EmptyPrompt,
    /// There is nothing to generate.
    #[error("the output limit is 0; it must be at least 1")]
    NoOutput,
    /// Longer than the model's context.
    #[error(
        "prompt and output limit are {tokens} tokens, and the context holds {context_tokens}; shorten one of them"
    )]
    TooLong {
        /// Prompt and output limit.
        tokens: u64,
        /// What the context holds.
        context_tokens: u32,
    },
    /// It would not fit even alone.
    #[error(
        "prompt and output limit need {blocks} KV blocks, and the pool has {blocks_total}; shorten one of them"
    )]
    TooLarge {
        /// Blocks of the longest possible output.
        blocks: u64,
        /// Blocks of the pool.
        blocks_total: u32,
    },
    /// The id is in use.
    #[error("sequence {} is known already", id.0)]
    Duplicate {
        /// Which.
        id: SequenceId,
    },
    /// The queue is at its bound.
    #[error("the engine's queue is full at {bound} sequences; wait and try again")]
    QueueFull {
        /// The bound.
        bound: u32,
    },
}

/// Something the caller must act on before the planned step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Open the slot for the sequence's tokens so far (it may have output already, after a preemption).
    Started {
        /// Which.
        id: SequenceId,
        /// Where.
        slot: SlotId,
        /// Tokens whose KV was found in the cache.
        cached_tokens: u32,
        /// Whether it ran before and was preempted.
        resumed: bool,
    },
    /// Close the slot: the sequence gave way, and will be started again.
    Preempted {
        /// Which.
        id: SequenceId,
        /// Where it was.
        slot: SlotId,
    },
    /// Close the slot: the sequence ended.
    Closed {
        /// Which.
        id: SequenceId,
        /// Where it was.
        slot: SlotId,
    },
}

/// A token that was sampled in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which sequence.
    pub id: SequenceId,
    /// Place among the sampled tokens of the step.
    pub sample_index: usize,
    /// The token.
    pub token: u32,
    /// Output tokens of the sequence so far, this one included.
    pub output_tokens: u32,
    /// Whether it had been guessed: no step of its own was needed for the one after it.
    pub is_draft: bool,
    /// Whether this was the last one allowed: the sequence has ended, whatever the verdict.
    pub is_last: bool,
}

/// What the caller says to a sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// The sequence is complete: an end token or a stop string.
    Stop,
}

/// Occupancy at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps planned so far.
    pub steps: u64,
    /// Blocks of the pool.
    pub blocks_total: u32,
    /// Blocks that hold nothing.
    pub blocks_free: u32,
    /// Blocks of the prefix cache that nobody references.
    pub blocks_cached: u32,
    /// Blocks of running sequences.
    pub blocks_referenced: u32,
    /// Sequences with a slot, paused ones included.
    pub running: u32,
    /// Sequences that are paused, with or without a slot.
    pub paused: u32,
    /// Sequences without a slot, by priority; parked ones not included.
    pub waiting: [u32; Priority::COUNT],
    /// Prompt tokens that nobody has computed yet, of waiting and of running sequences.
    pub prefill_tokens_waiting: u64,
    /// Positions the running sequences hold; a shared prefix counts once per sequence.
    pub kv_tokens: u64,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Guesses computed so far.
    pub drafted_tokens: u64,
    /// Those of them that came true and were taken.
    pub accepted_tokens: u64,
}
