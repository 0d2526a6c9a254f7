//! The parts of a running gateway and what connects them: queue to link, link to store, store to subscribers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_admission::ExpiredWhy;
use weir_identity::Identity;
use weir_run::{RunId, RunStatus};
use weir_store::Store;
use weir_store::fault::point;
use weir_telemetry::trace::Tracer;

use crate::admit::{Next, Queues, TokenizerPool};
use crate::alerts::AlertState;
use crate::audit::AuditSender;
use crate::auth::KeyUse;
use crate::batches::Batches;
use crate::config::Config;
use crate::directory::Directory;
use crate::evidence::Evidence;
use crate::http::receive::Bodies;
use crate::http::secured::Handshakes;
use crate::http::tls::Tls;
use crate::hub::{Hub, Intent, LiveRun, Phase};
use crate::link::{
    Command, Ending, Job, LinkHandle, Outcome, Pending, Said, Writer, append_durably,
    take_over_durably,
};
use crate::links::Links;
use crate::metrics::Metrics;
use crate::recover::Orphans;
use crate::shadow::Shadow;
use crate::snapshot::ServedVersion;
use crate::tables::Tables;
use crate::timers::{Due, Timers};
use crate::trace;

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Tracer,
    pub(crate) directory: ArcSwap<Directory>,
    pub(crate) tables: Tables,
    pub(crate) evidence: Evidence,
    pub(crate) hub: Arc<Hub>,
    pub(crate) queues: Queues,
    pub(crate) links: Links,
    pub(crate) orphans: Orphans,
    /// Boots of dead gateways whose runs are being taken over.
    pub(crate) adopting: parking_lot::Mutex<std::collections::HashSet<String>>,
    pub(crate) timers: Timers,
    pub(crate) tokenizers: TokenizerPool,
    pub(crate) batches: Batches,
    pub(crate) alerts: AlertState,
    pub(crate) key_use: KeyUse,
    pub(crate) shadow: Shadow,
    pub(crate) audit: AuditSender,
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) draining: AtomicBool,
    /// The listener's certificate, where it speaks TLS.
    pub(crate) tls: OnceLock<Tls>,
    pub(crate) handshakes: Handshakes,
    /// What it proves itself with to workers, where they ask for it.
    pub(crate) identity: OnceLock<Arc<Identity>>,
    /// A run ended, or a worker came or went.
    pub(crate) quieter: Notify,
    /// Ends every task of the gateway.
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// The client cancelled it.
pub(crate) const CANCELLED: Intent = Intent {
    status: RunStatus::Cancelled,
    reason: "cancelled by its owner",
};
/// The gateway that served the client is gone, and the client with it.
pub(crate) const LEFT: Intent = Intent {
    status: RunStatus::Cancelled,
    reason: "its client was cut off when its gateway ended",
};
const DEADLINE: Intent = Intent {
    status: RunStatus::Expired,
    reason: "its deadline passed",
};
/// The queue's patience, or its own, ran out.
pub(crate) const QUEUE_WAIT: Intent = Intent {
    status: RunStatus::Expired,
    reason: "it waited longer in the queue than the request or the pool allows",
};

/// More urgent runs came and the queue was full. Nothing was computed for it.
pub(crate) const SHED: Intent = Intent {
    status: RunStatus::Expired,
    reason: "shed: the queue was full and more urgent runs came; send it again later",
};

/// The lag that this adds to evidence is small beside the time in which runs settle.
const SETTLE_EVERY: Duration = Duration::from_millis(500);

impl Core {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Gives waiting runs of a version to workers that have room, and ends those that waited too long.
    pub(crate) fn pump(self: &Arc<Self>, digest: &str) {
        loop {
            let (reserved, held) = self.links.crowd(digest);
            self.queues.hold_back(digest, reserved, held);
            let Some(next) = self.queues.next(digest, &self.links.room(digest)) else {
                return;
            };
            match next {
                Next::Expired(job, ExpiredWhy::MaxWait) => {
                    self.end_unsent(*job, Ending::of(&QUEUE_WAIT));
                }
                Next::Expired(job, ExpiredWhy::Deadline) => {
                    self.end_unsent(*job, Ending::of(&DEADLINE));
                }
                Next::Start(mut job) => {
                    let Some((link, dispatch)) = self.links.route(&job) else {
                        // Every worker with room hangs; the next status, end or timer asks again.
                        let pool = job.pool.clone();
                        self.queues.push_front(&pool, job);
                        return;
                    };
                    let affinity = u64::from(dispatch.affinity_tokens);
                    job.writer.expected = Some((dispatch.predicted_ms, affinity));
                    job.dispatch = Some(dispatch);
                    self.dispatch(job, &link);
                }
            }
        }
    }

    fn dispatch(self: &Arc<Self>, job: Box<Job>, link: &Arc<LinkHandle>) {
        let live = Arc::clone(&job.writer.live);
        let (tenant, tokens) = (job.writer.tenant.clone(), job.writer.reserved_tokens);
        let mut control = live.control.lock();
        if let Some(intent) = control.intent.clone() {
            drop(control);
            self.end_unsent(*job, Ending::of(&intent));
            return;
        }
        if let Some(at) = control.queue_until.take() {
            self.timers.clear(at, live.id, Due::QueueWait);
        }
        control.phase = Phase::On(Arc::clone(link));
        link.occupy(&tenant, tokens);
        self.evidence.sent(live.id, Some(Instant::now()));
        // Sent under the lock: a cancellation that finds the link in `phase` comes after the run.
        if let Err(Command::Submit(job)) = link.send(Command::Submit(job)) {
            link.vacate(&tenant, tokens);
            control.phase = Phase::Queued;
            drop(control);
            self.requeue(*job);
            return;
        }
        point("dispatch.sent");
    }

    /// Queues a run again that its worker lost before it started; under a new epoch, so that the old worker cannot write.
    pub(crate) fn requeue(self: &Arc<Self>, mut job: Job) {
        let core = Arc::clone(self);
        self.tasks.spawn(async move {
            point("requeue.asked");
            match take_over_durably(&*core.store, job.writer.id()).await {
                Ok(Some(epoch)) => {
                    point("requeue.taken_over");
                    job.writer.epoch = epoch;
                    core.queue_first(job);
                }
                Ok(None) => core.abandon(&job.writer.live),
                Err(error) => {
                    tracing::error!(run = %job.writer.id(), %error, "cannot queue the run again");
                    core.abandon(&job.writer.live);
                }
            }
        });
    }

    /// Queues a run before all others. It waits anew, and not without bound.
    pub(crate) fn queue_first(self: &Arc<Self>, mut job: Job) {
        job.dispatch = None;
        self.evidence.sent(job.writer.id(), None);
        let digest = job.digest().to_owned();
        let pool = job.pool.clone();
        let priority = (job.submit.priority as usize).min(2);
        let queue = self.directory.load().pool(&pool).queues[priority];
        self.set_queue_wait(&job.writer.live, queue.max_wait_ms.max(1_000));
        self.queues.push_front(&pool, Box::new(job));
        self.pump(&digest);
    }

    /// Ends a run that is on no worker.
    pub(crate) fn end_unsent(self: &Arc<Self>, mut job: Job, ending: Ending) {
        let core = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut pending = Pending::default();
            let status = ending.status;
            job.writer.end(ending, &mut pending);
            let append = job.writer.append(&pending, crate::clock::now_ms());
            let (store, metrics) = (Arc::clone(&core.store), Arc::clone(&core.metrics));
            point("unsent.appending");
            let outcomes = append_durably(store, metrics, vec![append]).await;
            point("unsent.durable");
            if let Some(Outcome::Done(_)) = outcomes.first() {
                core.hub.publish(&job.writer.live, pending.frames);
                core.ended(&job.writer, status);
            } else {
                tracing::warn!(run = %job.writer.id(), ?outcomes, "could not end the run");
                core.abandon(&job.writer.live);
            }
        });
    }

    /// A run's terminal event is durable and visible.
    pub(crate) fn ended(&self, writer: &Writer, status: RunStatus) {
        self.metrics.ended(writer, status);
        trace::ended(&self.tracer, writer, status);
        self.alerts.touch(&writer.tenant);
        let end = writer.end_of(status);
        self.evidence.ended(writer.id(), end, Instant::now());
        self.forget(&writer.live);
    }

    /// Another process writes to the run: subscribers go on from the store.
    pub(crate) fn abandon(&self, live: &LiveRun) {
        live.moved();
        self.evidence.forget(live.id);
        self.forget(live);
    }

    pub(crate) fn forget(&self, live: &LiveRun) {
        self.hub.close(live.id);
        self.shadow
            .ended(live.id, RunStatus::Interrupted, Said::default);
        let (deadline, queue_until) = {
            let mut control = live.control.lock();
            (control.deadline.take(), control.queue_until.take())
        };
        if let Some(at) = deadline {
            self.timers.clear(at, live.id, Due::Deadline);
        }
        if let Some(at) = queue_until {
            self.timers.clear(at, live.id, Due::QueueWait);
        }
        self.quieter.notify_waiters();
    }

    /// A run shall end as `intent` says, wherever it is now. The first intent counts.
    pub(crate) fn end_soon(self: &Arc<Self>, run: RunId, intent: Intent) {
        let Some(live) = self.hub.find(run) else {
            return;
        };
        let phase = {
            let mut control = live.control.lock();
            control.intent.get_or_insert(intent);
            control.phase.clone()
        };
        match phase {
            Phase::On(link) => {
                link.send(Command::Cancel(run)).ok();
            }
            // Not found: it is on its way somewhere, and whoever has it looks at the intent next.
            Phase::Queued => {
                if let Some(job) = self.queues.remove(run) {
                    let intent = live.control.lock().intent.clone().unwrap_or(CANCELLED);
                    self.end_unsent(*job, Ending::of(&intent));
                }
            }
        }
    }

    /// A version that is served, by its digest.
    pub(crate) fn version(&self, model: &str, digest: &str) -> Option<Arc<ServedVersion>> {
        let directory = self.directory.load();
        directory.models.get(model)?.by_digest(digest).cloned()
    }

    /// The stable version of a model.
    pub(crate) fn stable(&self, model: &str) -> Option<Arc<ServedVersion>> {
        let directory = self.directory.load();
        let route = directory.models.get(model)?;
        route.by_digest(&route.table.stable.digest).cloned()
    }

    /// Runs a task until the gateway stops.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks
            .spawn(async move { stop.run_until_cancelled_owned(task).await });
    }

    /// Settles the runs that are evidence, for ever.
    pub(crate) async fn keep_evidence(self: Arc<Self>) {
        let mut tick = tokio::time::interval(SETTLE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = tick.tick().await;
            self.evidence.settle(now);
        }
    }

    /// Writes when keys were last used, for ever.
    pub(crate) async fn keep_key_uses(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.config.key_use_every).await;
            if let Err(error) = self.key_use.write(&*self.store).await {
                tracing::warn!(%error, "cannot write when keys were last used; it is tried again");
            }
        }
    }

    /// Carries out what falls due, for ever.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            match self.timers.next().await {
                (run, Due::Deadline) => self.end_soon(run, DEADLINE),
                (run, Due::QueueWait) => {
                    let Some(live) = self.hub.find(run) else {
                        continue;
                    };
                    if matches!(live.control.lock().phase, Phase::Queued) {
                        self.end_soon(run, QUEUE_WAIT);
                    }
                }
            }
        }
    }

    /// Notes when a run is due. Wall-clock times become monotonic ones here, so that a clock that jumps later ends nothing.
    pub(crate) fn set_times(&self, live: &LiveRun, deadline_ms: Option<u64>, queue_ms: u64) {
        let now = Instant::now();
        let wall = crate::clock::now_ms();
        let mut control = live.control.lock();
        if let Some(deadline_ms) = deadline_ms {
            let at = now + Duration::from_millis(deadline_ms.saturating_sub(wall));
            control.deadline = Some(at);
            self.timers.set(at, live.id, Due::Deadline);
        }
        drop(control);
        self.set_queue_wait(live, queue_ms);
    }

    /// Notes how long a run may wait in the queue from now on, unless that stands already.
    fn set_queue_wait(&self, live: &LiveRun, queue_ms: u64) {
        let mut control = live.control.lock();
        if control.queue_until.is_some() {
            return;
        }
        let at = Instant::now() + Duration::from_millis(queue_ms);
        control.queue_until = Some(at);
        self.timers.set(at, live.id, Due::QueueWait);
    }

    /// A worker came, went or loaded something.
    pub(crate) fn workers_changed(self: &Arc<Self>) {
        for digest in self.queues.digests() {
            self.pump(&digest);
        }
        self.quieter.notify_waiters();
    }
}
