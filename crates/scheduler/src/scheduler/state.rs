//! Moves of a sequence between queue, run list and end; every counter is changed here.

use super::{Event, FLOWS, Scheduler, Stats, blocks_for};
use crate::config::{CLASSES, Priority};
use crate::list::NONE;
use crate::sequence::{Sequence, State};
use crate::{SequenceId, SlotId};

impl Scheduler {
    pub(super) fn find(&self, id: SequenceId) -> Option<u32> {
        self.by_id
            .find(id.0, |at| self.sequences[at as usize].id == id)
    }

    pub(super) fn sequence(&self, at: u32) -> &Sequence {
        &self.sequences[at as usize]
    }

    pub(super) fn sequence_mut(&mut self, at: u32) -> &mut Sequence {
        &mut self.sequences[at as usize]
    }

    /// Puts a sequence into the queue of its flow, by arrival: whoever was preempted or paused is older than most.
    pub(super) fn enqueue(&mut self, at: u32) {
        let cached = self.find_hits(at) * self.config.limits.block_tokens;
        let queued = self.sequence(at).len() - cached;
        let class = self.config.class_of(queued);
        let arrival = self.sequence(at).arrival;
        let flow = flow_index(self.sequence(at).priority, class);
        let mut before = NONE;
        // New ones go to the end at once; the walk is for the few that return.
        if arrival + 1 != self.arrivals {
            before = self.flows[flow].queue.head();
            while before != NONE && self.sequence(before).arrival < arrival {
                before = self.links.next(before);
            }
        }
        let sequence = self.sequence_mut(at);
        sequence.state = State::Waiting;
        sequence.class = class;
        sequence.queued_tokens = queued;
        sequence.deferral = None;
        self.waiting += 1;
        self.waiting_tokens += u64::from(queued);
        self.flows[flow]
            .queue
            .insert_before(&mut self.links, before, at);
    }

    /// Takes a waiting sequence out of its queue.
    pub(super) fn dequeue(&mut self, at: u32) {
        let sequence = &self.sequences[at as usize];
        let flow = &mut self.flows[flow_index(sequence.priority, sequence.class)];
        if flow.blocked.is_some_and(|(id, _)| id == sequence.id) {
            flow.blocked = None;
        }
        flow.queue.remove(&mut self.links, at);
        self.waiting -= 1;
        self.waiting_tokens -= u64::from(sequence.queued_tokens);
    }

    pub(super) fn park(&mut self, at: u32) {
        self.sequence_mut(at).state = State::Parked;
        self.parked += 1;
    }

    /// Gives a sequence a place in the run list.
    pub(super) fn list_running(&mut self, at: u32) {
        let key = self.run_key(at);
        let place = self
            .running
            .partition_point(|other| self.run_key(*other) < key);
        self.running.insert(place, at);
        self.promised += u64::from(self.unheld_blocks(at));
    }

    /// Takes a running sequence's slot and blocks, tails first. Returns its place in the run list.
    pub(super) fn vacate(&mut self, at: u32) -> (usize, SlotId) {
        let key = self.run_key(at);
        let place = self
            .running
            .partition_point(|other| self.run_key(*other) < key);
        assert!(
            self.running.get(place) == Some(&at),
            "a running sequence is not in the run list"
        );
        self.running.remove(place);
        self.promised -= u64::from(self.unheld_blocks(at));
        let Self {
            sequences,
            pool,
            free_slots,
            ..
        } = self;
        let sequence = &mut sequences[at as usize];
        while let Some(block) = sequence.blocks.pop() {
            pool.release(block);
        }
        sequence.computed = 0;
        sequence.named = 0;
        sequence.planned_step = 0;
        free_slots.push(sequence.slot.0);
        if sequence.is_paused() {
            self.paused -= 1;
        }
        (place, sequence.slot)
    }

    /// Preempts: back to the queue, to be computed again (mostly from the cache). Returns the place it had in the run list.
    pub(super) fn put_back(&mut self, at: u32) -> usize {
        let (place, slot) = self.vacate(at);
        self.preemptions += 1;
        let id = self.sequence(at).id;
        self.pending.push(Event::Preempted { id, slot });
        if self.sequence(at).is_paused() {
            self.park(at);
        } else {
            self.enqueue(at);
        }
        place
    }

    /// Ends a sequence, wherever it is.
    pub(super) fn end(&mut self, at: u32) {
        let id = self.sequence(at).id;
        match self.sequence(at).state {
            State::Waiting => self.dequeue(at),
            State::Parked => self.parked -= 1,
            State::Running => {
                let (_, slot) = self.vacate(at);
                self.pending.push(Event::Closed { id, slot });
            }
            State::Unused => unreachable!("an unused entry ended"),
        }
        self.pool.leave(self.sequence(at).scope);
        self.by_id.remove(id.0, at);
        self.sequence_mut(at).state = State::Unused;
        self.unused.push(at);
    }

    /// Learns from a complete output how much of `max_output` is really used.
    pub(super) fn learn_output(&mut self, at: u32) {
        let sequence = self.sequence(at);
        let used = u64::from(sequence.output_tokens()) * 1024 / u64::from(sequence.max_output);
        self.output_ratio = (self.output_ratio * 15 + used) / 16;
    }

    /// Blocks the sequence may still come to need.
    pub(super) fn unheld_blocks(&self, at: u32) -> u32 {
        let sequence = self.sequence(at);
        let most = blocks_for(sequence.max_positions(), self.config.limits.block_tokens);
        most - u32::try_from(sequence.blocks.len()).expect("bounded by the pool")
    }

    /// How many sequences could make progress: have a slot and are not paused.
    pub(super) fn runnable(&self) -> usize {
        self.running.len() - self.paused as usize
    }

    fn run_key(&self, at: u32) -> (usize, u64) {
        let sequence = self.sequence(at);
        (sequence.level, sequence.arrival)
    }

    /// Occupancy now. O(running).
    pub fn stats(&self) -> Stats {
        let mut waiting = [0; Priority::COUNT];
        for (flow, state) in self.flows.iter().enumerate() {
            waiting[flow / CLASSES] += state.queue.len();
        }
        let mut stats = Stats {
            steps: self.step,
            blocks_total: self.pool.total(),
            blocks_free: self.pool.free(),
            blocks_cached: self.pool.cached(),
            blocks_referenced: self.pool.referenced(),
            running: u32::try_from(self.running.len()).expect("bounded by max_running"),
            paused: self.paused + self.parked,
            waiting,
            prefill_tokens_waiting: self.waiting_tokens,
            kv_tokens: 0,
            preemptions: self.preemptions,
            drafted_tokens: self.drafted,
            accepted_tokens: self.accepted,
        };
        for at in &self.running {
            let sequence = self.sequence(*at);
            stats.kv_tokens += u64::from(sequence.computed);
            // The one token a decode row is about to feed is not a prefill.
            if sequence.remaining() > 1 {
                stats.prefill_tokens_waiting += u64::from(sequence.remaining());
            }
        }
        stats
    }

    /// Checks everything that must hold between calls. O(everything); for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        self.pool.check();
        let mut table_entries = 0;
        for at in &self.running {
            let sequence = self.sequence(*at);
            assert_eq!(sequence.state, State::Running, "run list and state agree");
            assert!(
                sequence.computed < sequence.len(),
                "the last token is never written before it is fed"
            );
            assert!(
                sequence.blocks.len() * self.config.limits.block_tokens as usize
                    >= sequence.computed as usize,
                "every written position has a block"
            );
            table_entries += sequence.blocks.len();
        }
        let references: usize = (0..self.pool.total())
            .map(|block| self.pool.references(crate::BlockId(block)) as usize)
            .sum();
        assert_eq!(
            references, table_entries,
            "references against entries of block tables"
        );
        let ordered = self
            .running
            .windows(2)
            .all(|pair| self.run_key(pair[0]) < self.run_key(pair[1]));
        assert!(ordered, "the run list is ordered by level and arrival");
        let queued: u32 = self.flows.iter().map(|flow| flow.queue.len()).sum();
        assert_eq!(queued, self.waiting, "queued sequences are counted");
        let promised: u64 = self
            .running
            .iter()
            .map(|at| u64::from(self.unheld_blocks(*at)))
            .sum();
        assert_eq!(promised, self.promised, "promised blocks are counted");
        assert_eq!(
            self.running.len() + self.free_slots.len(),
            self.config.limits.max_running as usize,
            "every slot is free or taken"
        );
        if self.is_guaranteed() {
            assert!(
                self.promised <= u64::from(self.pool.available()),
                "every promise can be kept"
            );
        }
    }
}

pub(super) fn flow_index(priority: Priority, class: usize) -> usize {
    let flow = priority as usize * CLASSES + class;
    assert!(flow < FLOWS, "class {class} does not exist");
    flow
}
