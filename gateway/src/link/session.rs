//! The task behind a link: one loop over the worker's frames, the gateway's commands, and the store's answers.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use weir_admission::Finished;
use weir_protocol::frames::{PROTOCOL, run_bytes};
use weir_protocol::worker::{
    Cancel, GatewayFrame, Hello, Ping, Progress, Rejected, Row, StepOutput, Submit, WorkerFrame,
    WorkerStatus, progress, rejected::Code, worker_frame,
};
use weir_run::{RunId, RunStatus};

use super::commit::{InFlight, Outcome, append_durably};
use super::connect::{Conn, ConnectError, connect};
use super::writer::{Pending, RowGap};
use super::{Command, Ending, Job, LinkHandle, Writer};
use crate::clock::now_ms;
use crate::core::{CANCELLED, Core};
use crate::hub::Phase;

/// A link's own state. Only its task touches it.
pub(crate) struct Link {
    pub(super) core: Arc<Core>,
    pub(super) handle: Arc<LinkHandle>,
    commands: mpsc::UnboundedReceiver<Command>,
    pub(super) runs: HashMap<RunId, Held>,
    /// Runs with something pending.
    dirty: Vec<RunId>,
    in_flight: Option<InFlight>,
    pub(super) conn: Option<Conn>,
    /// The worker process of the last session.
    pub(super) boot: String,
    session_epoch: u64,
    heard: Instant,
    lost: Option<Instant>,
    backoff: Duration,
    retiring: bool,
}

/// A run on this link.
pub(crate) struct Held {
    pub(crate) writer: Writer,
    /// Kept until the worker started it, so that it can go to another one.
    pub(crate) submit: Option<Submit>,
    pub(crate) digest: String,
    pub(crate) pool: String,
    pub(crate) attempts: u32,
    pub(crate) sent: Instant,
    /// When tokens of it became visible last.
    pub(crate) shown: Option<Instant>,
    pub(crate) pending: Pending,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Conn, ConnectError>> + Send>>;

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(100);
/// A run that this many workers lost before it started is not tried again.
const MAX_ATTEMPTS: u32 = 3;

impl Link {
    pub(crate) fn new(
        core: Arc<Core>,
        handle: Arc<LinkHandle>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        Self {
            core,
            handle,
            commands,
            runs: HashMap::new(),
            dirty: Vec::new(),
            in_flight: None,
            conn: None,
            boot: String::new(),
            session_epoch: 0,
            heard: Instant::now(),
            lost: None,
            backoff: FIRST_BACKOFF,
            retiring: false,
        }
    }

    /// Runs until the link is retired and has no runs left.
    pub(crate) async fn run(mut self) {
        let mut connecting = self.connecting();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.core.stop.clone();
        while !stop.is_cancelled() && (!self.retiring || !self.runs.is_empty()) {
            self.commit();
            tokio::select! {
                outcomes = in_flight(&mut self.in_flight) => self.committed(outcomes),
                received = next_frame(&mut self.conn) => if let Some(received) = received {
                    self.receive(received);
                } else {
                    self.disconnected();
                    connecting = self.connecting();
                },
                attempt = &mut connecting, if self.conn.is_none() => match attempt {
                    Ok(conn) => self.connected(conn).await,
                    Err(error) => {
                        tracing::debug!(worker = self.name(), error = &error as &dyn std::error::Error, "no session");
                        connecting = self.connecting();
                    }
                },
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => self.retiring = true,
                },
                () = stop.cancelled() => {}
                _ = tick.tick() => if self.watch() {
                    connecting = self.connecting();
                },
            }
        }
        self.handle.connected.store(false, Ordering::Release);
        self.flush().await;
    }

    pub(super) fn name(&self) -> &str {
        &self.handle.endpoint.name
    }

    fn connecting(&mut self) -> Connecting {
        let wait = self.backoff;
        self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        // Later sessions have larger numbers, also after a restart of the gateway.
        self.session_epoch = now_ms().max(self.session_epoch + 1);
        let hello = Hello {
            gateway: self.core.store.identity(),
            session_epoch: self.session_epoch,
            protocol: PROTOCOL,
            replica: self.core.config.replica.clone(),
        };
        let address = self.handle.endpoint.address.clone();
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            connect(address, hello).await
        })
    }

    async fn connected(&mut self, conn: Conn) {
        self.heard = Instant::now();
        self.lost = None;
        self.backoff = FIRST_BACKOFF;
        // What was received in the last session becomes durable under its epoch before a new epoch is asked for.
        self.flush().await;
        self.conn = Some(conn);
        self.reconcile().await;
        self.handle.connected.store(true, Ordering::Release);
        self.handle.welcomed.store(true, Ordering::Release);
        tracing::info!(worker = self.name(), boot = %self.boot, runs = self.runs.len(), "session open");
        self.core.workers_changed();
    }

    fn disconnected(&mut self) {
        self.conn = None;
        self.handle.connected.store(false, Ordering::Release);
        self.lost = Some(Instant::now());
        tracing::warn!(worker = self.name(), runs = self.runs.len(), "session lost");
    }

    /// Regular checks; whether the session was given up.
    fn watch(&mut self) -> bool {
        let now = Instant::now();
        if let Some(lost) = self.lost
            && now - lost >= self.core.config.reattach_within
        {
            self.lost = None;
            self.give_up("the worker's session was lost and did not come back in time");
        }
        if self.conn.is_none() {
            return false;
        }
        let silence = now - self.heard;
        if silence >= self.core.config.worker_silence {
            tracing::warn!(worker = self.name(), ?silence, "the worker says nothing");
            self.disconnected();
            return true;
        }
        if silence >= self.core.config.worker_silence / 4 {
            self.send(Ping { nonce: 0 });
        }
        false
    }

    pub(super) fn send(&self, message: impl Into<GatewayFrame>) {
        if let Some(conn) = &self.conn {
            // A closed session is noticed by its receiving end.
            conn.outbound.send(message.into()).ok();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(job) => self.submit(*job),
            Command::Cancel(run) => self.cancel(run),
            Command::Died => {
                if self.conn.is_none() {
                    self.lost = None;
                    self.give_up("the worker process died");
                }
            }
            Command::Retire => self.retiring = true,
        }
    }

    fn submit(&mut self, job: Job) {
        let Job {
            writer,
            mut submit,
            pool,
            attempts,
        } = job;
        submit.epoch = writer.epoch.0;
        submit.credit = writer.next_index + self.core.config.row_window;
        let kept = submit.clone();
        self.send(submit);
        let held = Held {
            writer,
            digest: kept.version_digest.clone(),
            submit: Some(kept),
            pool,
            attempts,
            sent: Instant::now(),
            shown: None,
            pending: Pending::default(),
        };
        let id = held.writer.id();
        self.runs.insert(id, held);
        if self.conn.is_none() {
            // The session went away while the run was on its way here.
            self.lost.get_or_insert_with(Instant::now);
        }
    }

    pub(super) fn cancel(&mut self, run: RunId) {
        if let Some(held) = self.runs.get(&run) {
            let cancel = Cancel {
                run: id_bytes(run),
                epoch: held.writer.epoch.0,
            };
            self.send(cancel);
        }
    }

    fn receive(&mut self, received: WorkerFrame) {
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

    /// Ends a run from this side.
    pub(super) fn end(&mut self, run: RunId, ending: Ending) {
        if let Some(held) = self.runs.get_mut(&run) {
            let clean = held.pending.frames.is_empty();
            held.writer.end(ending, &mut held.pending);
            if clean && !held.pending.frames.is_empty() {
                self.dirty.push(run);
            }
        }
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

    /// Every run of this link is lost: what never started goes to another worker, the rest ends with what it has.
    pub(super) fn give_up(&mut self, reason: &'static str) {
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        for run in runs {
            self.lose(run, reason);
        }
    }

    pub(super) fn lose(&mut self, run: RunId, reason: &'static str) {
        let Some(held) = self.runs.get_mut(&run) else {
            return;
        };
        let intent = held.writer.live.control.lock().intent.clone();
        if let Some(intent) = intent {
            return self.end(run, Ending::of(&intent));
        }
        if held.writer.started || held.submit.is_none() || held.attempts >= MAX_ATTEMPTS {
            return self.end(run, Ending::new(RunStatus::Interrupted, reason));
        }
        let Some(Held {
            writer,
            submit: Some(submit),
            pool,
            attempts,
            ..
        }) = self.runs.remove(&run)
        else {
            return;
        };
        self.handle.vacate(writer.reserved_tokens);
        writer.live.control.lock().phase = Phase::Queued;
        self.core.requeue(Job {
            writer,
            submit,
            pool,
            attempts: attempts + 1,
        });
    }

    /// Somebody else writes to this run now.
    pub(super) fn abandon(&mut self, run: RunId, why: &str) {
        if let Some(held) = self.runs.remove(&run) {
            tracing::warn!(%run, why, "run given up to another writer");
            self.handle.vacate(held.writer.reserved_tokens);
            self.core.abandon(&held.writer.live);
        }
    }

    /// Starts an append of everything pending, unless one is under way: what comes meanwhile shares the next one.
    fn commit(&mut self) {
        if self.in_flight.is_some() || self.dirty.is_empty() {
            return;
        }
        let now = now_ms();
        let mut runs = Vec::with_capacity(self.dirty.len());
        let mut appends = Vec::with_capacity(self.dirty.len());
        for run in self.dirty.drain(..) {
            if let Some(held) = self.runs.get_mut(&run) {
                let pending = std::mem::take(&mut held.pending);
                appends.push(held.writer.append(&pending, now));
                runs.push((run, pending));
            }
        }
        let (store, metrics) = (Arc::clone(&self.core.store), Arc::clone(&self.core.metrics));
        self.in_flight = Some(InFlight {
            runs,
            future: Box::pin(append_durably(store, metrics, appends)),
        });
    }

    async fn flush(&mut self) {
        loop {
            self.commit();
            let Some(in_flight) = &mut self.in_flight else {
                return;
            };
            let outcomes = in_flight.future.as_mut().await;
            self.committed(outcomes);
        }
    }

    /// Durable: now it may be seen, and the worker may forget it and send more.
    fn committed(&mut self, outcomes: Vec<Outcome>) {
        let Some(InFlight { runs, .. }) = self.in_flight.take() else {
            return;
        };
        let mut progress = Vec::with_capacity(runs.len());
        for ((run, pending), outcome) in runs.into_iter().zip(outcomes) {
            let status = match outcome {
                Outcome::Done(status) => status,
                Outcome::Lost(why) => {
                    self.abandon(run, &why);
                    continue;
                }
            };
            let Some(held) = self.runs.get_mut(&run) else {
                continue;
            };
            // Rows that came meanwhile are pending; those before them are durable.
            let acknowledged = held.writer.next_index - held.pending.rows();
            progress.push(progress::Run {
                run: id_bytes(run),
                acknowledged,
                credit: acknowledged + self.core.config.row_window,
            });
            let created_at_ms = held.writer.created_at_ms;
            self.core
                .metrics
                .saw(created_at_ms, &mut held.shown, &pending.frames);
            let ended = pending.is_terminal();
            self.core.hub.publish(&held.writer.live, pending.frames);
            if ended {
                self.ended(run, status);
            } else if status == RunStatus::Cancelling && held.writer.live.intend(CANCELLED) {
                self.cancel(run);
            }
        }
        self.send(Progress { runs: progress });
    }

    fn ended(&mut self, run: RunId, status: RunStatus) {
        if let Some(held) = self.runs.remove(&run) {
            self.handle.vacate(held.writer.reserved_tokens);
            self.core.ended(&held.writer, status);
            self.core.queues.finished(
                &held.digest,
                &Finished {
                    output_tokens: held.writer.output_tokens() as u32,
                    ceiling: held.writer.ceiling() as u32,
                    service_ms: held.sent.elapsed().as_millis() as u64,
                },
            );
            self.core.pump(&held.digest);
        }
    }
}

async fn in_flight(in_flight: &mut Option<InFlight>) -> Vec<Outcome> {
    match in_flight {
        Some(in_flight) => in_flight.future.as_mut().await,
        None => std::future::pending().await,
    }
}

/// The next frame; `None` when the session is over.
async fn next_frame(conn: &mut Option<Conn>) -> Option<WorkerFrame> {
    match conn {
        Some(conn) => conn.inbound.message().await.unwrap_or_else(|status| {
            tracing::debug!(%status, "session failed");
            None
        }),
        None => std::future::pending().await,
    }
}

pub(super) fn id_bytes(run: RunId) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&run.to_bytes())
}

pub(super) fn parse_id(bytes: &[u8]) -> Option<RunId> {
    run_bytes(bytes).map(RunId::from_bytes)
}
