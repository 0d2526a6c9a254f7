//! Making events durable: one append at a time, retried until the store answers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_admission::Finished;
use weir_protocol::worker::{Progress, progress};
use weir_run::{Epoch, RunId, RunStatus};
use weir_store::fault::{broken, point};
use weir_store::{Append, Appended, Store, StoreError};

use super::Link;
use super::session::id_bytes;
use super::writer::Pending;
use crate::clock::now_ms;
use crate::core::CANCELLED;
use crate::metrics::Metrics;
use crate::shadow::ask_candidate;

/// A worker is told of progress in steps of this part of its window: often enough that no run waits for credit, and not with every row.
const GRANTS_IN_WINDOW: u64 = 8;

/// From so many runs on commits follow each other by a microsecond for each of them, and by no more than a few milliseconds: rows gather,
/// and fewer and larger commits, writes and wake-ups carry the same events. Where there are fewer runs none waits.
const GATHER_FROM: usize = 1000;
const GATHER_AT_MOST: Duration = Duration::from_millis(5);

/// What became of one run's append.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Durable; the run's status now.
    Done(RunStatus),
    /// This process may no longer write to the run.
    Lost(String),
}

/// An append under way, with what is to be shown once it is durable.
pub(crate) struct Committing {
    pub(crate) runs: Vec<(RunId, Pending)>,
    pub(crate) future: Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>>,
}

impl Link {
    /// Starts an append of everything pending, unless one is under way: what comes meanwhile shares the next one.
    pub(super) fn commit(&mut self) {
        if self.committing.is_some() || self.dirty.is_empty() {
            return;
        }
        let gather = Duration::from_micros(self.runs.len() as u64).min(GATHER_AT_MOST);
        let due = self.begun + gather;
        if self.runs.len() >= GATHER_FROM && due > Instant::now() {
            // A commit of nothing, which takes until then.
            let until_due = async move {
                tokio::time::sleep_until(due).await;
                Vec::new()
            };
            self.committing = Some(Committing {
                runs: Vec::new(),
                future: Box::pin(until_due),
            });
            return;
        }
        self.begun = Instant::now();
        let now = now_ms();
        let mut runs = Vec::with_capacity(self.dirty.len());
        let mut appends = Vec::with_capacity(self.dirty.len());
        for run in self.dirty.drain(..) {
            if let Some(held) = self.runs.get_mut(&run) {
                let mut pending = std::mem::take(&mut held.pending);
                appends.push(held.writer.append(&pending, now));
                if broken("early-publish") {
                    let early = std::mem::take(&mut pending.frames);
                    self.core.hub.publish(&held.writer.live, early);
                }
                runs.push((run, pending));
            }
        }
        let (store, metrics) = (Arc::clone(&self.core.store), Arc::clone(&self.core.metrics));
        self.committing = Some(Committing {
            runs,
            future: Box::pin(append_durably(store, metrics, appends)),
        });
    }

    pub(super) async fn flush(&mut self) {
        loop {
            self.commit();
            let Some(committing) = &mut self.committing else {
                return;
            };
            let outcomes = committing.future.as_mut().await;
            self.committed(outcomes);
        }
    }

    /// Durable: now it may be seen, and the worker may forget it and send more.
    pub(super) fn committed(&mut self, outcomes: Vec<Outcome>) {
        let Some(Committing { runs, .. }) = self.committing.take() else {
            return;
        };
        if runs.is_empty() {
            return;
        }
        point("link.durable");
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
            let acknowledged = held.writer.acknowledged(&held.pending);
            let window = self.core.config.row_window;
            if pending.is_terminal()
                || acknowledged.saturating_sub(held.granted) >= window / GRANTS_IN_WINDOW
            {
                held.granted = acknowledged;
                progress.push(progress::Run {
                    run: id_bytes(run),
                    acknowledged,
                    credit: acknowledged + window,
                });
            }
            self.core
                .metrics
                .saw(&mut held.writer, &mut held.shown, &pending.frames);
            let now = Instant::now();
            self.core.evidence.shown(run, pending.output_tokens(), now);
            for verdict in pending.verdicts() {
                self.core.metrics.policy(verdict);
            }
            let ended = pending.is_terminal();
            self.core.hub.publish(&held.writer.live, pending.frames);
            if ended {
                self.ended(run, status);
            } else if status == RunStatus::Cancelling && held.writer.live.intend(CANCELLED) {
                self.cancel(run);
            }
        }
        point("link.published");
        if !progress.is_empty() {
            self.send(Progress { runs: progress });
        }
        point("link.acknowledged");
    }

    fn ended(&mut self, run: RunId, status: RunStatus) {
        if let Some(held) = self.runs.remove(&run) {
            self.handle
                .vacate(&held.writer.tenant, held.writer.reserved_tokens);
            let pair = self.core.shadow.ended(run, status, || held.writer.said());
            if let Some(pair) = pair {
                let asking = ask_candidate(Arc::clone(&self.core), pair);
                self.core.spawn(asking);
            }
            self.core.ended(&held.writer, status);
            self.core.queues.finished(
                &held.digest,
                &Finished {
                    prompt_tokens: held.writer.prompt_tokens() as u32,
                    output_tokens: held.writer.output_tokens() as u32,
                    ceiling: held.writer.ceiling() as u32,
                    service_ms: held.sent.elapsed().as_millis() as u64,
                },
            );
            self.core.pump(&held.digest);
        }
    }
}

/// How long appends wait for a store that cannot read what they rest on.
const UNREADABLE_FOR: Duration = Duration::from_secs(10);

/// Appends until the store says yes or says that it never will. Nothing is shown before; workers are held back by their credit. Of a store
/// that is away or full that is how long it lasts; one that takes no write any more ends the process, see [`crate::Gateway::watch_store`];
/// a run whose records make no sense is given up, and the others go on.
pub(crate) async fn append_durably(
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    appends: Vec<Append>,
) -> Vec<Outcome> {
    point("link.appending");
    if broken("early-publish") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begun = Instant::now();
    let appends = Arc::new(appends);
    let outcomes = match retrying(&*store, &appends).await {
        Ok(outcomes) => outcomes,
        // One run's log is not what was thought; the others must not suffer for it.
        Err(StoreError::Contract(_) | StoreError::Read { .. }) if appends.len() > 1 => {
            let mut outcomes = Vec::with_capacity(appends.len());
            for append in &*appends {
                let alone = Arc::new(vec![append.clone()]);
                outcomes.extend(match retrying(&*store, &alone).await {
                    Ok(one) => one,
                    Err(error) => vec![Outcome::Lost(error.to_string())],
                });
            }
            outcomes
        }
        Err(error) => appends
            .iter()
            .map(|_| Outcome::Lost(error.to_string()))
            .collect(),
    };
    metrics
        .commit_seconds
        .observe(begun.elapsed().as_secs_f64());
    outcomes
}

/// Takes a run over as soon as the store can: a run that was given up because of an outage would be nobody's, and never end.
pub(crate) async fn take_over_durably(
    store: &dyn Store,
    run: RunId,
) -> Result<Option<Epoch>, StoreError> {
    loop {
        match store.take_over(run).await {
            Ok(epoch) => return Ok(epoch),
            Err(error) => {
                let what = "cannot take a run over; it waits until this works again";
                pause(error, what).await?;
            }
        }
    }
}

async fn retrying(
    store: &dyn Store,
    appends: &Arc<Vec<Append>>,
) -> Result<Vec<Outcome>, StoreError> {
    let begun = Instant::now();
    loop {
        let error = match store.append_shared(Arc::clone(appends)).await {
            Ok(answers) => return Ok(answers.into_iter().map(outcome).collect()),
            Err(error) => error,
        };
        if matches!(error, StoreError::Read { .. }) && begun.elapsed() > UNREADABLE_FOR {
            return Err(error);
        }
        let what = "cannot append events; workers are held back until this works again";
        pause(error, what).await?;
    }
}

/// Waits before the next try, or says that there is none.
async fn pause(error: StoreError, what: &'static str) -> Result<(), StoreError> {
    let wait = match &error {
        StoreError::Contract(_) | StoreError::Closed => return Err(error),
        StoreError::Busy { .. } => Duration::from_millis(5),
        _ => {
            tracing::error!(%error, "{what}");
            Duration::from_millis(500)
        }
    };
    tokio::time::sleep(wait).await;
    Ok(())
}

fn outcome(answer: Appended) -> Outcome {
    match answer {
        Appended::Done(status) => Outcome::Done(status),
        Appended::Fenced(epoch) => {
            Outcome::Lost(format!("epoch {} of the run writes now", epoch.0))
        }
        Appended::Terminal(status) => {
            Outcome::Lost(format!("the run is {} already", status.as_str()))
        }
        Appended::Refused(illegal) => Outcome::Lost(illegal.to_string()),
        Appended::Unknown => Outcome::Lost("the store does not know the run".to_owned()),
    }
}
