//! Other gateways of the same store: saying that this one lives, hearing what they do, and carrying on what dead ones leave.
//!
//! A gateway that is silent for [`crate::Config::dead_after`], that has left, or whose name another process has taken, is dead: its live
//! runs are taken over a few at a time, each under a higher epoch, so that the dead one cannot write to them should it return. Runs
//! that a worker still holds are attached there, those that never started are queued, the rest ends as interrupted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior};
use weir_protocol::frames::PROTOCOL;
use weir_protocol::worker::{HeldRun, Hello};
use weir_run::RunId;
use weir_store::{Change, OpenRun, Peer, Replicas, StoreError};

use crate::clock::now_ms;
use crate::core::{CANCELLED, Core};
use crate::link::{Command, LinkHandle, look, parse_id};
use crate::policy::UNJUDGED;

/// How often a gateway says that it lives.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How often it asks again to be told of the runs it follows; a wish lasts ten seconds.
const FOLLOW_EVERY: Duration = Duration::from_secs(3);
/// How often it looks for runs of its own that it does not know: admissions whose answer came too late, or to nobody.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Own runs that one sweep looks at.
const SWEPT: usize = 10_000;
/// Runs that are taken over together: one commit.
const AT_ONCE: usize = 32;

/// What workers hold, by run.
type HeldRuns = HashMap<RunId, (Arc<LinkHandle>, HeldRun)>;

impl Core {
    /// Keeps in touch with the other gateways, for ever; at once where there cannot be any.
    pub(crate) async fn keep_company(self: Arc<Self>) {
        let Some(replicas) = self.store.replicas() else {
            return;
        };
        let mut changes = replicas.changes();
        let mut beat = tokio::time::interval(BEAT_EVERY);
        let mut follow = tokio::time::interval(FOLLOW_EVERY);
        for timer in [&mut beat, &mut follow] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(Change::Cancelled(run)) => self.end_soon(run, CANCELLED),
                    Ok(Change::Grown(run)) => self.hub.grown(run),
                    // What was missed is found at the next beat and by polling.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = beat.tick() => self.beat(replicas).await,
                _ = follow.tick() => {
                    let runs = self.hub.followed();
                    if !runs.is_empty() && let Err(error) = replicas.follow(runs).await {
                        tracing::debug!(%error, "no hints of runs elsewhere; they are polled");
                    }
                }
            }
        }
    }

    async fn beat(self: &Arc<Self>, replicas: &dyn Replicas) {
        let beat = match replicas.beat().await {
            Ok(beat) => beat,
            Err(error) => return tracing::warn!(%error, "the other gateways cannot hear this one"),
        };
        for run in beat.cancelling {
            self.end_soon(run, CANCELLED);
        }
        for peer in beat.peers {
            if self.is_dead(&peer, replicas) && self.adopting.lock().insert(peer.boot.clone()) {
                let core = Arc::clone(self);
                self.spawn(async move {
                    if let Err(error) = core.adopt_all(&peer).await {
                        tracing::warn!(gateway = peer.name, %error, "could not take over the runs of a dead gateway");
                    }
                    core.adopting.lock().remove(&peer.boot);
                });
            }
        }
    }

    fn is_dead(&self, peer: &Peer, replicas: &dyn Replicas) -> bool {
        let dead_after = self.config.dead_after.as_millis() as u64;
        peer.silent_ms.is_none_or(|ms| ms > dead_after) || peer.name == replicas.me().name
    }

    /// Takes over what a dead gateway has, at a limited rate, until it has nothing or turns out to live.
    async fn adopt_all(self: &Arc<Self>, peer: &Peer) -> Result<(), StoreError> {
        let Some(replicas) = self.store.replicas() else {
            return Ok(());
        };
        let mut held = None;
        loop {
            let ids = replicas.runs_of(&peer.boot, AT_ONCE).await?;
            if ids.is_empty() {
                return replicas.forget(&peer.boot).await;
            }
            if held.is_none() {
                tracing::info!(
                    gateway = peer.name,
                    "taking over the runs of a dead gateway"
                );
                held = Some(self.look_at_workers().await);
            }
            let peers = replicas.beat().await?.peers;
            let now = peers.iter().find(|other| other.boot == peer.boot);
            if !now.is_some_and(|now| self.is_dead(now, replicas)) {
                return Ok(());
            }
            let count = ids.len();
            let adopted = ids.iter().map(|id| replicas.adopt(*id, &peer.boot));
            for adopted in join_all(adopted).await {
                if let Some(open) = adopted? {
                    self.carry_on(open, held.as_ref()).await;
                }
            }
            self.recovery_pause(count).await;
        }
    }

    /// Takes up a run that this gateway has just taken over.
    async fn carry_on(self: &Arc<Self>, open: OpenRun, held: Option<&HeldRuns>) {
        let id = open.run.id;
        let mut job = self.revive(open);
        let Some((link, at_worker)) = held.and_then(|held| held.get(&id)) else {
            return self.settle(job, "its gateway died and no worker holds the run");
        };
        if !self.judge(&mut job.writer).await {
            return self.settle(job, UNJUDGED);
        }
        let command = Command::Adopt(Box::new(job), at_worker.clone());
        if let Err(Command::Adopt(job, _)) = link.send(command) {
            self.settle(*job, "its gateway died, and its worker left");
        }
    }

    /// Asks every worker which runs it holds, once there are workers, and until all have answered or long enough.
    async fn look_at_workers(&self) -> HeldRuns {
        self.wait_for_workers().await;
        let name = self.replica_name();
        let looks = self.links.handles().into_iter().map(|link| {
            let hello = Hello {
                gateway: self.store.identity(),
                session_epoch: now_ms(),
                protocol: PROTOCOL,
                // A session of its own: the one that carries runs goes on.
                replica: format!("{name}/look"),
                version_digest: link.endpoint.version.clone().unwrap_or_default(),
            };
            let until = Instant::now() + self.config.adopt_within;
            let proof = self.identity.get().cloned();
            async move {
                let address = link.endpoint.address.clone();
                let held = look((address, proof), hello, until).await;
                (link, held)
            }
        });
        let mut all = HashMap::new();
        for (link, held) in join_all(looks).await {
            for run in held {
                if let Some(id) = parse_id(&run.run) {
                    all.insert(id, (Arc::clone(&link), run));
                }
            }
        }
        all
    }

    /// Finds runs that are this gateway's in the store and that it does not know, for ever.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let Some(replicas) = self.store.replicas() else {
            return;
        };
        let me = replicas.me().boot;
        let mut suspects: HashSet<RunId> = HashSet::new();
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let Ok(own) = replicas.runs_of(&me, SWEPT).await else {
                continue;
            };
            let unknown: HashSet<RunId> = own
                .into_iter()
                .filter(|run| self.hub.find(*run).is_none())
                .collect();
            // Unknown twice: it was not just on its way in or out.
            let lost: Vec<RunId> = unknown.intersection(&suspects).copied().collect();
            for run in lost.iter().take(AT_ONCE) {
                if let Ok(Some(open)) = replicas.adopt(*run, &me).await {
                    tracing::warn!(%run, "found a run of this gateway that nobody carried out");
                    self.carry_on(open, None).await;
                }
            }
            suspects = unknown;
        }
    }

    /// What this process is called among the gateways of its store.
    pub(crate) fn replica_name(&self) -> String {
        self.store.replicas().map_or_else(
            || self.config.replica.clone(),
            |replicas| replicas.me().name,
        )
    }
}
