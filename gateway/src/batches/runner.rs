//! Finds batches that nobody works on, and works on them.

use std::sync::Arc;
use std::time::Duration;

use super::doc::{Status, open};
use super::held::{Held, Stop};
use super::lines::carry_out;
use super::output::{clean, finish};
use super::validate::{fail, validate};
use super::{AT_ONCE, doc::Fault};
use crate::clock::now_ms;
use crate::core::Core;
use crate::error::ApiResult;
use weir_protocol::error::ErrorCode;

/// Batches of one tenant in work at once on one gateway: the others of the tenant wait, those of others do not.
const TENANT_BATCHES: usize = 4;
/// How long a batch rests whose work failed.
const REST: Duration = Duration::from_secs(1);

/// Works for ever.
pub(crate) async fn keep_working(core: Arc<Core>) {
    loop {
        if !core.is_draining()
            && let Err(error) = look(&core).await
        {
            tracing::warn!(error = ?error.body(), "cannot look for batches");
        }
        tokio::select! {
            () = core.batches.news.notified() => {}
            () = tokio::time::sleep(core.config.batch_look_every) => {}
        }
    }
}

async fn look(core: &Arc<Core>) -> ApiResult<()> {
    for (id, tenant) in open(&*core.store).await? {
        {
            let working = core.batches.working.lock();
            let own = working.values().filter(|owner| **owner == tenant).count();
            if working.len() >= AT_ONCE {
                return Ok(());
            }
            if own >= TENANT_BATCHES || working.contains_key(&id) {
                continue;
            }
        }
        let Some(held) = Held::take(Arc::clone(core), &tenant, &id).await? else {
            continue;
        };
        core.batches.working.lock().insert(id.clone(), tenant);
        let core = Arc::clone(core);
        let place = Place(Arc::clone(&core), id);
        core.spawn(async move {
            let (id, _place) = (held.batch.id.clone(), place);
            match work(held).await {
                Ok(()) => tracing::info!(batch = id, "a batch is done"),
                Err(Stop::Lost) => tracing::info!(batch = id, "a batch is someone else's now"),
                Err(Stop::Failed(error)) => {
                    tracing::warn!(batch = id, error = ?error.body(), "work on a batch failed");
                    tokio::time::sleep(REST).await;
                }
            }
        });
    }
    Ok(())
}

/// A batch's place among those in work.
struct Place(Arc<Core>, String);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.batches.working.lock().remove(&self.1);
        self.0.batches.news.notify_one();
    }
}

/// From wherever it is to its end.
async fn work(mut held: Held) -> Result<(), Stop> {
    // Without a count no line was begun: a cancellation may have come before the first look.
    if held.batch.counts.total == 0 && !held.batch.status.is_terminal() {
        validate(&mut held).await?;
    }
    if matches!(held.batch.status, Status::InProgress | Status::Cancelling) {
        match carry_out(&mut held).await {
            Err(Stop::Failed(error)) if error.code() == ErrorCode::FileNotFound => {
                let fault = Fault {
                    code: "file_not_found".to_owned(),
                    message: error.body().message.clone(),
                    line: None,
                    param: None,
                };
                let now = now_ms();
                held.write(Vec::new(), |batch| fail(batch, vec![fault.clone()], now))
                    .await?;
            }
            other => other?,
        }
    }
    if !held.batch.status.is_terminal() {
        finish(&mut held).await?;
    }
    clean(&mut held).await
}
