//! A writer under policies: which rows are in the log, and which wait.

use std::sync::Arc;

use weir_run::{FinishReason, RunStatus};

use super::writer::{Ending, Pending, Writer};
use crate::policy::{OutputFilter, RuleSets};

impl Writer {
    /// What policies hold for the output of a run that has none yet.
    pub(crate) fn judge_by(&mut self, sets: Option<Arc<RuleSets>>) {
        let sets = sets.filter(|sets| !sets.after.is_empty());
        self.judged = true;
        self.filter = sets.map(|sets| Box::new(OutputFilter::new(sets)));
    }

    /// What policies let through of a run that another process wrote to before.
    pub(crate) fn judge_on(&mut self, filter: Option<OutputFilter>) {
        self.judged = true;
        self.filter = filter.map(Box::new);
    }

    /// Whether it is known which policies hold.
    pub(crate) fn is_judged(&self) -> bool {
        self.judged
    }

    /// The last event, durable or not.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Rows that are in the log or on their way there; those after them wait for policies.
    pub(super) fn logged(&self) -> u64 {
        let held = self.filter.as_ref().map_or(0, |filter| filter.held());
        self.next_index - held
    }

    /// Rows that are durable while `pending` is not.
    pub(crate) fn acknowledged(&self, pending: &Pending) -> u64 {
        self.logged() - pending.rows
    }

    /// Forgets rows that wait for policies and tells from which row on the worker shall send again.
    pub(crate) fn rewind(&mut self) -> u64 {
        self.next_index = self.logged();
        if let Some(filter) = &mut self.filter {
            filter.rewind();
        }
        self.next_index
    }

    /// Whether a policy ended the run since the last call.
    pub(crate) fn take_blocked(&mut self) -> bool {
        std::mem::take(&mut self.blocked)
    }

    /// Takes in what policies let through.
    pub(super) fn release(&mut self, pending: &mut Pending) {
        let Some(filter) = &mut self.filter else {
            return;
        };
        let released = filter.release();
        let stopped = filter.is_stopped();
        pending.verdicts.append(&mut filter.take_verdicts());
        for mut row in released {
            if stopped {
                // However the model meant to end.
                (row.finish, row.run_finished) = (None, false);
            }
            self.take(row, pending);
        }
        if stopped && !self.ended {
            self.blocked = true;
            let ending = Ending {
                status: RunStatus::Completed,
                finish_reason: Some(FinishReason::ContentFilter),
                reason: String::new(),
            };
            self.end(ending, pending);
        }
    }
}
