//! The one writer of a run: turns a worker's rows into events. It sees no clock, no store and no socket.

use std::sync::Arc;

use weir_protocol::worker::{Row, finish::Reason};
use weir_run::{
    Epoch, EventKind, FinishReason, Guesses, Price, Run, RunId, RunStatus, Sequence, Start,
    Terminal, Usage, Verdict,
};
use weir_store::fault::broken;
use weir_store::{Append, EventRecord};

pub(super) use super::pieces::RowGap;
use super::pieces::{prompt_logprob, token_logprob, tool_call};
use crate::evidence::Looping;
use crate::hub::{Frame, Intent, LiveRun, encode};
use crate::metrics::Meters;
use crate::policy::{CheckGate, OutputFilter};
use crate::trace::RunTrace;

/// State of a run's log at its writing end.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, not a state in disguise"
)]
pub(crate) struct Writer {
    pub(crate) live: Arc<LiveRun>,
    pub(crate) tenant: String,
    pub(crate) model: String,
    pub(crate) version: u32,
    /// Where what it is like is counted, once something is.
    pub(crate) meters: Option<Arc<Meters>>,
    /// The trace that it is a part of, where that is sent.
    pub(crate) trace: Option<Box<RunTrace>>,
    pub(crate) epoch: Epoch,
    pub(crate) created_at_ms: u64,
    pub(crate) reserved_tokens: u64,
    pub(crate) started: bool,
    prompt_tokens: u64,
    cached_tokens: u64,
    pub(super) output_tokens: u64,
    price: Price,
    pub(super) choices: u32,
    pub(super) any_length: bool,
    /// Of a run that was taken over: choices whose end is to come.
    pub(super) open_choices: Option<u32>,
    worst: Option<(Reason, String)>,
    /// Rows taken in so far, durable or not.
    pub(crate) next_index: u64,
    /// What policies let through; rows that wait in it are taken in and not in the log.
    pub(super) filter: Option<Box<OutputFilter>>,
    /// What checkers have not let through yet; rows that wait in it are neither in the log.
    pub(super) gate: Option<Box<CheckGate>>,
    pub(super) judged: bool,
    /// A policy ended the run, and its worker does not know yet.
    pub(super) blocked: bool,
    pub(super) next_sequence: u64,
    pub(super) ended: bool,
    /// Of the worker it was sent to: ms to the first token, and tokens that it was thought to have.
    pub(crate) expected: Option<(u64, u64)>,
    /// Of the first choice: how its text begins, and whether it goes round in circles.
    pub(super) beginning: String,
    pub(super) looping: Looping,
    /// Tokens of it that its worker guessed ahead.
    guesses: Option<Guesses>,
    /// Whether it has text or calls of tools: a token that only ends it is neither.
    pub(super) has_content: bool,
}

/// How a run ends, apart from its usage.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) status: RunStatus,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) reason: String,
}

impl Ending {
    pub(crate) fn new(status: RunStatus, reason: impl Into<String>) -> Self {
        Self {
            status,
            finish_reason: None,
            reason: reason.into(),
        }
    }

    pub(crate) fn of(intent: &Intent) -> Self {
        Self::new(intent.status, intent.reason)
    }
}

/// Events of one run that are not durable yet.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) frames: Vec<Frame>,
    pub(super) rows: u64,
    output_tokens: u64,
    started: Option<Start>,
    terminal: Option<Terminal>,
    pub(super) verdicts: Vec<Verdict>,
}

impl Pending {
    /// What policies decided about it.
    pub(crate) fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    pub(crate) fn output_tokens(&self) -> u64 {
        self.output_tokens
    }
}

impl Writer {
    pub(crate) fn new(live: Arc<LiveRun>, run: &Run) -> Self {
        Self {
            live,
            tenant: run.tenant.clone(),
            model: run.model.clone(),
            version: run.model_version,
            meters: None,
            trace: None,
            epoch: run.epoch,
            created_at_ms: run.created_at_ms,
            reserved_tokens: run.reserved_tokens,
            started: run.started_at_ms.is_some(),
            prompt_tokens: run.prompt_tokens,
            cached_tokens: run.cached_tokens,
            output_tokens: run.output_tokens,
            price: run.price,
            choices: run.choices,
            any_length: false,
            open_choices: None,
            worst: None,
            next_index: run.output_index,
            filter: None,
            gate: None,
            judged: false,
            blocked: false,
            next_sequence: run.last_sequence.0 + 1,
            ended: run.status.is_terminal(),
            expected: None,
            beginning: String::new(),
            looping: Looping::default(),
            guesses: None,
            has_content: false,
        }
    }

    /// Takes every row in again that is in the log already: what the checks must find out.
    pub(crate) fn begin_again(&mut self) {
        self.next_index = 0;
    }

    pub(crate) fn id(&self) -> RunId {
        self.live.id
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// Output tokens it may make.
    pub(crate) fn ceiling(&self) -> u64 {
        self.reserved_tokens.saturating_sub(self.prompt_tokens)
    }

    pub(crate) fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    fn push(&mut self, pending: &mut Pending, kind: &EventKind) {
        pending.frames.push(encode(self.next_sequence, kind));
        self.next_sequence += 1;
    }

    /// Takes a row in. Rows of another epoch, rows seen before and rows after the end change nothing.
    pub(crate) fn row(
        &mut self,
        row: Row,
        worker: &str,
        now_ms: u64,
        pending: &mut Pending,
    ) -> Result<(), RowGap> {
        let foreign = row.epoch != self.epoch.0 && !broken("skip-fence");
        if foreign || row.index < self.next_index || self.ended {
            return Ok(());
        }
        if row.index > self.next_index {
            return Err(RowGap {
                expected: self.next_index,
                found: row.index,
            });
        }
        self.next_index += 1;
        self.start(&row, worker, now_ms, pending);
        self.notice(&row);
        match &mut self.filter {
            None => self.enter(row, pending),
            Some(filter) => {
                filter.push(row);
                self.release(pending);
            }
        }
        Ok(())
    }

    /// Makes a row an event.
    pub(super) fn take(&mut self, row: Row, pending: &mut Pending) {
        if self.ended {
            return;
        }
        pending.rows += 1;
        let finish = row.finish.as_ref();
        let finish_reason = finish.and_then(|finish| match finish.reason() {
            Reason::Stop => Some(FinishReason::Stop),
            Reason::Length => Some(FinishReason::Length),
            _ => None,
        });
        self.any_length |= finish_reason == Some(FinishReason::Length);
        if let Some(finish) = finish {
            self.open_choices = self.open_choices.map(|open| open.saturating_sub(1));
            if finish_reason.is_none() {
                self.worst = Some((finish.reason(), finish.message.clone()));
            }
        }
        let choice_finish_reason = finish_reason.filter(|_| self.choices > 1 && self.started);
        let run_finished = row.run_finished;
        self.guesses = row.guesses.map(|guesses| Guesses {
            drafted_tokens: guesses.drafted,
            accepted_tokens: guesses.accepted,
        });
        if row.tokens > 0
            || (self.started && !row.text.is_empty())
            || !row.tool_calls.is_empty()
            || !row.prompt_logprobs.is_empty()
            || choice_finish_reason.is_some()
        {
            self.output_tokens += u64::from(row.tokens);
            pending.output_tokens += u64::from(row.tokens);
            let delta = EventKind::Delta {
                text: row.text,
                tokens: row.tokens,
                choice: row.choice,
                logprobs: row.logprob.map(|logprob| vec![token_logprob(logprob)]),
                prompt_logprobs: row
                    .prompt_logprobs
                    .into_iter()
                    .map(prompt_logprob)
                    .collect(),
                tool_calls: row.tool_calls.into_iter().map(tool_call).collect(),
                choice_finish_reason,
            };
            self.push(pending, &delta);
        }
        if run_finished {
            let ending = self.natural_ending();
            self.end(ending, pending);
        }
    }

    fn start(&mut self, row: &Row, worker: &str, now_ms: u64, pending: &mut Pending) {
        // A run that was cancelled in the worker's queue ends without having begun.
        let begins = row.started.is_some() || row.tokens > 0;
        if self.started || !begins {
            return;
        }
        self.started = true;
        let cached = row.started.map_or(0, |s| u64::from(s.cached_tokens));
        self.cached_tokens = cached.min(self.prompt_tokens);
        let (predicted_ms, affinity_tokens) = self.expected.unzip();
        pending.started = Some(Start {
            cached_tokens: self.cached_tokens,
            worker: worker.to_owned(),
            predicted_ms,
            affinity_tokens,
        });
        let queue_ms = now_ms.saturating_sub(self.created_at_ms);
        self.push(pending, &EventKind::Started { queue_ms });
    }

    /// The end as the worker reports it. What was asked for decides what a cancellation is called.
    fn natural_ending(&self) -> Ending {
        match &self.worst {
            None if self.open_choices.is_some_and(|open| open > 0) => Ending::new(
                RunStatus::Failed,
                "the engine could not carry the run out: one of its choices failed before the gateway restarted",
            ),
            None => Ending {
                status: RunStatus::Completed,
                finish_reason: Some(if self.any_length {
                    FinishReason::Length
                } else {
                    FinishReason::Stop
                }),
                reason: String::new(),
            },
            Some((Reason::Cancelled, message)) => match &self.live.control.lock().intent {
                Some(intent) => Ending::of(intent),
                None => Ending::new(
                    RunStatus::Interrupted,
                    format!("the worker gave the run up: {message}"),
                ),
            },
            Some((_, message)) => Ending::new(
                RunStatus::Failed,
                format!("the engine could not carry the run out: {message}"),
            ),
        }
    }

    /// Ends the run here and now; only the first end counts.
    pub(crate) fn end(&mut self, ending: Ending, pending: &mut Pending) {
        if self.ended {
            return;
        }
        if let Some(filter) = &mut self.filter {
            // Rows that wait were computed and are billed; what may be half a secret is not shown.
            filter.abandon();
            let released = filter.release();
            pending.verdicts.append(&mut filter.take_verdicts());
            for row in released {
                self.enter(row, pending);
            }
        }
        // What nobody has judged is not shown either.
        let waiting = self.gate.as_mut().map(|gate| gate.hide());
        for row in waiting.unwrap_or_default() {
            self.take(row, pending);
        }
        if self.ended {
            return;
        }
        self.ended = true;
        let usage = self.usage();
        let kind = match ending.finish_reason {
            Some(finish_reason) => EventKind::Completed {
                status: RunStatus::Completed,
                finish_reason,
                usage,
                guesses: self.guesses,
            },
            None => EventKind::Ended {
                status: ending.status,
                reason: ending.reason.clone(),
                usage,
            },
        };
        self.push(pending, &kind);
        let error = ending.finish_reason.is_none().then_some(ending.reason);
        pending.terminal = Some(Terminal {
            status: ending.status,
            finish_reason: ending.finish_reason,
            error,
            usage,
        });
    }

    /// What was consumed. A prompt is consumed once a worker took it up.
    pub(crate) fn usage(&self) -> Usage {
        let prompt_tokens = if self.started { self.prompt_tokens } else { 0 };
        let cached_tokens = self.cached_tokens.min(prompt_tokens);
        let output_tokens = self.output_tokens;
        Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens,
            cost_micros: self.price.cost(prompt_tokens, cached_tokens, output_tokens),
        }
    }

    /// What the store is asked to do for `pending`.
    pub(crate) fn append(&self, pending: &Pending, now_ms: u64) -> Append {
        let events: Vec<EventRecord> = pending.frames.iter().map(Frame::record).collect();
        debug_assert!(
            events
                .last()
                .is_none_or(|e| e.sequence == Sequence(self.next_sequence - 1))
        );
        Append {
            run: self.id(),
            epoch: self.epoch,
            events,
            output_tokens: pending.output_tokens,
            output_index: self.logged(),
            started: pending.started.clone(),
            terminal: pending.terminal.clone(),
            verdicts: pending.verdicts.clone(),
            now_ms,
        }
    }
}
