//! Making events durable: one append at a time, retried until the store answers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_run::{RunId, RunStatus};
use weir_store::{Append, Appended, Store, StoreError};

use super::writer::Pending;
use crate::metrics::Metrics;

/// What became of one run's append.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Durable; the run's status now.
    Done(RunStatus),
    /// This process may no longer write to the run.
    Lost(String),
}

/// An append under way, with what is to be shown once it is durable.
pub(crate) struct InFlight {
    pub(crate) runs: Vec<(RunId, Pending)>,
    pub(crate) future: Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>>,
}

/// Appends until the store says yes or says that it never will. Nothing is shown before; workers are held back by their credit.
pub(crate) async fn append_durably(
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    appends: Vec<Append>,
) -> Vec<Outcome> {
    let begun = Instant::now();
    let outcomes = match retrying(&*store, appends.clone()).await {
        Ok(outcomes) => outcomes,
        // One run's log is not what was thought; the others must not suffer for it.
        Err(StoreError::Contract(_)) if appends.len() > 1 => {
            let mut outcomes = Vec::with_capacity(appends.len());
            for append in appends {
                outcomes.extend(match retrying(&*store, vec![append]).await {
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

async fn retrying(store: &dyn Store, appends: Vec<Append>) -> Result<Vec<Outcome>, StoreError> {
    loop {
        let error = match store.append(appends.clone()).await {
            Ok(answers) => return Ok(answers.into_iter().map(outcome).collect()),
            Err(error) => error,
        };
        let wait = match &error {
            StoreError::Contract(_) | StoreError::Closed => return Err(error),
            StoreError::Busy { .. } => Duration::from_millis(5),
            _ => {
                tracing::error!(%error, "cannot append events; workers are held back until this works again");
                Duration::from_millis(500)
            }
        };
        tokio::time::sleep(wait).await;
    }
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
