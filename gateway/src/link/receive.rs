//! What a worker's frames mean for the runs of a link.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weir_protocol::worker::{
    Rejected, Row, StepOutput, WorkerFrame, WorkerStatus, rejected::Code, worker_frame,
};
use weir_run::{RunId, RunStatus};

use super::session::parse_id;
use super::writer::RowGap;
use super::{Command, Ending, Link};
use crate::clock::now_ms;
use crate::policy::OutputAnswer;

impl Link {
    pub(super) fn receive(&mut self, received: WorkerFrame) {
        self.heard = Instant::now();
        match received.frame {
            Some(worker_frame::Frame::Step(step)) => self.step(step),
            Some(worker_frame::Frame::Rejected(rejected)) => self.rejected(&rejected),
            Some(worker_frame::Frame::Status(status)) => self.status(status),
            Some(worker_frame::Frame::Detached(detached)) => {
                if let Some(run) = parse_id(&detached.run) {
                    self.abandon(run, "another session of this gateway has the run");
                }
            }
            Some(worker_frame::Frame::Pong(_) | worker_frame::Frame::Welcome(_)) | None => {}
        }
    }

    fn step(&mut self, step: StepOutput) {
        let now = now_ms();
        if self.handle.progressed() {
            self.core.workers_changed();
        }
        for row in step.rows {
            let Some(run) = parse_id(&row.run) else {
                continue;
            };
            if let Err(gap) = self.row(run, row, now) {
                tracing::error!(%run, worker = self.name(), error = %gap, "the worker broke the protocol");
                self.cancel(run);
                self.end(
                    run,
                    Ending::new(RunStatus::Failed, "the worker's output has a gap"),
                );
            }
        }
    }

    fn row(&mut self, run: RunId, row: Row, now: u64) -> Result<(), RowGap> {
        if !self.asked.is_empty() && self.asked_row(run, &row) {
            return Ok(());
        }
        let Some(held) = self.runs.get_mut(&run) else {
            return Ok(());
        };
        let clean = held.pending.frames.is_empty();
        let cached = row.started.as_ref().map(|s| u64::from(s.cached_tokens));
        held.writer
            .row(row, &self.handle.endpoint.name, now, &mut held.pending)?;
        if held.writer.started {
            held.submit = None;
            if let Some(dispatch) = held.dispatch.take() {
                let cached = cached.unwrap_or(0);
                self.core.links.missed(&self.handle, &dispatch, cached);
            }
        }
        self.taken_in(run, clean);
        Ok(())
    }

    /// Rows were taken in: what follows for the commit, the worker and those who judge.
    fn taken_in(&mut self, run: RunId, clean: bool) {
        let Some(held) = self.runs.get_mut(&run) else {
            return;
        };
        let blocked = held.writer.take_blocked();
        if clean && !held.pending.frames.is_empty() {
            self.dirty.push(run);
        }
        if let Some(question) = held.writer.question() {
            let handle = Arc::clone(&self.handle);
            self.core.spawn(async move {
                let answer = question.ask().await;
                handle.send(Command::Judged(run, answer)).ok();
            });
        }
        if blocked {
            self.cancel(run);
        }
    }

    /// Checkers answered about a part of a run's output.
    pub(super) fn judged(&mut self, run: RunId, answer: &OutputAnswer) {
        let Some(held) = self.runs.get_mut(&run) else {
            return;
        };
        let clean = held.pending.frames.is_empty();
        held.writer.answered(answer, &mut held.pending);
        self.taken_in(run, clean);
    }

    fn rejected(&mut self, rejected: &Rejected) {
        let Some(run) = parse_id(&rejected.run) else {
            return;
        };
        if self.asked_refused(run, rejected) {
            return;
        }
        let current = self.runs.get(&run).map(|held| held.writer.epoch.0);
        if current != Some(rejected.epoch) {
            return;
        }
        tracing::warn!(%run, worker = self.name(), code = ?rejected.code(), message = rejected.message, "run rejected");
        match rejected.code() {
            Code::StaleEpoch => self.abandon(run, "the worker knows a later epoch of the run"),
            Code::TooLarge | Code::Invalid | Code::Unspecified => {
                let reason = format!("the worker refused the run: {}", rejected.message);
                self.end(run, Ending::new(RunStatus::Failed, reason));
            }
            code => {
                if code == Code::Draining {
                    self.handle.draining.store(true, Ordering::Release);
                }
                self.lose(run, "no worker could take the run");
            }
        }
    }

    fn status(&mut self, status: WorkerStatus) {
        self.handle
            .draining
            .store(status.draining, Ordering::Release);
        let (is_idle, advanced);
        let changed = {
            let mut facts = self.handle.facts.lock();
            let changed = facts.digests != status.loaded_digests;
            if changed && status.loaded.is_empty() {
                facts.digests.clone_from(&status.loaded_digests);
            } else if changed {
                facts.note(&status.loaded);
            }
            let computed = |s: &WorkerStatus| s.prompt_tokens + s.output_tokens - s.cached_tokens;
            let tokens = computed(&status).saturating_sub(computed(&facts.status));
            let steps = status.steps.saturating_sub(facts.status.steps);
            let elapsed_ms = status
                .observed_unix_ms
                .saturating_sub(facts.status.observed_unix_ms);
            let is_busy = |s: &WorkerStatus| s.running > 0;
            if is_busy(&facts.status) && is_busy(&status) {
                facts.pace.observe(steps, tokens, elapsed_ms * 1000);
            }
            is_idle = status.running == 0 && status.waiting == 0;
            advanced = steps > 0;
            // What several versions computed together says nothing of one of them.
            if let [digest] = status.loaded_digests.as_slice() {
                self.core.queues.computed(digest, tokens);
            }
            facts.status = status;
            changed
        };
        // What it says it has counts only while nothing was sent to it.
        let is_free = is_idle && self.handle.in_flight.load(Ordering::Acquire) == 0;
        let is_back = (advanced || is_free) && self.handle.progressed();
        if changed || is_back {
            self.core.workers_changed();
        }
    }
}
