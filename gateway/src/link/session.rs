//! The task behind a link: one loop over the worker's frames, the gateway's commands, and the store's answers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use weir_protocol::frames::{PROTOCOL, run_bytes};
use weir_protocol::worker::{Cancel, GatewayFrame, Hello, Submit, WorkerFrame};
use weir_run::{RunId, RunStatus};
use weir_store::RunMap;

use super::ask::Asked;
use super::commit::{Committing, Outcome};
use super::connect::{Conn, ConnectError, connect};
use super::writer::Pending;
use super::{Command, Dispatch, Ending, Job, LinkHandle, Writer};
use crate::clock::now_ms;
use crate::core::Core;
use crate::hub::Phase;

/// A link's own state. Only its task touches it.
pub(crate) struct Link {
    pub(super) core: Arc<Core>,
    pub(super) handle: Arc<LinkHandle>,
    commands: mpsc::UnboundedReceiver<Command>,
    pub(super) runs: RunMap<Held>,
    /// Questions that the worker has.
    pub(super) asked: RunMap<Asked>,
    /// Runs with something pending.
    pub(super) dirty: Vec<RunId>,
    pub(super) committing: Option<Committing>,
    /// When the last commit began.
    pub(super) begun: Instant,
    pub(super) conn: Option<Conn>,
    /// The worker process of the last session.
    pub(super) boot: String,
    session_epoch: u64,
    pub(super) heard: Instant,
    pub(super) lost: Option<Instant>,
    backoff: Duration,
    retiring: bool,
    /// When it was last told of that no session came about.
    told: Option<Instant>,
}

/// A run on this link.
pub(crate) struct Held {
    pub(crate) writer: Writer,
    /// Kept until the worker started it, so that it can go to another one.
    pub(crate) submit: Option<Submit>,
    pub(crate) digest: String,
    pub(crate) pool: String,
    pub(crate) attempts: u32,
    /// Until the worker started it.
    pub(crate) dispatch: Option<Dispatch>,
    pub(crate) sent: Instant,
    /// What the worker was last told is durable.
    pub(crate) granted: u64,
    pub(crate) shown: Option<Instant>,
    pub(crate) pending: Pending,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Conn, ConnectError>> + Send>>;

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);
/// A worker that refuses, or is none, is told of this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
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
            runs: RunMap::default(),
            asked: RunMap::default(),
            dirty: Vec::new(),
            committing: None,
            begun: Instant::now(),
            conn: None,
            boot: String::new(),
            session_epoch: 0,
            heard: Instant::now(),
            lost: None,
            backoff: FIRST_BACKOFF,
            retiring: false,
            told: None,
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
                outcomes = outcomes(&mut self.committing) => self.committed(outcomes),
                received = next_frame(&mut self.conn) => if let Some(received) = received {
                    self.receive(received);
                } else {
                    self.disconnected();
                    connecting = self.connecting();
                },
                attempt = &mut connecting, if self.conn.is_none() => match attempt {
                    Ok(conn) => self.connected(conn).await,
                    Err(error) => {
                        self.not_connected(&error);
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
            replica: self.core.replica_name(),
            version_digest: self.handle.endpoint.version.clone().unwrap_or_default(),
        };
        let address = self.handle.endpoint.address.clone();
        let proof = self.core.identity.get().cloned();
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            connect(address, proof, hello).await
        })
    }

    fn not_connected(&mut self, error: &ConnectError) {
        let is_told = self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        let (worker, cause) = (self.name(), error as &dyn std::error::Error);
        if error.is_refusal() && is_told {
            tracing::warn!(worker, error = cause, "no session");
            self.told = Some(Instant::now());
        } else {
            tracing::debug!(worker, error = cause, "no session");
        }
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

    pub(super) fn disconnected(&mut self) {
        self.conn = None;
        self.asked.clear();
        self.handle.connected.store(false, Ordering::Release);
        self.lost = Some(Instant::now());
        tracing::warn!(worker = self.name(), runs = self.runs.len(), "session lost");
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
            Command::Adopt(job, at_worker) => self.adopt_from_another(*job, &at_worker),
            Command::Cancel(run) => self.cancel(run),
            Command::Ask(question) => self.ask(*question),
            Command::Judged(run, answer) => self.judged(run, &answer),
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
            mut writer,
            mut submit,
            pool,
            dispatch,
            attempts,
        } = job;
        self.core.judge_unsent(&mut writer);
        submit.epoch = writer.epoch.0;
        submit.credit = writer.next_index + self.core.config.row_window;
        let kept = submit.clone();
        // A worker that does not know a field would leave it out and write anything.
        let lack = self
            .conn
            .as_ref()
            .and_then(|_| self.handle.facts.lock().lack(&kept));
        if lack.is_none() {
            self.send(submit);
        }
        let held = Held {
            writer,
            digest: kept.version_digest.clone(),
            submit: Some(kept),
            pool,
            attempts,
            dispatch,
            sent: Instant::now(),
            granted: 0,
            shown: None,
            pending: Pending::default(),
        };
        let id = held.writer.id();
        self.runs.insert(id, held);
        if let Some(why) = lack {
            self.end(id, Ending::new(RunStatus::Failed, why));
        }
        if self.conn.is_none() {
            self.wait_for_session();
        }
    }

    /// The session went away while a run was on its way here.
    pub(super) fn wait_for_session(&mut self) {
        self.lost.get_or_insert_with(Instant::now);
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
        self.handle.vacate(&writer.tenant, writer.reserved_tokens);
        writer.live.control.lock().phase = Phase::Queued;
        self.core.requeue(Job {
            writer,
            submit,
            pool,
            dispatch: None,
            attempts: attempts + 1,
        });
    }

    /// Somebody else writes to this run now.
    pub(super) fn abandon(&mut self, run: RunId, why: &str) {
        if let Some(held) = self.runs.remove(&run) {
            tracing::warn!(%run, why, "run given up to another writer");
            self.handle
                .vacate(&held.writer.tenant, held.writer.reserved_tokens);
            self.core.abandon(&held.writer.live);
        }
    }
}

async fn outcomes(committing: &mut Option<Committing>) -> Vec<Outcome> {
    match committing {
        Some(committing) => committing.future.as_mut().await,
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

pub(crate) fn parse_id(bytes: &[u8]) -> Option<RunId> {
    run_bytes(bytes).map(RunId::from_bytes)
}
