//! Runs that were live when the last gateway of this store ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;
use weir_protocol::worker::Submit;
use weir_run::{RunId, RunStatus, WorkOrder};
use weir_store::fault::{broken, point};
use weir_store::{OpenRun, StoreError};

use crate::clock::now_ms;
use crate::core::{CANCELLED, Core, LEFT};
use crate::link::{Ending, Job, Writer, take_over_durably};
use crate::links::Links;

/// How long runs found at start wait for the first snapshot that names workers.
const WORKERS_WITHIN: Duration = Duration::from_secs(30);

/// How long a gateway that starts waits for sessions with the workers it knows, before it takes part without them.
const FIRST_SESSIONS: Duration = Duration::from_secs(5);
/// Runs after which recovery pauses.
const PAUSE_AFTER: usize = 32;

/// Live runs of the store that no link has yet.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<HashMap<RunId, Job>>);

impl Orphans {
    pub(crate) fn take(&self, run: RunId) -> Option<Job> {
        self.0.lock().remove(&run)
    }

    fn take_all(&self) -> Vec<Job> {
        let mut all: Vec<Job> = self.0.lock().drain().map(|(_, job)| job).collect();
        // Ids sort by time: the queue's order is kept.
        all.sort_by_key(|job| job.writer.id());
        all
    }
}

/// The worker protocol's message for a run, from what was stored of it.
pub(crate) fn submit_of(run: RunId, epoch: u64, work: WorkOrder) -> Submit {
    // What was stored was encoded by this program; a record that does not decode asks for nothing and is refused by the worker.
    let submit = Submit::decode(work.submit.as_slice()).unwrap_or_default();
    Submit {
        run: bytes::Bytes::copy_from_slice(&run.to_bytes()),
        epoch,
        prompt: work.prompt,
        ..submit
    }
}

impl Core {
    /// Makes the store's live runs known again. They wait for the workers that may hold them.
    pub(crate) async fn find_orphans(self: &Arc<Self>) -> Result<usize, StoreError> {
        // Where there are other gateways, live runs may be theirs: those of this one's last life are taken over as any dead one's.
        if self.store.replicas().is_some() {
            return Ok(0);
        }
        let open = self.store.open_runs().await?;
        point("recover.found");
        let count = open.len();
        for open in open {
            let id = open.run.id;
            let job = self.revive(open);
            self.orphans.0.lock().insert(id, job);
        }
        Ok(count)
    }

    /// Makes a live run of the store known here.
    pub(crate) fn revive(&self, OpenRun { run, work }: OpenRun) -> Job {
        let live = self.hub.open(run.id, run.last_sequence.0);
        if run.status == RunStatus::Cancelling {
            live.control.lock().intent = Some(CANCELLED);
        } else if work.attended {
            // Whoever waited for it was connected to the gateway that is gone, and nobody else can know of it.
            live.control.lock().intent = Some(LEFT);
        }
        let waited = now_ms().saturating_sub(run.created_at_ms);
        let max_wait = work.max_queue_ms.unwrap_or(u64::MAX / 2);
        let adopt = self.config.adopt_within.as_millis() as u64;
        self.set_times(
            &live,
            run.deadline_ms,
            max_wait.saturating_sub(waited).clamp(adopt * 2, 86_400_000),
        );
        let submit = submit_of(run.id, run.epoch.0, work);
        let mut writer = Writer::new(live, &run);
        writer.trace = crate::trace::RunTrace::decode(&submit.trace);
        Job {
            writer,
            submit,
            pool: run.pool,
            dispatch: None,
            attempts: 0,
        }
    }

    /// Waits until every worker had its say, or long enough, then decides on the runs nobody holds: what never started is queued
    /// again, what started ends as interrupted; a limited number of them per second.
    pub(crate) async fn settle_orphans(self: Arc<Self>) {
        self.wait_for_workers().await;
        point("recover.settling");
        if broken("never-end") {
            return;
        }
        let orphans = self.orphans.take_all();
        let mut settled = 0;
        for mut job in orphans {
            settled += 1;
            if settled % PAUSE_AFTER == 0 {
                self.recovery_pause(PAUSE_AFTER).await;
            }
            match take_over_durably(&*self.store, job.writer.id()).await {
                Ok(Some(epoch)) => {
                    point("recover.taken_over");
                    job.writer.epoch = epoch;
                    self.settle(job, "the gateway restarted and no worker holds the run");
                }
                Ok(None) => self.abandon(&job.writer.live),
                Err(error) => {
                    tracing::error!(run = %job.writer.id(), %error, "cannot take the run over");
                    self.abandon(&job.writer.live);
                }
            }
        }
    }

    /// Waits until there are workers and every one had its say, or long enough.
    pub(crate) async fn wait_for_workers(&self) {
        // Whoever starts a gateway may take a while to say which workers there are.
        let asked = Instant::now() + WORKERS_WITHIN;
        self.wait_until(asked, |links| !links.is_empty()).await;
        let until = Instant::now() + self.config.adopt_within;
        self.wait_until(until, Links::all_welcomed).await;
    }

    /// Waits until every worker that is known was reached, if there are any, or long enough: one that takes part before has to refuse what
    /// others can serve, and whose clients they would have been.
    pub(crate) async fn meet_workers(&self) {
        let until = Instant::now() + FIRST_SESSIONS;
        self.wait_until(until, |links| links.is_empty() || links.all_welcomed())
            .await;
    }

    /// Decides on a run that no worker holds and whose writer this gateway is.
    pub(crate) fn settle(self: &Arc<Self>, mut job: Job, why: &'static str) {
        let intent = job.writer.live.control.lock().intent.clone();
        if let Some(intent) = intent {
            self.end_unsent(job, Ending::of(&intent));
        } else if job.writer.started && broken("regenerate") {
            job.writer.begin_again();
            self.queue_first(job);
        } else if job.writer.started {
            self.end_unsent(job, Ending::new(RunStatus::Interrupted, why));
        } else {
            self.queue_first(job);
        }
    }

    /// Holds recovery back to its rate after this many runs.
    pub(crate) async fn recovery_pause(&self, runs: usize) {
        let rate = self.config.recover_per_second.max(1);
        let share = f64::from(u32::try_from(runs).unwrap_or(u32::MAX)) / f64::from(rate);
        tokio::time::sleep(Duration::from_secs_f64(share)).await;
    }

    async fn wait_until(&self, until: Instant, holds: impl Fn(&Links) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.quieter.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if holds(&self.links) || tokio::time::timeout_at(until, changed).await.is_err() {
                return;
            }
        }
    }
}
