//! What the scheduler knows of one sequence. Entries are reused, so their vectors keep their memory.

use crate::config::Priority;
use crate::digest::{Digest, Keyer};
use crate::lookup::Luck;
use crate::scope::ScopeIndex;
use crate::{BlockId, SequenceId, SlotId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The entry is free.
    Unused,
    /// In the queue of its flow.
    Waiting,
    /// Paused while it was not running: in no queue.
    Parked,
    /// Has a slot and blocks.
    Running,
}

/// Another sequence is just computing the prefix this one needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferral {
    pub(crate) leader: u32,
    pub(crate) leader_id: SequenceId,
    /// The wait is over when the leader has computed so many tokens.
    pub(crate) until: u32,
}

pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) state: State,
    /// Prompt, then output.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_tokens: u32,
    pub(crate) max_output: u32,
    pub(crate) priority: Priority,
    pub(crate) class: usize,
    pub(crate) scope: ScopeIndex,
    /// Digests of the leading full blocks, as far as they were needed.
    pub(crate) digests: Vec<Digest>,
    /// Leading blocks that are named or found to be duplicates.
    pub(crate) named: u32,
    pub(crate) blocks: Vec<BlockId>,
    /// Positions whose KV is written.
    pub(crate) computed: u32,
    pub(crate) slot: SlotId,
    pub(crate) paused_since: Option<u64>,
    /// Order of submission.
    pub(crate) arrival: u64,
    /// Step of submission.
    pub(crate) since: u64,
    /// Priority it runs with: its own, made more urgent by aging; 0 is the most urgent.
    pub(crate) level: usize,
    /// How often a more urgent sequence took its place.
    pub(crate) displaced: u32,
    /// Whether it ran before.
    pub(crate) resumed: bool,
    /// Whether its prompt is computed whatever the cache has.
    pub(crate) uncached: bool,
    pub(crate) planned_step: u64,
    pub(crate) planned_tokens: u32,
    pub(crate) deferral: Option<Deferral>,
    pub(crate) luck: Luck,
    /// Tokens to compute, as counted when it was queued.
    pub(crate) queued_tokens: u32,
}

impl Sequence {
    pub(crate) fn unused() -> Self {
        Self {
            id: SequenceId(0),
            state: State::Unused,
            tokens: Vec::new(),
            prompt_tokens: 0,
            max_output: 0,
            priority: Priority::Batch,
            class: 0,
            scope: ScopeIndex(0),
            digests: Vec::new(),
            named: 0,
            blocks: Vec::new(),
            computed: 0,
            slot: SlotId(0),
            paused_since: None,
            arrival: 0,
            since: 0,
            level: 0,
            displaced: 0,
            resumed: false,
            uncached: false,
            planned_step: 0,
            planned_tokens: 0,
            deferral: None,
            luck: Luck::new(),
            queued_tokens: 0,
        }
    }

    /// Prompt and output tokens so far.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("bounded by the context")
    }

    pub(crate) fn output_tokens(&self) -> u32 {
        self.len() - self.prompt_tokens
    }

    /// Whether it may start from what the cache has.
    pub(crate) fn may_hit(&self) -> bool {
        !self.uncached || self.output_tokens() > 0
    }

    /// Tokens whose KV is not written yet; the last one is always among them.
    pub(crate) fn remaining(&self) -> u32 {
        self.len() - self.computed
    }

    /// Tokens still to compute after this step's plan.
    pub(crate) fn unplanned(&self, step: u64) -> u32 {
        let planned = if self.planned_step == step {
            self.planned_tokens
        } else {
            0
        };
        self.remaining() - planned
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    /// Positions written by the longest possible output: the last token is sampled and never written.
    pub(crate) fn max_positions(&self) -> u32 {
        self.prompt_tokens + self.max_output - 1
    }

    /// The digest of block `index`, which must be full.
    pub(crate) fn digest(
        &mut self,
        keyer: &Keyer,
        root: &Digest,
        block_tokens: u32,
        index: u32,
    ) -> Digest {
        while self.digests.len() <= index as usize {
            let at = self.digests.len() * block_tokens as usize;
            let parent = *self.digests.last().unwrap_or(root);
            let tokens = &self.tokens[at..at + block_tokens as usize];
            self.digests.push(keyer.extend(&parent, tokens));
        }
        self.digests[index as usize]
    }
}
