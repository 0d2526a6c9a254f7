//! What a worker's frames mean for the runs of a link.

use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weir_protocol::worker::{
    Rejected, Row, StepOutput, WorkerFrame, WorkerStatus, rejected::Code, worker_frame,
};
use weir_run::{RunId, RunStatus};

use super::session::parse_id;
use super::writer::RowGap;
use super::{Ending, Link};
use crate::clock::now_ms;

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
        self.handle.progressed();
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
        let Some(held) = self.runs.get_mut(&run) else {
            return Ok(());
        };
        let clean = held.pending.frames.is_empty();
        held.writer
            .row(row, &self.handle.endpoint.name, now, &mut held.pending)?;
        if held.writer.started {
            held.submit = None;
        }
        if clean && !held.pending.frames.is_empty() {
            self.dirty.push(run);
        }
        Ok(())
    }

    fn rejected(&mut self, rejected: &Rejected) {
        let Some(run) = parse_id(&rejected.run) else {
            return;
        };
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
        let changed = {
            let mut facts = self.handle.facts.lock();
            let changed = facts.digests != status.loaded_digests;
            if changed {
                facts.digests.clone_from(&status.loaded_digests);
            }
            let computed = |s: &WorkerStatus| s.prompt_tokens + s.output_tokens - s.cached_tokens;
            let tokens = computed(&status).saturating_sub(computed(&facts.status));
            if status.steps > facts.status.steps {
                self.handle.progressed();
            }
            // What several versions computed together says nothing of one of them.
            if let [digest] = status.loaded_digests.as_slice() {
                self.core.queues.computed(digest, tokens);
            }
            facts.status = status;
            changed
        };
        if changed {
            self.core.workers_changed();
        }
    }
}
