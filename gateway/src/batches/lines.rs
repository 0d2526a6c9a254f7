//! The lines of a batch: a few at once, each with its result written once.

use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use weir_store::ObjectWrite;

use super::BATCH_LINES;
use super::doc::{Batch, Status, WINDOW};
use super::held::{Held, Stop};
use super::line::{Outcome, Task};
use super::output::result_writes;
use crate::clock::now_ms;
use crate::error::ApiResult;
use crate::files::{self, LineReader};

/// Results in one commit.
const COMMIT: usize = 32;
/// Bytes of results after which a commit is closed.
const COMMIT_BYTES: usize = 2 << 20;

/// The batch's file, from its first line.
pub(super) async fn input(held: &Held) -> ApiResult<LineReader> {
    let (store, batch) = (held.store().clone(), &held.batch);
    let file = files::find(&*store, &batch.tenant, &batch.input_file_id).await?;
    let most = held.core.config.body_bytes;
    Ok(LineReader::new(store, &batch.tenant, file, most))
}

/// Carries out every line that has no result yet. What is stopped gets a result that says so.
pub(super) async fn carry_out(held: &mut Held) -> Result<(), Stop> {
    let mut reader = input(held).await?;
    let (tell, stop) = watch::channel(held.stopped());
    let tenant = held.core.directory.load().keys.tenant(&held.batch.tenant);
    let places = match tenant {
        Some(tenant) => held.core.batches.places(&tenant),
        None => std::sync::Arc::new(tokio::sync::Semaphore::new(1)),
    };
    let mut working = FuturesUnordered::new();
    let (mut place, mut read_all) = (0, false);
    loop {
        while working.len() < BATCH_LINES
            && !read_all
            && place < held.batch.progress.below.saturating_add(WINDOW)
        {
            let Some(line) = reader.next().await? else {
                read_all = true;
                break;
            };
            held.renew_if_due().await?;
            if !held.batch.progress.is_done(place) {
                let task = Task {
                    core: held.core.clone(),
                    tenant: held.batch.tenant.clone(),
                    batch: held.batch.id.clone(),
                    endpoint: held.batch.endpoint,
                    place,
                    number: line.number,
                    text: line.text,
                    places: places.clone(),
                    stop: stop.clone(),
                };
                working.push(task.carry_out());
            }
            place += 1;
        }
        if working.is_empty() && read_all {
            return Ok(());
        }
        let wait = held.renew_in().min(Duration::from_millis(500));
        if let Ok(Some(first)) = tokio::time::timeout(wait, working.next()).await {
            let mut done = vec![first];
            let mut bytes = done[0].record.len();
            while done.len() < COMMIT
                && bytes < COMMIT_BYTES
                && let Some(Some(more)) = working.next().now_or_never()
            {
                bytes += more.record.len();
                done.push(more);
            }
            commit(held, &done).await?;
        } else {
            held.look().await?;
        }
        let stopped = held.stopped();
        tell.send_if_modified(|told| {
            let news = *told != stopped && told.is_none();
            if news {
                *told = stopped;
            }
            news
        });
    }
}

async fn commit(held: &mut Held, done: &[Outcome]) -> Result<(), Stop> {
    let writes: Vec<ObjectWrite> = done
        .iter()
        .flat_map(|outcome| result_writes(&held.batch, outcome))
        .collect();
    let now = now_ms();
    held.write(writes, |batch| {
        for outcome in done {
            note(batch, outcome, now);
        }
    })
    .await
}

fn note(batch: &mut Batch, outcome: &Outcome, now: u64) {
    batch.progress.done(outcome.place);
    let counts = &mut batch.counts;
    if outcome.succeeded {
        counts.completed += 1;
    } else {
        counts.failed += 1;
    }
    batch.usage.prompt_tokens += outcome.usage.prompt_tokens;
    batch.usage.cached_tokens += outcome.usage.cached_tokens;
    batch.usage.output_tokens += outcome.usage.output_tokens;
    batch.usage.cost_micros += outcome.usage.cost_micros;
    if outcome.stopped == Some("batch_expired") && batch.status != Status::Cancelling {
        batch.times.expired.get_or_insert(now);
    }
}
