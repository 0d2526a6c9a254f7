//! The scheduler's state and the calls that change it between steps; `plan` and `complete` have files of their own.

mod admit;
mod ahead;
mod complete;
mod drafts;
mod plan;
mod state;
mod types;

pub use types::{Event, NewSequence, Outcome, Refused, Stats, Verdict};

use crate::config::{CLASSES, Config, ConfigError, Mode, Priority};
use crate::digest::Keyer;
use crate::list::{Links, List};
use crate::lookup::DRAFTS_MAX;
use crate::pool::BlockPool;
use crate::sequence::{Sequence, State};
use crate::table::Table;
use crate::{Batch, BlockId, SequenceId};

/// A queue per priority and prompt-size class.
const FLOWS: usize = Priority::COUNT * CLASSES;

/// Sequences of one priority and class, and what their class is owed.
struct Flow {
    queue: List,
    /// Prefill tokens it may still take, in 1/256.
    deficit: u64,
    /// Step in which it last got tokens.
    served: u64,
    /// Who waits for memory or a slot at its head, and since when.
    blocked: Option<(SequenceId, u64)>,
}

/// Decides what each engine step computes. One loop drives it:
///
/// ```text
/// scheduler.submit(..)?                      // any number of submit, abort, finish, pause, resume
/// scheduler.plan();
/// for event in scheduler.events() { .. }     // in order: open and close the backend's slots
/// backend.step(scheduler.batch(), &mut sampled)?;
/// scheduler.complete(sampled.iter().map(|s| s.token), |outcome| Verdict::Continue);
/// ```
///
/// `Event::Started` comes before the first row of a sequence, with the slot to open for [`Scheduler::tokens`];
/// `Event::Closed` and `Event::Preempted` come before the slot is used again.
///
/// With [`Config::max_drafts`] a decode row also computes guesses, and gives as many tokens more as came true ([`crate::Row::samples`]);
/// `complete` sees from the tokens themselves which they are.
///
/// Steps are planned one at a time: `plan` after `complete`. A device that keeps what it samples can be given the step after the one
/// it computes: [`Scheduler::plan_ahead`].
pub struct Scheduler {
    config: Config,
    step: u64,
    step_budget: u32,
    in_flight: bool,
    pool: BlockPool,
    keyer: Keyer,
    sequences: Vec<Sequence>,
    unused: Vec<u32>,
    by_id: Table,
    links: Links,
    flows: [Flow; FLOWS],
    /// By (level, arrival): the last one is the first to be preempted.
    running: Vec<u32>,
    waiting: u32,
    waiting_tokens: u64,
    parked: u32,
    paused: u32,
    free_slots: Vec<u32>,
    batch: Batch,
    /// (rows) entry of each row's sequence.
    row_sequences: Vec<u32>,
    /// The step after the one in flight, where `is_ahead`.
    ahead: Batch,
    ahead_sequences: Vec<u32>,
    is_ahead: bool,
    /// Running sequences that are in prefill, the ones started in this step included.
    partials: Vec<u32>,
    /// Sequences with prefill tokens in this step, in row order.
    chunks: Vec<u32>,
    /// Scratch: guesses of the row that is being planned.
    drafts: [u32; DRAFTS_MAX],
    /// What computing a guess costs, in 1/1024 of a token.
    draft_cost: u32,
    /// Scratch: cached blocks of the sequence that is being started.
    hits: Vec<BlockId>,
    pending: Vec<Event>,
    events: Vec<Event>,
    /// Blocks the running sequences may still come to need, at most.
    promised: u64,
    /// Output tokens the runnable sequences may still make, each counted up to a bound.
    growth_tokens: u64,
    /// Learned share of `max_output` that is really used, in 1/1024.
    output_ratio: u64,
    /// No admission before this step.
    closed_until: u64,
    /// Who may displace a less urgent sequence when the next step is planned.
    displacer: Option<(u32, SequenceId, usize)>,
    arrivals: u64,
    preemptions: u64,
    drafted: u64,
    accepted: u64,
}

impl Scheduler {
    /// # Errors
    /// The configuration makes no sense; see [`Config::validate`].
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let limits = config.limits;
        let (running, known) = (
            limits.max_running as usize,
            (limits.max_running + config.max_waiting) as usize,
        );
        let flow = || Flow {
            queue: List::new(),
            deficit: 0,
            served: 0,
            blocked: None,
        };
        let room = || Batch {
            rows: Vec::with_capacity(running),
            tokens: Vec::with_capacity(limits.max_batch_tokens as usize),
            blocks: Vec::with_capacity(limits.blocks as usize),
            ..Batch::default()
        };
        Ok(Self {
            step: 0,
            step_budget: limits.max_batch_tokens,
            in_flight: false,
            pool: BlockPool::new(limits.blocks, limits.block_tokens, config.scope_soft_cap),
            keyer: Keyer::new(config.key, config.identity),
            sequences: Vec::with_capacity(known),
            unused: Vec::with_capacity(known),
            by_id: Table::with_capacity(known),
            links: Links::default(),
            flows: std::array::from_fn(|_| flow()),
            running: Vec::with_capacity(running),
            waiting: 0,
            waiting_tokens: 0,
            parked: 0,
            paused: 0,
            free_slots: (0..limits.max_running).rev().collect(),
            batch: room(),
            row_sequences: Vec::with_capacity(running),
            ahead: room(),
            ahead_sequences: Vec::with_capacity(running),
            is_ahead: false,
            partials: Vec::with_capacity(running),
            chunks: Vec::with_capacity(running),
            hits: Vec::with_capacity(limits.blocks as usize),
            pending: Vec::with_capacity(running * 4),
            events: Vec::with_capacity(running * 4),
            promised: 0,
            growth_tokens: 0,
            output_ratio: 256,
            closed_until: 0,
            displacer: None,
            arrivals: 0,
            preemptions: 0,
            drafted: 0,
            accepted: 0,
            drafts: [0; DRAFTS_MAX],
            draft_cost: 256,
            config,
        })
    }

    /// Queues a sequence. It starts in one of the next steps.
    ///
    /// # Errors
    /// It can never be run, or the queue is full; nothing was queued.
    pub fn submit(&mut self, new: &NewSequence<'_>) -> Result<(), Refused> {
        self.admissible(new)?;
        let adapter = new.adapter.as_ref();
        let root = match &new.scope {
            Some(scope) => self.keyer.shared_root(scope, adapter),
            None => self.keyer.private_root(new.group, adapter),
        };
        let scope = self.pool.scopes.enter(root, new.scope);
        let at = self.unused.pop().unwrap_or_else(|| {
            self.sequences.push(Sequence::unused());
            self.links.grow();
            u32::try_from(self.sequences.len() - 1).expect("bounded by max_running + max_waiting")
        });
        let blocks = blocks_for(
            u32::try_from(new.tokens.len()).expect("checked against the context") + new.max_output,
            self.config.limits.block_tokens,
        ) as usize;
        let sequence = &mut self.sequences[at as usize];
        sequence.tokens.clear();
        sequence
            .tokens
            .reserve(new.tokens.len() + new.max_output as usize);
        sequence.tokens.extend_from_slice(new.tokens);
        sequence.digests.clear();
        sequence.digests.reserve(blocks);
        sequence.blocks.clear();
        sequence.blocks.reserve(blocks);
        *sequence = Sequence {
            id: new.id,
            prompt_tokens: u32::try_from(new.tokens.len()).expect("checked against the context"),
            max_output: new.max_output,
            priority: new.priority,
            scope,
            arrival: self.arrivals,
            since: self.step,
            uncached: new.uncached,
            tokens: std::mem::take(&mut sequence.tokens),
            digests: std::mem::take(&mut sequence.digests),
            blocks: std::mem::take(&mut sequence.blocks),
            ..Sequence::unused()
        };
        self.arrivals += 1;
        self.by_id.insert(new.id.0, at);
        self.enqueue(at);
        Ok(())
    }

    fn admissible(&self, new: &NewSequence<'_>) -> Result<(), Refused> {
        let limits = &self.config.limits;
        if new.tokens.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        if new.max_output == 0 {
            return Err(Refused::NoOutput);
        }
        let tokens = new.tokens.len() as u64 + u64::from(new.max_output);
        if tokens > u64::from(limits.context_tokens) {
            return Err(Refused::TooLong {
                tokens,
                context_tokens: limits.context_tokens,
            });
        }
        let blocks = (tokens - 1).div_ceil(u64::from(limits.block_tokens));
        if blocks > u64::from(limits.blocks) {
            return Err(Refused::TooLarge {
                blocks,
                blocks_total: limits.blocks,
            });
        }
        if self.find(new.id).is_some() {
            return Err(Refused::Duplicate { id: new.id });
        }
        if self.waiting + self.parked >= self.config.max_waiting {
            return Err(Refused::QueueFull {
                bound: self.config.max_waiting,
            });
        }
        Ok(())
    }

    /// Ends a sequence whose output is complete. False when it is not known (any more). Its blocks are back at once; what it
    /// computed stays in the prefix cache of its scope.
    pub fn finish(&mut self, id: SequenceId) -> bool {
        let Some(at) = self.find(id) else {
            return false;
        };
        self.learn_output(at);
        self.end(at);
        true
    }

    /// Ends a sequence nobody wants any more, wherever it is: waiting, in prefill, paused, or in a step that is being computed.
    /// False when it is not known (any more).
    pub fn abort(&mut self, id: SequenceId) -> bool {
        let Some(at) = self.find(id) else {
            return false;
        };
        self.end(at);
        true
    }

    /// Keeps a sequence out of the next plans until [`Scheduler::resume`]: its reader is slow. It keeps its blocks until others
    /// need them. False when it is not known.
    pub fn pause(&mut self, id: SequenceId) -> bool {
        let Some(at) = self.find(id) else {
            return false;
        };
        let sequence = &mut self.sequences[at as usize];
        if sequence.is_paused() {
            return true;
        }
        sequence.paused_since = Some(self.step);
        match sequence.state {
            State::Running => self.paused += 1,
            State::Waiting => {
                self.dequeue(at);
                self.park(at);
            }
            State::Unused | State::Parked => unreachable!("a known sequence waits or runs"),
        }
        true
    }

    /// Ends a pause. False when it is not known.
    pub fn resume(&mut self, id: SequenceId) -> bool {
        let Some(at) = self.find(id) else {
            return false;
        };
        let sequence = &mut self.sequences[at as usize];
        if sequence.paused_since.take().is_none() {
            return true;
        }
        match sequence.state {
            State::Running => self.paused -= 1,
            State::Parked => {
                self.parked -= 1;
                self.enqueue(at);
            }
            State::Unused | State::Waiting => unreachable!("a paused sequence runs or is parked"),
        }
        true
    }

    /// Takes a running sequence's slot and blocks; it waits at the head of its queue and goes on where it was. For a reader
    /// that was too slow for too long, and for tests. False when it does not run.
    pub fn preempt(&mut self, id: SequenceId) -> bool {
        match self.find(id) {
            Some(at) if self.sequences[at as usize].state == State::Running => {
                self.put_back(at);
                true
            }
            _ => false,
        }
    }

    /// Bounds the tokens of the next steps, for a caller that measures what a step costs. Decode rows are planned in any case.
    pub fn set_step_budget(&mut self, tokens: u32) {
        self.step_budget = tokens.clamp(1, self.config.limits.max_batch_tokens);
    }

    /// Drops every unreferenced cached block of a scope, whatever the adapter, and names each so that a caller with a zeroing rule can wipe it. A
    /// time-to-live is this call when the scope was idle for that long. Blocks in use stay, and are named by a later call.
    pub fn forget_scope(&mut self, scope: &[u8; 32], mut dropped: impl FnMut(BlockId)) {
        for found in self.pool.scopes.of(scope) {
            self.pool.forget(found, &mut dropped);
        }
    }

    /// The step planned last.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// What the backend must be told before the planned step runs, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// A sequence's prompt and output so far.
    pub fn tokens(&self, id: SequenceId) -> Option<(&[u32], &[u32])> {
        let sequence = &self.sequences[self.find(id)? as usize];
        Some(sequence.tokens.split_at(sequence.prompt_tokens as usize))
    }

    /// Whether no sequence is known.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.parked == 0 && self.running.is_empty()
    }

    /// Whether the next plan can have rows: someone waits or runs and is not paused.
    pub fn has_work(&self) -> bool {
        self.waiting > 0 || self.running.len() > self.paused as usize
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn is_guaranteed(&self) -> bool {
        self.config.mode == Mode::GuaranteedNoEvict
    }
}

/// Blocks that hold so many positions.
fn blocks_for(positions: u32, block_tokens: u32) -> u32 {
    positions.div_ceil(block_tokens)
}

#[cfg(test)]
mod tests;
