//! A store that answers when a test lets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use weir_budget::{Ask, Limits, Refusal};
use weir_ledger::{Chain, Day, Head, Link};
use weir_run::{Decision, Epoch, Run, RunId, Sequence};
use weir_store::{
    Admission, Admit, Append, Appended, Budget, ChainDay, EventRecord, Note, Noted, Object,
    ObjectRange, ObjectWrite, OpenRun, Purge, Purged, Repair, Repaired, Scrub, Store, StoreError,
    StoreFuture, UsageReport, Written,
};

/// Holds appends back while it is shut; refuses the next ones where it is told to.
pub(crate) struct GatedStore {
    inner: Arc<dyn Store>,
    shut: AtomicBool,
    opened: Notify,
    failures: AtomicUsize,
    /// Appends that went through.
    pub(crate) commits: AtomicUsize,
}

impl GatedStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            shut: AtomicBool::new(false),
            opened: Notify::new(),
            failures: AtomicUsize::new(0),
            commits: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }

    pub(crate) fn fail_next(&self, count: usize) {
        self.failures.store(count, Ordering::SeqCst);
    }

    async fn pass(&self) -> Result<(), StoreError> {
        loop {
            let opened = self.opened.notified();
            if !self.shut.load(Ordering::SeqCst) {
                break;
            }
            opened.await;
        }
        let fails = self
            .failures
            .try_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        match fails {
            Ok(_) => Err(StoreError::Busy { queued: 1 }),
            Err(_) => Ok(()),
        }
    }
}

impl Store for GatedStore {
    fn admit(&self, admission: Admission) -> StoreFuture<'_, Admit> {
        self.inner.admit(admission)
    }

    fn would_refuse(
        &self,
        tenant: &str,
        ask: Ask,
        limits: Limits,
        now_ms: u64,
    ) -> StoreFuture<'_, Option<Refusal>> {
        self.inner.would_refuse(tenant, ask, limits, now_ms)
    }

    fn append(&self, appends: Vec<Append>) -> StoreFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            self.pass().await?;
            self.commits.fetch_add(1, Ordering::SeqCst);
            self.inner.append(appends).await
        })
    }

    fn cancel(&self, tenant: &str, run: RunId, now_ms: u64) -> StoreFuture<'_, Option<Run>> {
        self.inner.cancel(tenant, run, now_ms)
    }

    fn take_over(&self, run: RunId) -> StoreFuture<'_, Option<Epoch>> {
        self.inner.take_over(run)
    }

    fn route(&self, run: RunId, decision: Decision) -> StoreFuture<'_, ()> {
        self.inner.route(run, decision)
    }

    fn run(&self, tenant: &str, run: RunId) -> StoreFuture<'_, Option<Run>> {
        self.inner.run(tenant, run)
    }

    fn run_by_key(&self, tenant: &str, request_key: &str) -> StoreFuture<'_, Option<Run>> {
        self.inner.run_by_key(tenant, request_key)
    }

    fn events(
        &self,
        run: RunId,
        after: Sequence,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventRecord>> {
        self.inner.events(run, after, limit)
    }

    fn open_runs(&self) -> StoreFuture<'_, Vec<OpenRun>> {
        self.inner.open_runs()
    }

    fn budget(&self, tenant: &str, periods_s: Vec<u64>, now_ms: u64) -> StoreFuture<'_, Budget> {
        self.inner.budget(tenant, periods_s, now_ms)
    }

    fn usage(
        &self,
        tenant: &str,
        periods_s: Vec<u64>,
        from_ms: u64,
        to_ms: u64,
        now_ms: u64,
    ) -> StoreFuture<'_, UsageReport> {
        self.inner.usage(tenant, periods_s, from_ms, to_ms, now_ms)
    }

    fn runs(&self, tenant: &str, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<Run>> {
        self.inner.runs(tenant, after, limit)
    }

    fn chain(&self, chain: Chain, after: u64, limit: usize) -> StoreFuture<'_, Vec<Link>> {
        self.inner.chain(chain, after, limit)
    }

    fn chain_head(&self, chain: Chain) -> StoreFuture<'_, Head> {
        self.inner.chain_head(chain)
    }

    fn chain_day(&self, chain: Chain, day: Day) -> StoreFuture<'_, Option<ChainDay>> {
        self.inner.chain_day(chain, day)
    }

    fn note(&self, note: Note) -> StoreFuture<'_, Noted> {
        self.inner.note(note)
    }

    fn repair(&self, repair: Repair) -> StoreFuture<'_, Repaired> {
        self.inner.repair(repair)
    }

    fn purge(&self, purge: Purge) -> StoreFuture<'_, Purged> {
        self.inner.purge(purge)
    }

    fn scrub(&self) -> StoreFuture<'_, Scrub> {
        self.inner.scrub()
    }

    fn expire(&self, now_ms: u64, limit: usize) -> StoreFuture<'_, usize> {
        self.inner.expire(now_ms, limit)
    }

    fn write_objects(&self, writes: Vec<ObjectWrite>) -> StoreFuture<'_, Written> {
        self.inner.write_objects(writes)
    }

    fn object(
        &self,
        space: &'static str,
        owner: &str,
        name: &str,
    ) -> StoreFuture<'_, Option<Object>> {
        self.inner.object(space, owner, name)
    }

    fn objects(&self, range: ObjectRange) -> StoreFuture<'_, Vec<Object>> {
        self.inner.objects(range)
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn close(&self, within: Duration) -> StoreFuture<'_, ()> {
        self.inner.close(within)
    }
}
