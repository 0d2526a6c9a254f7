//! Which guesses a decode row computes beside its token.

use super::Scheduler;
use crate::SequenceId;
use crate::lookup::guess;

impl Scheduler {
    /// What computing a guess costs, in 1/1024 of the time that a token costs otherwise, for a caller that measures it: guesses are
    /// made as long as they are likelier than that to come true.
    pub fn set_draft_cost(&mut self, cost: u32) {
        self.draft_cost = cost.max(1);
    }

    /// Puts guesses for the sequence at `place` of the run list, which decodes, into the scratch list; returns how many.
    pub(super) fn draft(
        &mut self,
        at: u32,
        place: usize,
        check: &mut impl FnMut(SequenceId, &[u32]) -> usize,
    ) -> u32 {
        let most = self.drafts_possible(at, place);
        let (step, cost) = (self.step, self.draft_cost);
        let Self {
            sequences, drafts, ..
        } = self;
        let sequence = &mut sequences[at as usize];
        if most == 0 || sequence.luck.is_resting(step) {
            return 0;
        }
        let worth = sequence.luck.worth(cost, most);
        if worth == 0 {
            sequence.luck.forget();
            return 0;
        }
        let found = guess(&sequence.tokens, &mut drafts[..worth as usize]);
        if found == 0 {
            sequence.luck.miss(step);
            return 0;
        }
        let allowed = check(sequence.id, &drafts[..found]).min(found);
        if allowed == 0 {
            sequence.luck.miss(step);
        }
        let allowed = u32::try_from(allowed).expect("bounded by the scratch list");
        self.hold_drafts(at, allowed)
    }

    /// Guesses that leave every other sequence its token in the step, the output its bound (the last token is sampled and never
    /// written, so a guess of it is of no use) and the pool its blocks.
    fn drafts_possible(&self, at: u32, place: usize) -> u32 {
        if self.config.max_drafts == 0 {
            return 0;
        }
        let sequence = self.sequence(at);
        let others = self.running.len() - place - 1;
        let planned = self.batch.tokens.len() + 1 + others;
        let room = (self.config.limits.max_batch_tokens as usize).saturating_sub(planned);
        let left = sequence.max_output - sequence.output_tokens();
        self.config
            .max_drafts
            .min(left - 1)
            .min(u32::try_from(room).unwrap_or(u32::MAX))
    }

    /// Cuts guesses to what the sequence's blocks hold, after giving it one that nobody uses: nothing is evicted for a guess.
    fn hold_drafts(&mut self, at: u32, drafts: u32) -> u32 {
        let block_tokens = self.config.limits.block_tokens;
        let held = |scheduler: &Self| {
            let sequence = scheduler.sequence(at);
            let blocks = u32::try_from(sequence.blocks.len()).expect("bounded by the pool");
            blocks * block_tokens - sequence.computed - 1
        };
        while held(self) < drafts && self.pool.free() > 0 {
            let block = self.pool.allocate().expect("a block is free");
            self.promised -= 1;
            self.sequence_mut(at).blocks.push(block);
        }
        drafts.min(held(self))
    }
}
