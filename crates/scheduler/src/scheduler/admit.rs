//! Which waiting sequence starts, and what it may take for that.

use super::state::flow_index;
use super::{Event, Scheduler, blocks_for};
use crate::SlotId;
use crate::config::{CLASSES, Priority};
use crate::list::NONE;
use crate::sequence::{Deferral, State};

/// Deferred sequences looked at per flow and step; more wait their turn behind them.
const DEFERRED_SCAN: usize = 32;

/// Less urgent sequences that give way per step: enough to let one in, never a purge.
const DISPLACED_PER_STEP: u32 = 4;

/// The class whose started prefills are limited in number.
const LONG: usize = CLASSES - 1;

/// What came of trying to start a sequence.
enum Start {
    Started,
    /// Others already compute its prefix.
    Deferred,
    /// Enough long prompts are being prefilled.
    TooManyLong,
    /// No slot or not enough blocks.
    Blocked,
}

impl Scheduler {
    /// Whether admission is open at all: not for some steps after a preemption, unless nothing else could run.
    pub(super) fn is_open(&self) -> bool {
        self.step >= self.closed_until || self.runnable() == 0
    }

    pub(super) fn flow_of(&self, at: u32) -> usize {
        let sequence = self.sequence(at);
        flow_index(sequence.priority, sequence.class)
    }

    /// Starts the first sequence of a flow's queue that is not deferred.
    pub(super) fn start_next(&mut self, flow: usize, level: usize) -> Option<u32> {
        let mut candidate = self.flows[flow].queue.head();
        for _ in 0..DEFERRED_SCAN {
            if candidate == NONE {
                return None;
            }
            let next = self.links.next(candidate);
            if !self.is_still_deferred(candidate) {
                match self.try_start(candidate, level) {
                    Start::Started => return Some(candidate),
                    Start::Deferred => {}
                    Start::TooManyLong => return None,
                    Start::Blocked => {
                        self.note_blocked(flow, candidate);
                        return None;
                    }
                }
            }
            candidate = next;
        }
        None
    }

    fn note_blocked(&mut self, flow: usize, candidate: u32) {
        let id = self.sequence(candidate).id;
        let since = match self.flows[flow].blocked {
            Some((before, since)) if before == id => since,
            _ => self.step,
        };
        self.flows[flow].blocked = Some((id, since));
    }

    fn try_start(&mut self, at: u32, level: usize) -> Start {
        let hits = self.find_hits(at);
        let sequence = self.sequence(at);
        let uncached = sequence.len() - hits * self.config.limits.block_tokens;
        let class = self.config.class_of(uncached);
        // What was preempted comes back with a better level, so that it is not displaced again and again.
        let own = (sequence.priority as usize).saturating_sub(sequence.displaced as usize / 2);
        let level = level.min(own);
        let priority = self.sequence(at).priority;
        if class == LONG && self.long_prefills(priority) >= self.config.max_long_prefills {
            return Start::TooManyLong;
        }
        if self.defer(at, hits) {
            return Start::Deferred;
        }
        if !self.secure(at, hits, level) {
            return Start::Blocked;
        }
        self.start(at, hits, class, level);
        Start::Started
    }

    /// Makes sure that a slot and the blocks are there, by taking them from sequences that were paused too long if need be.
    fn secure(&mut self, at: u32, hits: u32, level: usize) -> bool {
        loop {
            if !self.free_slots.is_empty() && self.fits(at, hits) {
                return true;
            }
            let Some(victim) = self.overdue_paused() else {
                break;
            };
            self.put_back(victim);
            // The scratch list of hits is still right: blocks of the victim stay in the cache.
        }
        let can_displace = !self.is_guaranteed()
            && self
                .running
                .last()
                .is_some_and(|last| self.sequence(*last).level > level);
        if can_displace && self.displacer.is_none_or(|(_, _, other)| level < other) {
            self.displacer = Some((at, self.sequence(at).id, level));
        }
        false
    }

    /// Whether the blocks of the sequence's tokens fit beside the reserve for the running ones.
    fn fits(&self, at: u32, hits: u32) -> bool {
        let block_tokens = self.config.limits.block_tokens;
        let unreferenced = self
            .hits
            .iter()
            .filter(|block| self.pool.references(**block) == 0);
        let available = u64::from(self.pool.available()) - unreferenced.count() as u64;
        let now = blocks_for(self.sequence(at).len(), block_tokens);
        let reserve = if self.is_guaranteed() {
            let most = blocks_for(self.sequence(at).max_positions(), block_tokens);
            self.promised + u64::from(most.saturating_sub(now))
        } else if self.runnable() == 0 {
            0
        } else {
            (self.growth_tokens * self.output_ratio / 1024).div_ceil(u64::from(block_tokens))
        };
        available >= u64::from(now - hits) + reserve
    }

    /// A sequence that was paused longer than it may keep its memory while others want it; at once when nobody else runs.
    fn overdue_paused(&self) -> Option<u32> {
        if self.paused == 0 {
            return None;
        }
        let grace = if self.runnable() == 0 {
            0
        } else {
            self.config.pause_grace_steps
        };
        let overdue = |at: &&u32| {
            self.sequence(**at)
                .paused_since
                .is_some_and(|since| self.step - since > grace)
        };
        self.running.iter().rev().find(overdue).copied()
    }

    /// Lets a more urgent sequence, which found no room in the last step, take the place of less urgent ones. Done before
    /// anything of the step is planned, because a planned row cannot be taken back.
    pub(super) fn displace(&mut self) {
        let Some((at, id, level)) = self.displacer.take() else {
            return;
        };
        if self.sequence(at).id != id || self.sequence(at).state != State::Waiting {
            return;
        }
        for _ in 0..DISPLACED_PER_STEP {
            let hits = self.find_hits(at);
            if !self.free_slots.is_empty() && self.fits(at, hits) {
                return;
            }
            match self.running.last().copied() {
                Some(last) if self.sequence(last).level > level => {
                    self.sequence_mut(last).displaced += 1;
                    self.put_back(last);
                }
                _ => return,
            }
        }
    }

    fn start(&mut self, at: u32, hits: u32, class: usize, level: usize) {
        self.dequeue(at);
        let block_tokens = self.config.limits.block_tokens;
        let total = blocks_for(self.sequence(at).len(), block_tokens);
        let slot = SlotId(self.free_slots.pop().expect("a slot was secured"));
        let Self {
            sequences,
            pool,
            hits: found,
            ..
        } = self;
        let sequence = &mut sequences[at as usize];
        assert!(
            sequence.blocks.is_empty(),
            "a waiting sequence holds blocks"
        );
        // References first: an allocation must not evict what was found.
        for block in found.drain(..) {
            pool.acquire(block);
            sequence.blocks.push(block);
        }
        for _ in hits..total {
            let block = pool.allocate().expect("blocks were secured");
            sequence.blocks.push(block);
        }
        sequence.class = class;
        sequence.level = level;
        sequence.state = State::Running;
        sequence.slot = slot;
        sequence.named = hits;
        sequence.computed = hits * block_tokens;
        let event = Event::Started {
            id: sequence.id,
            slot,
            cached_tokens: sequence.computed,
            resumed: sequence.resumed,
        };
        sequence.resumed = true;
        self.pending.push(event);
        self.list_running(at);
        self.count_growth(at);
    }

    /// Cached blocks the sequence could start from, into the scratch list; returns how many. At least one token is always left
    /// to compute, because something has to be sampled from.
    pub(super) fn find_hits(&mut self, at: u32) -> u32 {
        let block_tokens = self.config.limits.block_tokens;
        let Self {
            sequences,
            pool,
            keyer,
            hits,
            ..
        } = self;
        let sequence = &mut sequences[at as usize];
        let scope = sequence.scope;
        let root = &pool.scopes.get(scope).root;
        hits.clear();
        if !sequence.may_hit() {
            return 0;
        }
        let most = (sequence.len() - 1) / block_tokens;
        for index in 0..most {
            let digest = sequence.digest(keyer, root, block_tokens, index);
            let tokens =
                &sequence.tokens[(index * block_tokens) as usize..][..block_tokens as usize];
            match pool.lookup(scope, &digest, tokens) {
                Some(block) => hits.push(block),
                None => return index,
            }
        }
        most
    }

    /// Whether another sequence of the scope, at least as urgent, is just computing the next block this one needs. If so, waits
    /// for it: the block then comes from the cache.
    fn defer(&mut self, at: u32, hits: u32) -> bool {
        let block_tokens = self.config.limits.block_tokens;
        let sequence = self.sequence(at);
        if !sequence.may_hit() || hits >= (sequence.len() - 1) / block_tokens {
            return false;
        }
        let (scope, priority, digest) = (
            sequence.scope,
            sequence.priority,
            sequence.digests[hits as usize],
        );
        let end = (hits + 1) * block_tokens;
        for index in 0..self.partials.len() {
            let leader = self.partials[index];
            let Self {
                sequences,
                pool,
                keyer,
                ..
            } = self;
            let other = &mut sequences[leader as usize];
            let shares = other.state == State::Running
                && other.scope == scope
                && other.priority <= priority
                && other.computed < end
                && other.named == hits
                && other.len() >= end;
            if shares {
                let root = &pool.scopes.get(scope).root;
                if other.digest(keyer, root, block_tokens, hits) == digest {
                    let leader_id = other.id;
                    self.sequence_mut(at).deferral = Some(Deferral {
                        leader,
                        leader_id,
                        until: end,
                    });
                    return true;
                }
            }
        }
        false
    }

    fn is_still_deferred(&self, at: u32) -> bool {
        self.sequence(at).deferral.is_some_and(|deferral| {
            let leader = self.sequence(deferral.leader);
            leader.id == deferral.leader_id
                && leader.state == State::Running
                && !leader.is_paused()
                && leader.computed < deferral.until
        })
    }

    /// Long prompts, at least as urgent as this priority, that are partly prefilled and not finished by this step. Less urgent
    /// ones do not count: they must not keep a more urgent one out.
    fn long_prefills(&self, priority: Priority) -> u32 {
        let long = |at: &&u32| {
            let sequence = self.sequence(**at);
            sequence.class == LONG
                && sequence.priority <= priority
                && sequence.unplanned(self.step) > 0
        };
        u32::try_from(self.partials.iter().filter(long).count()).expect("bounded by max_running")
    }
}
