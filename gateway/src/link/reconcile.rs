//! What a welcome means for the runs of both sides: attach, adopt, give up, tell the worker to forget.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::join_all;
use tokio::time::Instant;
use weir_admission::Pace;
use weir_protocol::worker::{Attach, Cancel, HeldRun};
use weir_run::{Epoch, RunId, RunStatus};
use weir_store::Store;
use weir_store::fault::point;

use super::commit::take_over_durably;
use super::session::{Held, id_bytes, parse_id};
use super::writer::Pending;
use super::{Ending, Job, Link};
use crate::hub::Phase;
use crate::policy::UNJUDGED;

/// Take-overs under way at once: each is a commit, and a burst must not fill the store's queue.
const AT_ONCE: usize = 64;

impl Link {
    /// Brings the worker's runs and this link's runs together. Everything received before is durable.
    pub(super) async fn reconcile(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        let welcome = std::mem::take(&mut conn.welcome);
        {
            let mut facts = self.handle.facts.lock();
            facts.note(&welcome.models);
            facts.limits = welcome.limits.unwrap_or_default();
        }
        let mut attach = Vec::new();
        let unknown: Vec<RunId> = welcome
            .held
            .iter()
            .filter_map(|held| parse_id(&held.run))
            .filter(|run| !self.runs.contains_key(run))
            .collect();
        let elsewhere = elsewhere(Arc::clone(&self.core.store), unknown).await;
        for held in welcome.held {
            let Some(run) = parse_id(&held.run) else {
                continue;
            };
            if !self.runs.contains_key(&run) && !self.adopt(run) {
                if elsewhere.contains(&run) {
                    continue;
                }
                // Ended without this worker, or somebody else's: it need not go on.
                self.send(Cancel {
                    run: held.run,
                    epoch: held.epoch,
                });
                continue;
            }
            attach.push((run, held));
        }
        let known: Vec<RunId> = self.runs.keys().copied().collect();
        for run in known {
            if !attach.iter().any(|(held, _)| *held == run) {
                self.lose(run, "the worker restarted and no longer has the run");
            }
        }
        if self.boot != welcome.boot {
            self.core.links.restarted(&self.handle);
            self.handle.facts.lock().pace = Pace::default();
        }
        self.boot = welcome.boot;
        for some in attach.chunks(AT_ONCE) {
            self.attach(some).await;
        }
    }

    /// Goes on with a run of another gateway.
    pub(super) fn adopt_from_another(&mut self, job: Job, at_worker: &HeldRun) {
        let (run, epoch) = (job.writer.id(), job.writer.epoch);
        self.take_in(job);
        self.attach_one(run, at_worker, epoch);
        if self.conn.is_none() {
            self.wait_for_session();
        }
    }

    /// Takes in a run that was found in the store at start.
    fn adopt(&mut self, run: RunId) -> bool {
        let Some(orphan) = self.core.orphans.take(run) else {
            return false;
        };
        self.take_in(orphan);
        true
    }

    fn take_in(&mut self, orphan: Job) {
        let run = orphan.writer.id();
        self.handle
            .occupy(&orphan.writer.tenant, orphan.writer.reserved_tokens);
        let digest = orphan.digest().to_owned();
        self.runs.insert(
            run,
            Held {
                writer: orphan.writer,
                digest,
                submit: Some(orphan.submit),
                pool: orphan.pool,
                attempts: orphan.attempts,
                dispatch: None,
                sent: Instant::now(),
                granted: 0,
                shown: None,
                pending: Pending::default(),
            },
        );
    }

    async fn attach(&mut self, some: &[(RunId, HeldRun)]) {
        let epochs = some
            .iter()
            .map(|(run, _)| take_over_durably(&*self.core.store, *run));
        let epochs = join_all(epochs).await;
        point("link.taken_over");
        for ((run, at_worker), epoch) in some.iter().zip(epochs) {
            match epoch {
                Ok(Some(epoch)) if self.judge(*run, epoch).await => {
                    self.attach_one(*run, at_worker, epoch);
                }
                Ok(Some(_)) => {
                    self.cancel(*run);
                    self.end(*run, Ending::new(RunStatus::Interrupted, UNJUDGED));
                }
                Ok(None) => self.abandon(*run, "the run is over"),
                Err(error) => {
                    tracing::error!(%run, %error, "cannot take the run over");
                    self.abandon(*run, "the store refused the take-over");
                }
            }
        }
    }

    /// Makes a run's policies go on where they were; whether they can.
    async fn judge(&mut self, run: RunId, epoch: Epoch) -> bool {
        let core = Arc::clone(&self.core);
        let Some(held) = self.runs.get_mut(&run) else {
            return true;
        };
        held.writer.epoch = epoch;
        core.judge(&mut held.writer).await
    }

    fn attach_one(&mut self, run: RunId, at_worker: &HeldRun, epoch: Epoch) {
        let Some(held) = self.runs.get_mut(&run) else {
            return;
        };
        held.writer.epoch = epoch;
        let from_index = held.writer.rewind();
        held.granted = from_index;
        let intent = {
            let mut control = held.writer.live.control.lock();
            control.phase = Phase::On(self.handle.clone());
            control.intent.is_some()
        };
        if from_index < at_worker.first_index {
            self.cancel(run);
            self.lose(run, "the worker no longer has the run's output");
            return;
        }
        self.send(Attach {
            run: id_bytes(run),
            epoch: epoch.0,
            from_index,
            credit: from_index + self.core.config.row_window,
        });
        point("link.attached");
        if intent {
            self.cancel(run);
        }
    }
}

/// Those of a worker's runs that are other gateways'. When the store does not say, all may be.
async fn elsewhere(store: Arc<dyn Store>, runs: Vec<RunId>) -> HashSet<RunId> {
    let Some(replicas) = store.replicas() else {
        return HashSet::new();
    };
    match replicas.elsewhere(runs.clone()).await {
        Ok(elsewhere) => elsewhere.into_iter().collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot tell whose runs the worker holds; they go on");
            runs.into_iter().collect()
        }
    }
}
