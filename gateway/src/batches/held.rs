//! A batch that this gateway works on, for as long as nobody took it over.

use std::sync::Arc;
use std::time::Duration;

use weir_protocol::error::ErrorCode;
use weir_store::{Expect, ObjectWrite, Store, Written};

use super::doc::{Batch, Status, load};
use crate::clock::now_ms;
use crate::core::Core;
use crate::error::{ApiError, ApiResult};

/// Why work on a batch stops before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// Another gateway has it now, or it is gone.
    Lost,
    /// The store does not answer, or a document makes no sense: it is tried again later.
    Failed(ApiError),
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// A batch under this gateway's lease.
pub(super) struct Held {
    pub(super) core: Arc<Core>,
    pub(super) batch: Batch,
    version: u64,
}

impl Held {
    /// Takes a batch that nobody holds.
    pub(super) async fn take(core: Arc<Core>, tenant: &str, id: &str) -> ApiResult<Option<Self>> {
        let (mut batch, version) = match load(&*core.store, tenant, id).await {
            Ok(found) => found,
            Err(error) if error.code() == ErrorCode::BatchNotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let now = now_ms();
        let lease = &mut batch.lease;
        if lease.until_ms > now && lease.holder != core.batches.holder {
            return Ok(None);
        }
        lease.holder.clone_from(&core.batches.holder);
        lease.epoch += 1;
        lease.until_ms = now + core.config.batch_lease.as_millis() as u64;
        let write = batch.write(Expect::Version(version));
        let taken = core.store.write_objects(vec![write]).await? == Written::Done;
        Ok(taken.then_some(Self {
            core,
            batch,
            version: version + 1,
        }))
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// Changes the document, and what goes with it, in one commit; the lease is renewed by it.
    ///
    /// Only a client's cancellation may come in between: the change is made again on top of it.
    pub(super) async fn write(
        &mut self,
        with: Vec<ObjectWrite>,
        change: impl Fn(&mut Batch),
    ) -> Result<(), Stop> {
        loop {
            let mut next = self.batch.clone();
            change(&mut next);
            next.lease.until_ms = now_ms() + self.core.config.batch_lease.as_millis() as u64;
            let mut writes = vec![next.write(Expect::Version(self.version))];
            writes.extend(with.iter().cloned());
            let written = self.core.store.write_objects(writes).await;
            match written.map_err(ApiError::from)? {
                Written::Done => {
                    self.batch = next;
                    self.version += 1;
                    return Ok(());
                }
                Written::Conflict(0) => self.reload().await?,
                Written::Conflict(_) => {
                    return Err(Stop::Failed(ApiError::new(
                        ErrorCode::Internal,
                        "a result of the batch was there already",
                    )));
                }
            }
        }
    }

    async fn reload(&mut self) -> Result<(), Stop> {
        let (found, version) = match load(&**self.store(), &self.batch.tenant, &self.batch.id).await
        {
            Ok(found) => found,
            Err(error) if error.code() == ErrorCode::BatchNotFound => return Err(Stop::Lost),
            Err(error) => return Err(error.into()),
        };
        let (ours, theirs) = (&self.batch.lease, &found.lease);
        if ours.epoch != theirs.epoch || ours.holder != theirs.holder {
            return Err(Stop::Lost);
        }
        self.batch = found;
        self.version = version;
        Ok(())
    }

    /// Renews the lease; learns of a cancellation.
    pub(super) async fn renew(&mut self) -> Result<(), Stop> {
        self.write(Vec::new(), |_| {}).await
    }

    /// Time until the lease should be renewed: when a third of it is gone.
    pub(super) fn renew_in(&self) -> Duration {
        let left = self.batch.lease.until_ms.saturating_sub(now_ms());
        let third = self.core.config.batch_lease.as_millis() as u64 / 3;
        Duration::from_millis(left.saturating_sub(2 * third))
    }

    pub(super) async fn renew_if_due(&mut self) -> Result<(), Stop> {
        if self.renew_in().is_zero() {
            return self.renew().await;
        }
        Ok(())
    }

    /// Learns of a cancellation, at the price of a read; renews the lease where that is due.
    pub(super) async fn look(&mut self) -> Result<(), Stop> {
        if self.renew_in().is_zero() {
            return self.renew().await;
        }
        self.reload().await
    }

    /// Why no line may begin any more.
    pub(super) fn stopped(&self) -> Option<&'static str> {
        match self.batch.status {
            Status::Cancelling => Some("batch_cancelled"),
            _ if self.batch.expires_at_ms <= now_ms() => Some("batch_expired"),
            _ => None,
        }
    }
}
