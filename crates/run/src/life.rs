//! The life cycle: which step may follow which state, and how a run takes on new events.
//!
//! ```text
//! accepted ─start─► running ─end─► completed | cancelled | interrupted | failed | expired
//!     │                │
//!     └────cancel──────┴──► cancelling ─end─► any of them (the model may still win the race)
//! ```

use std::fmt;

use crate::{Epoch, FinishReason, Run, RunStatus, Sequence, Start, Usage, Verdict};

/// What can happen to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A worker takes it up.
    Start,
    /// A worker produces.
    Output,
    /// Its owner asks for its end.
    Cancel,
    /// It ends with this status.
    End(RunStatus),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Output => f.write_str("produce output"),
            Self::Cancel => f.write_str("be cancelled"),
            Self::End(status) => write!(f, "end as {:?}", status.as_str()),
        }
    }
}

/// What the log of a run does not admit: a mistake of the writer, never of the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// The step does not follow from the state.
    #[error("a run that is {from:?}{} cannot {step}", if *started { " and started" } else { "" })]
    Step {
        /// Where the run is.
        from: &'static str,
        /// Whether a worker took it up before.
        started: bool,
        /// What was asked of it.
        step: Step,
    },
    /// A sequence is missing or doubled.
    #[error("expected event {expected}, got {found}")]
    Sequence {
        /// The next free sequence.
        expected: u64,
        /// The one given.
        found: u64,
    },
    /// Not `started`, deltas, terminal event in this order, each only where announced.
    #[error("an event of kind {kind:?} has no place at sequence {sequence}")]
    Order {
        /// The event's kind.
        kind: &'static str,
        /// Its number.
        sequence: u64,
    },
    /// Nothing to add.
    #[error("nothing to append")]
    Empty,
    /// What is billed is not what the log holds, or more than was reserved.
    #[error("{what} would be {found}, at most {limit} fit the log and the reservation")]
    Billing {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        limit: u64,
    },
    /// The index of worker output went backwards.
    #[error("the output index goes back from {from} to {to}")]
    OutputIndex {
        /// Where the run is.
        from: u64,
        /// Where it was sent.
        to: u64,
    },
}

/// The state after a step. `started` tells whether a worker ever took the run up, which `cancelling` alone does not.
///
/// # Errors
/// For every step that is not in the table.
pub fn next(from: RunStatus, started: bool, step: Step) -> Result<RunStatus, Illegal> {
    use RunStatus::{Accepted, Cancelling, Completed, Running};
    match (from, started, step) {
        (Accepted, false, Step::Start) | (Running, true, Step::Output) => Ok(Running),
        (Accepted | Running | Cancelling, _, Step::Cancel)
        | (Cancelling, false, Step::Start)
        | (Cancelling, true, Step::Output) => Ok(Cancelling),
        // Only what a worker took up can complete; the other ends are possible in the queue too.
        (Running | Cancelling, true, Step::End(Completed)) => Ok(Completed),
        (Accepted | Running | Cancelling, _, Step::End(end))
            if end.is_terminal() && end != Completed =>
        {
            Ok(end)
        }
        _ => Err(Illegal::Step {
            from: from.as_str(),
            started,
            step,
        }),
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// A terminal status.
    pub status: RunStatus,
    /// For `Completed`.
    pub finish_reason: Option<FinishReason>,
    /// For the others.
    pub error: Option<String>,
    /// What is billed; equal to the tokens in the log.
    pub usage: Usage,
}

/// New events of a run, in summary.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Who writes.
    pub epoch: Epoch,
    /// Output tokens the events add.
    pub output_tokens: u64,
    /// The run's `output_index` afterwards.
    pub output_index: u64,
    /// Set when a worker took the run up.
    pub started: Option<&'a Start>,
    /// Set when the last event is terminal.
    pub terminal: Option<&'a Terminal>,
    /// What policies decided about these events.
    pub verdicts: &'a [Verdict],
    /// Now.
    pub now_ms: u64,
}

/// Why a run did not take an [`Extension`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotExtended {
    /// Another writer has the run: its epoch.
    Fenced(Epoch),
    /// The run has ended.
    Terminal(RunStatus),
    /// The writer broke the contract.
    Illegal(Illegal),
}

impl From<Illegal> for NotExtended {
    fn from(illegal: Illegal) -> Self {
        Self::Illegal(illegal)
    }
}

/// The part of a run that changes with every append: small, and enough to bring an older row up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of `Run` of the same names")]
pub struct Progress {
    pub status: RunStatus,
    pub epoch: Epoch,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub output_index: u64,
    pub last_sequence: Sequence,
    pub started_at_ms: Option<u64>,
    pub first_token_at_ms: Option<u64>,
}

impl Run {
    /// The part that changes with every append.
    pub fn progress(&self) -> Progress {
        Progress {
            status: self.status,
            epoch: self.epoch,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            output_index: self.output_index,
            last_sequence: self.last_sequence,
            started_at_ms: self.started_at_ms,
            first_token_at_ms: self.first_token_at_ms,
        }
    }

    /// Brings the row up to date.
    pub fn set_progress(&mut self, progress: Progress) {
        let Progress {
            status,
            epoch,
            cached_tokens,
            output_tokens,
            output_index,
            last_sequence,
            started_at_ms,
            first_token_at_ms,
        } = progress;
        self.status = status;
        self.epoch = epoch;
        self.cached_tokens = cached_tokens;
        self.output_tokens = output_tokens;
        self.output_index = output_index;
        self.last_sequence = last_sequence;
        self.started_at_ms = started_at_ms;
        self.first_token_at_ms = first_token_at_ms;
    }

    /// What the run has consumed: what a run that ends now is billed. A run that no worker took up has consumed nothing.
    pub fn usage(&self) -> Usage {
        if self.started_at_ms.is_none() {
            return Usage::default();
        }
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            cost_micros: self.price.cost(
                self.prompt_tokens,
                self.cached_tokens,
                self.output_tokens,
            ),
        }
    }

    /// Takes on new events, given by sequence and kind in order: all of them, or none.
    ///
    /// # Errors
    /// When the writer is fenced, the run has ended, or the events do not continue its log.
    pub fn extend(
        &mut self,
        new: &Extension<'_>,
        events: impl IntoIterator<Item = (Sequence, &'static str)>,
    ) -> Result<(), NotExtended> {
        if self.status.is_terminal() {
            return Err(NotExtended::Terminal(self.status));
        }
        if new.epoch != self.epoch {
            return Err(NotExtended::Fenced(self.epoch));
        }
        let mut after = self.progress();
        let deltas = after.walk(new, events)?;
        after.count(self, new, deltas)?;
        if let Some(terminal) = new.terminal {
            after.end(self, terminal)?;
        }
        self.set_progress(after);
        if let Some(start) = new.started {
            self.decision.worker = Some(start.worker.clone());
            self.decision.expected.predicted_ms = start.predicted_ms;
            self.decision.expected.affinity_tokens = start.affinity_tokens;
        }
        for verdict in new.verdicts {
            verdict.add_to(&mut self.verdicts);
        }
        if let Some(terminal) = new.terminal {
            self.finish_reason = terminal.finish_reason;
            self.error.clone_from(&terminal.error);
            self.cost_micros = Some(terminal.usage.cost_micros);
            self.finished_at_ms = Some(new.now_ms);
            // Retention counts from the end: a run longer than its retention is still replayable when it ends.
            let retention_ms = self.events_expire_at_ms.saturating_sub(self.created_at_ms);
            self.events_expire_at_ms = new.now_ms.saturating_add(retention_ms);
        }
        Ok(())
    }

    /// Records the intent to cancel; whether that changed anything.
    pub fn cancel(&mut self) -> bool {
        let next = next(self.status, self.started_at_ms.is_some(), Step::Cancel);
        let changed = next.as_ref().is_ok_and(|status| *status != self.status);
        self.status = next.unwrap_or(self.status);
        changed
    }

    /// Hands the run to a new writer and tells its epoch; `None` when the run has ended.
    pub fn take_over(&mut self) -> Option<Epoch> {
        if self.status.is_terminal() {
            return None;
        }
        self.epoch = Epoch(self.epoch.0.checked_add(1)?);
        Some(self.epoch)
    }
}

impl Progress {
    fn step(&mut self, step: Step) -> Result<(), Illegal> {
        self.status = next(self.status, self.started_at_ms.is_some(), step)?;
        Ok(())
    }

    /// Follows sequences and kinds, up to and without the terminal event's own checks; how many deltas there are.
    fn walk(
        &mut self,
        new: &Extension<'_>,
        events: impl IntoIterator<Item = (Sequence, &'static str)>,
    ) -> Result<u64, Illegal> {
        let mut deltas = 0_u64;
        let mut announced = new.started;
        let mut terminal = new.terminal;
        let mut empty = true;
        for (sequence, kind) in events {
            let expected = self.last_sequence.0.saturating_add(1);
            if sequence.0 != expected {
                return Err(Illegal::Sequence {
                    expected,
                    found: sequence.0,
                });
            }
            let ended = terminal.is_none() && new.terminal.is_some();
            match kind {
                "started" if announced.is_some() && !ended => {
                    self.step(Step::Start)?;
                    self.started_at_ms = Some(new.now_ms);
                    self.cached_tokens = announced.take().map_or(0, |start| start.cached_tokens);
                }
                "delta" if !ended => {
                    self.step(Step::Output)?;
                    deltas = deltas.saturating_add(1);
                    self.first_token_at_ms.get_or_insert(new.now_ms);
                }
                kind if terminal.is_some_and(|end| end.status.as_str() == kind) => {
                    self.step(Step::End(
                        terminal.take().map_or(self.status, |end| end.status),
                    ))?;
                }
                kind => {
                    return Err(Illegal::Order {
                        kind,
                        sequence: sequence.0,
                    });
                }
            }
            self.last_sequence = sequence;
            empty = false;
        }
        match (empty, announced, terminal) {
            (true, ..) => Err(Illegal::Empty),
            (_, Some(_), _) => Err(self.missing("started")),
            (_, _, Some(end)) => Err(self.missing(end.status.as_str())),
            (false, None, None) => Ok(deltas),
        }
    }

    fn missing(&self, kind: &'static str) -> Illegal {
        Illegal::Order {
            kind,
            sequence: self.last_sequence.0.saturating_add(1),
        }
    }

    /// Adds the output and holds it against the reservation.
    fn count(&mut self, run: &Run, new: &Extension<'_>, deltas: u64) -> Result<(), Illegal> {
        if new.output_index < self.output_index {
            return Err(Illegal::OutputIndex {
                from: self.output_index,
                to: new.output_index,
            });
        }
        self.output_index = new.output_index;
        self.output_tokens = self.output_tokens.saturating_add(new.output_tokens);
        let most_now = if deltas == 0 { 0 } else { u64::MAX };
        at_most("output tokens without a delta", new.output_tokens, most_now)?;
        let reserved = run.reserved_tokens.saturating_sub(run.prompt_tokens);
        at_most("output tokens", self.output_tokens, reserved)?;
        at_most("cached tokens", self.cached_tokens, run.prompt_tokens)
    }

    /// Holds what is billed against the log.
    fn end(&self, run: &Run, terminal: &Terminal) -> Result<(), Illegal> {
        let usage = &terminal.usage;
        at_most("output tokens", usage.output_tokens, self.output_tokens)?;
        at_most(
            "unbilled output tokens",
            self.output_tokens.saturating_sub(usage.output_tokens),
            0,
        )?;
        at_most("prompt tokens", usage.prompt_tokens, run.prompt_tokens)?;
        at_most("cached tokens", usage.cached_tokens, usage.prompt_tokens)?;
        at_most("cost", usage.cost_micros, run.reserved_micros)
    }
}

fn at_most(what: &'static str, found: u64, limit: u64) -> Result<(), Illegal> {
    if found <= limit {
        Ok(())
    } else {
        Err(Illegal::Billing { what, found, limit })
    }
}

#[cfg(test)]
mod tests;
