//! A writer under policies: which rows are in the log, and which wait.

use std::sync::Arc;

use weir_protocol::worker::Row;
use weir_run::{FinishReason, RunStatus};

use super::writer::{Ending, Pending, Writer};
use crate::policy::{CheckGate, OutputAnswer, OutputFilter, OutputQuestion, RuleSets, hidden};

impl Writer {
    /// What policies hold for the output of a run that has none yet.
    pub(crate) fn judge_by(&mut self, sets: Option<Arc<RuleSets>>) {
        self.judged = true;
        let Some(sets) = sets else { return };
        self.gate = CheckGate::new(&sets).map(Box::new);
        self.filter = (!sets.after.is_empty()).then(|| Box::new(OutputFilter::new(sets)));
    }

    /// What policies let through of a run that another process wrote to before.
    pub(crate) fn judge_on(&mut self, filter: Option<OutputFilter>, gate: Option<CheckGate>) {
        self.judged = true;
        self.filter = filter.map(Box::new);
        self.gate = gate.map(Box::new);
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
        let judged = self.gate.as_ref().map_or(0, |gate| gate.held());
        self.next_index - held - judged
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
        if let Some(gate) = &mut self.gate {
            gate.rewind();
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
            self.enter(row, pending);
        }
        if stopped {
            self.stop_here(pending);
        }
    }

    /// A row that rules let through.
    pub(super) fn enter(&mut self, row: Row, pending: &mut Pending) {
        match &mut self.gate {
            Some(gate) => gate.push(row),
            None => self.take(row, pending),
        }
    }

    /// What checkers shall be asked now.
    pub(super) fn question(&mut self) -> Option<OutputQuestion> {
        if self.ended {
            return None;
        }
        let gate = self.gate.as_mut()?;
        gate.question(&self.tenant, &self.model)
    }

    /// What checkers said.
    pub(super) fn answered(&mut self, answer: &OutputAnswer, pending: &mut Pending) {
        let Some(gate) = &mut self.gate else { return };
        let Some(rows) = gate.pass(answer.number).filter(|_| !self.ended) else {
            return;
        };
        for verdict in &answer.verdicts {
            verdict.add_to(&mut pending.verdicts);
        }
        if answer.blocked {
            for row in rows {
                self.take(hidden(row), pending);
            }
            return self.stop_here(pending);
        }
        for row in rows {
            self.take(row, pending);
        }
    }

    /// A policy ends the run.
    fn stop_here(&mut self, pending: &mut Pending) {
        if self.ended {
            return;
        }
        self.blocked = true;
        let ending = Ending {
            status: RunStatus::Completed,
            finish_reason: Some(FinishReason::ContentFilter),
            reason: String::new(),
        };
        self.end(ending, pending);
    }
}
