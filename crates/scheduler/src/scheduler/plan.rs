//! What a step computes: decode rows first, then the prefill budget divided among the flows.

use super::{FLOWS, Flow, Scheduler};
use crate::config::CLASSES;
use crate::list::NONE;
use crate::sequence::State;
use crate::{Batch, Row, SequenceId};

/// No level: the flow has nothing to do.
const IDLE: usize = usize::MAX;

/// Output a running sequence is expected to make is counted up to this many tokens (as `SGLang` does): a huge limit that nobody
/// reaches must not close admission.
const GROWTH_CLIP: u32 = 4096;

/// Fixed point of deficits.
const DEFICIT_UNIT: u64 = 256;

impl Scheduler {
    /// Plans the next step; the one before must be complete. An empty batch means that nothing can run: everything known is
    /// paused, or nothing is known. Read [`Scheduler::events`] before the batch is carried out, also when it is empty.
    ///
    /// O(rows + tokens planned + new blocks).
    pub fn plan(&mut self) -> &Batch {
        self.plan_with(|_, drafts| drafts.len())
    }

    /// As [`Scheduler::plan`], where `check` says how many of the guesses of a row may be computed: the first ones that what the
    /// sequence must follow allows.
    pub fn plan_with(&mut self, check: impl FnMut(SequenceId, &[u32]) -> usize) -> &Batch {
        assert!(
            !self.in_flight,
            "step {} was planned and not completed",
            self.step
        );
        self.step += 1;
        self.batch.clear();
        self.batch.step = self.step;
        self.row_sequences.clear();
        self.partials.clear();
        self.chunks.clear();
        self.displace();
        self.plan_decodes(check);
        self.plan_prefills();
        self.emit_chunks();
        let planned = self.batch.tokens.len();
        assert!(
            planned <= self.config.limits.max_batch_tokens as usize,
            "step {} has {planned} tokens, more than a step may have",
            self.step
        );
        self.in_flight = !self.batch.is_empty();
        self.events.clear();
        std::mem::swap(&mut self.events, &mut self.pending);
        &self.batch
    }

    /// One token for every runnable sequence that has only its last token to compute, in the order of the run list: the victim of
    /// a full pool is always one that is not planned yet.
    fn plan_decodes(&mut self, mut check: impl FnMut(SequenceId, &[u32]) -> usize) {
        self.growth_tokens = 0;
        let mut place = 0;
        while let Some(at) = self.running.get(place).copied() {
            let sequence = self.sequence(at);
            if sequence.is_paused() {
                place += 1;
                continue;
            }
            if sequence.remaining() > 1 {
                self.count_growth(at);
                self.partials.push(at);
                place += 1;
                continue;
            }
            let (still_running, place_now) = self.make_room(at, place);
            place = place_now;
            if still_running {
                self.count_growth(at);
                let drafts = self.draft(at, place, &mut check);
                self.emit_row(at, 1, drafts);
                place += 1;
            }
        }
        self.batch.decode_rows =
            u32::try_from(self.batch.rows.len()).expect("bounded by max_running");
    }

    pub(super) fn count_growth(&mut self, at: u32) {
        let sequence = self.sequence(at);
        let left = sequence.max_output - sequence.output_tokens();
        self.growth_tokens += u64::from(left.min(GROWTH_CLIP));
    }

    /// Makes sure the sequence has a block for its next position. Returns whether it still runs, and its place in the run list
    /// (of the next sequence, if it does not).
    fn make_room(&mut self, at: u32, mut place: usize) -> (bool, usize) {
        let block_tokens = self.config.limits.block_tokens;
        let sequence = self.sequence(at);
        if (sequence.computed / block_tokens) as usize != sequence.blocks.len() {
            return (true, place);
        }
        loop {
            if let Some(block) = self.pool.allocate() {
                self.promised -= 1;
                self.sequence_mut(at).blocks.push(block);
                return (true, place);
            }
            let victim = self.growth_victim();
            assert!(
                victim != at || self.runnable() > 1,
                "a sequence that fits the pool alone found no block in it"
            );
            self.raise_reserve(victim);
            let removed = self.put_back(victim);
            if victim == at {
                // Nobody paused was left, so it was the last of the list.
                return (false, place);
            }
            if removed < place {
                place -= 1;
            }
        }
    }

    /// Who gives way when a running sequence needs a block: a paused one, else the least urgent and youngest.
    fn growth_victim(&self) -> u32 {
        if self.paused > 0
            && let Some(at) = self
                .running
                .iter()
                .rev()
                .find(|at| self.sequence(**at).is_paused())
        {
            return *at;
        }
        *self.running.last().expect("the sequence that asks runs")
    }

    /// After a real preemption admission stays closed for some steps and reckons with longer outputs, or the victim would come
    /// back at once and be preempted again.
    fn raise_reserve(&mut self, victim: u32) {
        if self.sequence(victim).is_paused() {
            return;
        }
        assert!(
            !self.is_guaranteed(),
            "a sequence that was promised its memory lost it"
        );
        self.output_ratio = (self.output_ratio + 128).min(1024);
        self.closed_until = self.step + self.config.hysteresis_steps;
    }

    /// Divides what the decode rows leave of the budget.
    fn plan_prefills(&mut self) {
        let decodes = self.batch.decode_rows;
        let room = self.config.limits.max_batch_tokens - self.batch.decode_tokens();
        // Guesses are on top of the budget: they pay for themselves. A budget below the decode rows must not stop prefills for ever.
        let mut left = self.step_budget.saturating_sub(decodes).max(1).min(room);
        let levels = self.levels();
        let strict = self.strict_flow(&levels);
        for level in 0..=2 {
            left = self.serve_level(level, &levels, strict, left);
        }
    }

    /// How urgent each flow is now: its priority, one level better for every `aging_steps` its oldest sequence has waited
    /// while the flow got nothing.
    fn levels(&self) -> [usize; FLOWS] {
        let mut oldest = [u64::MAX; FLOWS];
        for at in &self.partials {
            let flow = self.flow_of(*at);
            oldest[flow] = oldest[flow].min(self.sequence(*at).since);
        }
        let mut levels = [IDLE; FLOWS];
        for (index, flow) in self.flows.iter().enumerate() {
            let head = flow.queue.head();
            if head != NONE {
                oldest[index] = oldest[index].min(self.sequence(head).since);
            }
            if oldest[index] != u64::MAX {
                let age = self.step - oldest[index].max(flow.served);
                let raised = usize::try_from(age / self.config.aging_steps).unwrap_or(IDLE);
                levels[index] = (index / CLASSES).saturating_sub(raised);
            }
        }
        levels
    }

    /// The flow whose head has waited for memory or a slot longer than patience allows: flows of its level and below admit
    /// nobody until it got in.
    fn strict_flow(&self, levels: &[usize; FLOWS]) -> Option<usize> {
        let overdue = |(index, flow): (usize, &Flow)| {
            let (_, since) = flow.blocked?;
            let is_overdue = self.step - since > self.config.patience_steps;
            (is_overdue && levels[index] != IDLE).then_some((levels[index], since, index))
        };
        let flows = self.flows.iter().enumerate();
        flows.filter_map(overdue).min().map(|(_, _, index)| index)
    }

    /// Gives the flows of one level their shares by weighted deficit, then what is left in order. Returns the rest.
    fn serve_level(
        &mut self,
        level: usize,
        levels: &[usize; FLOWS],
        strict: Option<usize>,
        mut left: u32,
    ) -> u32 {
        let weight = |flow: usize| u64::from(self.config.class_weights[flow % CLASSES]);
        let total: u64 = (0..FLOWS).filter(|f| levels[*f] == level).map(weight).sum();
        let share = u64::from(left) * DEFICIT_UNIT;
        let most = u64::from(self.config.limits.max_batch_tokens) * DEFICIT_UNIT;
        let mut shares = [0_u64; FLOWS];
        for flow in (0..FLOWS).filter(|f| levels[*f] == level) {
            shares[flow] = share * weight(flow) / total;
        }
        for round in 0..2 {
            for flow in (0..FLOWS).filter(|f| levels[*f] == level) {
                if left == 0 {
                    return 0;
                }
                let admits = strict.is_none_or(|first| first == flow || level < levels[first]);
                if round == 0 {
                    let owed = (self.flows[flow].deficit + shares[flow]).min(most);
                    let allowance = u32::try_from(owed / DEFICIT_UNIT).unwrap_or(left).min(left);
                    let used = self.serve(flow, level, allowance, admits);
                    self.flows[flow].deficit = owed - u64::from(used) * DEFICIT_UNIT;
                    left -= used;
                } else {
                    left -= self.serve(flow, level, left, admits);
                }
            }
        }
        left
    }

    /// Prefill tokens for one flow: those already started first, then new ones.
    fn serve(&mut self, flow: usize, level: usize, allowance: u32, admits: bool) -> u32 {
        let mut used = 0;
        for index in 0..self.partials.len() {
            let at = self.partials[index];
            if used < allowance && self.flow_of(at) == flow {
                used += self.add_chunk(at, allowance - used);
            }
        }
        while admits && used < allowance && self.is_open() {
            let Some(at) = self.start_next(flow, level) else {
                break;
            };
            self.partials.push(at);
            used += self.add_chunk(at, allowance - used);
        }
        if used > 0 {
            self.flows[flow].served = self.step;
        } else if self.flows[flow].queue.is_empty() {
            self.flows[flow].deficit = 0;
        }
        used
    }

    /// Adds prefill tokens of a sequence to the step. Returns how many.
    fn add_chunk(&mut self, at: u32, allowance: u32) -> u32 {
        let step = self.step;
        let sequence = self.sequence_mut(at);
        let tokens = sequence.unplanned(step).min(allowance);
        if tokens == 0 {
            return 0;
        }
        if sequence.planned_step == step {
            sequence.planned_tokens += tokens;
        } else {
            sequence.planned_step = step;
            sequence.planned_tokens = tokens;
            self.chunks.push(at);
        }
        tokens
    }

    /// Turns the chunks into rows. A chunk that does not reach the end is cut at a block's edge where it can be, so that chunk
    /// edges fall on the attention kernels' splits.
    fn emit_chunks(&mut self) {
        let block_tokens = self.config.limits.block_tokens;
        for index in 0..self.chunks.len() {
            let at = self.chunks[index];
            let sequence = self.sequence(at);
            let mut tokens = sequence.planned_tokens;
            if tokens < sequence.remaining() {
                let end = sequence.computed + tokens;
                let aligned = end - end % block_tokens;
                if aligned > sequence.computed {
                    tokens = aligned - sequence.computed;
                }
            }
            self.emit_row(at, tokens, 0);
        }
    }

    /// A row of a sequence's next tokens and the first of the guesses.
    fn emit_row(&mut self, at: u32, tokens: u32, draft_count: u32) {
        let (step, block_tokens) = (self.step, self.config.limits.block_tokens);
        let Self {
            sequences,
            batch,
            pool,
            row_sequences,
            drafts,
            ..
        } = self;
        let sequence = &mut sequences[at as usize];
        assert!(
            sequence.state == State::Running && !sequence.is_paused(),
            "a row for a sequence that cannot run"
        );
        sequence.planned_step = step;
        sequence.planned_tokens = tokens;
        let (start, end) = (sequence.computed, sequence.computed + tokens);
        let written = end + draft_count;
        let (first, count) = (start / block_tokens, written.div_ceil(block_tokens));
        let table = &sequence.blocks[..count as usize];
        for block in &table[first as usize..] {
            assert!(
                pool.is_writable(*block),
                "step {step} writes to block {}, which is shared or named",
                block.0
            );
        }
        batch.rows.push(Row {
            sequence: sequence.id,
            slot: sequence.slot,
            start,
            token_offset: u32::try_from(batch.tokens.len()).expect("bounded by the step's tokens"),
            token_count: tokens + draft_count,
            draft_count,
            block_offset: u32::try_from(batch.blocks.len())
                .expect("tables are bounded by contexts"),
            block_count: count,
            samples: end == sequence.len(),
        });
        batch
            .tokens
            .extend_from_slice(&sequence.tokens[start as usize..end as usize]);
        batch
            .tokens
            .extend_from_slice(&drafts[..draft_count as usize]);
        batch.blocks.extend_from_slice(table);
        row_sequences.push(at);
    }
}
