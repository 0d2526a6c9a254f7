//! The store of one machine: writes go to the writer's queue, reads go to memory where a run is live and to the engine where it is not.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use weir_budget::{Ask, Limits, Refusal};
use weir_ledger::{Chain, Day, Head, Link};
use weir_run::{Decision, Epoch, Run, RunId, Sequence};

use crate::chains;
use crate::fault;
use crate::kv::Kv;
use crate::objects;
use crate::reader;
use crate::shared::Shared;
use crate::writer::op::{Cancel, Closing, Expire, Op, Queue, Request, Route, TakeOver};
use crate::writer::ops::{check_admission, check_kinds};
use crate::writer::state::{ReadError, recover};
use crate::writer::upkeep::check_note;
use crate::writer::{QUEUE, Reopen, Writer};
use crate::{
    Admission, Admit, Append, Appended, Budget, ChainDay, EventRecord, Note, Noted, Object,
    ObjectRange, ObjectWrite, OpenRun, Purge, Purged, Repair, Repaired, Scrub, Store, StoreError,
    StoreFuture, UsageReport, Written,
};

pub(crate) struct Embedded {
    shared: Arc<Shared>,
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<Queue>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    pub(crate) fn start(
        folder: PathBuf,
        identity: String,
        kv: Arc<dyn Kv>,
        lock: File,
        reopen: Reopen,
    ) -> Result<Self, ReadError> {
        let state = recover(&*kv)?;
        let shared = Arc::new(Shared::new(folder, identity, kv, &state));
        let (queue, ops) = mpsc::channel(QUEUE);
        let writer = Writer::new(shared.clone(), state, reopen);
        let world = fault::inherit();
        let thread = std::thread::Builder::new()
            .name("weir-store".into())
            .spawn(move || {
                world.enter();
                writer.run(ops, lock);
            })
            .map_err(|error| crate::kv::KvError::Io(error.to_string()))?;
        Ok(Self {
            shared,
            queue: Mutex::new(Some(queue)),
            writer: Mutex::new(Some(thread)),
        })
    }

    fn sender(&self) -> Result<mpsc::Sender<Queue>, StoreError> {
        self.queue.lock().clone().ok_or(StoreError::Closed)
    }

    /// Queues a write, waiting for a place, and waits for its answer.
    fn write<R: Request>(&self, request: R) -> StoreFuture<'_, R::Answer> {
        Box::pin(async move {
            let (op, answered) = Op::new(request);
            let queue = self.sender()?;
            queue
                .send(Queue::Write(op))
                .await
                .map_err(|_| StoreError::Closed)?;
            drop(queue);
            answered.await.map_err(|_| StoreError::Closed)?
        })
    }

    /// Reads off the async threads: the engine may have to go to the medium.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let reading = tokio::task::spawn_blocking(move || read(&shared));
            reading.await.map_err(|_| StoreError::Closed)?
        })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // What was queued is carried out; the folder can be opened again when this returns.
        self.queue.lock().take();
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            // A panic of the writer was reported when it happened.
            let _ = writer.join();
        }
    }
}

impl Store for Embedded {
    fn admit(&self, admission: Admission) -> StoreFuture<'_, Admit> {
        Box::pin(async move {
            check_admission(&admission).map_err(StoreError::Contract)?;
            let (op, answered) = Op::new(admission);
            let op = Queue::Write(op);
            // New work is turned away at once when the writer cannot keep up; what is live waits instead.
            self.sender()?.try_send(op).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => StoreError::Busy { queued: QUEUE },
                mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
            })?;
            answered.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn would_refuse(
        &self,
        tenant: &str,
        ask: Ask,
        limits: Limits,
        now_ms: u64,
    ) -> StoreFuture<'_, Option<Refusal>> {
        let refusal = self.shared.account(tenant).check(&limits, &ask, now_ms);
        Box::pin(async move { Ok(refusal.err()) })
    }

    fn append(&self, appends: Vec<Append>) -> StoreFuture<'_, Vec<Appended>> {
        if let Err(why) = check_kinds(&appends) {
            return Box::pin(async move { Err(StoreError::Contract(why)) });
        }
        self.write(appends)
    }

    fn append_shared(&self, appends: Arc<Vec<Append>>) -> StoreFuture<'_, Vec<Appended>> {
        if let Err(why) = check_kinds(&appends) {
            return Box::pin(async move { Err(StoreError::Contract(why)) });
        }
        self.write(appends)
    }

    fn cancel(&self, tenant: &str, run: RunId, _now_ms: u64) -> StoreFuture<'_, Option<Run>> {
        let tenant = tenant.to_owned();
        self.write(Cancel { tenant, run })
    }

    fn take_over(&self, run: RunId) -> StoreFuture<'_, Option<Epoch>> {
        self.write(TakeOver(run))
    }

    fn route(&self, run: RunId, decision: Decision) -> StoreFuture<'_, ()> {
        self.write(Route(run, decision))
    }

    fn run(&self, tenant: &str, run: RunId) -> StoreFuture<'_, Option<Run>> {
        if let Some(live) = self.shared.live(run) {
            let own = live.tenant == tenant || fault::broken("cross-tenant");
            let own = own.then_some(live);
            return Box::pin(async move { Ok(own) });
        }
        let tenant = tenant.to_owned();
        self.read(move |shared| shared.read(|view| reader::run(view, &tenant, run)))
    }

    fn run_by_key(&self, tenant: &str, request_key: &str) -> StoreFuture<'_, Option<Run>> {
        let (tenant, request_key) = (tenant.to_owned(), request_key.to_owned());
        self.read(move |shared| run_by_key(shared, &tenant, &request_key))
    }

    fn events(
        &self,
        run: RunId,
        after: Sequence,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventRecord>> {
        self.read(move |shared| shared.read(|view| reader::events(view, run, after, limit)))
    }

    fn open_runs(&self) -> StoreFuture<'_, Vec<OpenRun>> {
        self.read(open_runs)
    }

    fn budget(&self, tenant: &str, periods_s: Vec<u64>, now_ms: u64) -> StoreFuture<'_, Budget> {
        let budget = reader::budget(&self.shared.account(tenant), &periods_s, now_ms);
        Box::pin(async move { Ok(budget) })
    }

    fn usage(
        &self,
        tenant: &str,
        periods_s: Vec<u64>,
        from_ms: u64,
        to_ms: u64,
        now_ms: u64,
    ) -> StoreFuture<'_, UsageReport> {
        let tenant = tenant.to_owned();
        self.read(move |shared| {
            let usage = shared
                .read(|view| reader::usage(view, &tenant, &periods_s, from_ms..to_ms, now_ms))?;
            // Whether the books are right cannot be said of a medium that failed: half of a commit may show.
            match shared.poisoned.lock().clone() {
                Some(failed) => Err(failed),
                None => Ok(usage),
            }
        })
    }

    fn runs(&self, tenant: &str, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<Run>> {
        let tenant = tenant.to_owned();
        self.read(move |shared| shared.read(|view| chains::runs(view, &tenant, after, limit)))
    }

    fn chain(&self, chain: Chain, after: u64, limit: usize) -> StoreFuture<'_, Vec<Link>> {
        self.read(move |shared| shared.read(|view| chains::links(view, &chain, after, limit)))
    }

    fn chain_head(&self, chain: Chain) -> StoreFuture<'_, Head> {
        self.read(move |shared| shared.read(|view| chains::head(view, &chain)))
    }

    fn chain_day(&self, chain: Chain, day: Day) -> StoreFuture<'_, Option<ChainDay>> {
        self.read(move |shared| shared.read(|view| chains::day(view, &chain, day)))
    }

    fn note(&self, note: Note) -> StoreFuture<'_, Noted> {
        if let Err(why) = check_note(&note) {
            return Box::pin(async move { Err(StoreError::Contract(why)) });
        }
        self.write(note)
    }

    fn repair(&self, repair: Repair) -> StoreFuture<'_, Repaired> {
        self.write(repair)
    }

    fn purge(&self, purge: Purge) -> StoreFuture<'_, Purged> {
        self.write(purge)
    }

    fn scrub(&self) -> StoreFuture<'_, Scrub> {
        self.read(|shared| {
            let engine = shared.engine.read().clone().ok_or(StoreError::Closed)?;
            engine.scrub().map_err(|error| shared.unwritable(&error))
        })
    }

    fn expire(&self, now_ms: u64, limit: usize) -> StoreFuture<'_, usize> {
        self.write(Expire { now_ms, limit })
    }

    fn write_objects(&self, writes: Vec<ObjectWrite>) -> StoreFuture<'_, Written> {
        if let Err(why) = objects::check_writes(&writes) {
            return Box::pin(async move { Err(StoreError::Contract(why)) });
        }
        self.write(writes)
    }

    fn object(
        &self,
        space: &'static str,
        owner: &str,
        name: &str,
    ) -> StoreFuture<'_, Option<Object>> {
        let (owner, name) = (owner.to_owned(), name.to_owned());
        self.read(move |shared| shared.read(|view| objects::one(view, space, &owner, &name)))
    }

    fn objects(&self, range: ObjectRange) -> StoreFuture<'_, Vec<Object>> {
        self.read(move |shared| shared.read(|view| objects::many(view, &range)))
    }

    fn closed_to_runs(&self) -> Option<StoreError> {
        self.shared.closed_to_runs()
    }

    fn identity(&self) -> String {
        self.shared.identity.clone()
    }

    fn close(&self, within: Duration) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let Some(queue) = self.queue.lock().take() else {
                return Ok(());
            };
            let closing = async {
                let (closing, answered) = Closing::order();
                queue.send(closing).await.map_err(|_| StoreError::Closed)?;
                answered.await.map_err(|_| StoreError::Closed)?
            };
            tokio::time::timeout(within, closing)
                .await
                .map_err(|_| StoreError::Busy { queued: 1 })?
        })
    }
}

fn run_by_key(shared: &Shared, tenant: &str, request_key: &str) -> Result<Option<Run>, StoreError> {
    let Some(id) = shared.read(|view| reader::id_by_key(view, tenant, request_key))? else {
        return Ok(None);
    };
    // A row of a live run lags behind its events.
    match shared.live(id) {
        Some(live) => Ok((live.tenant == tenant).then_some(live)),
        None => shared.read(|view| reader::run(view, tenant, id)),
    }
}

fn open_runs(shared: &Shared) -> Result<Vec<OpenRun>, StoreError> {
    let ids = shared.live_ids().into_iter();
    let mut runs: Vec<Run> = ids.filter_map(|id| shared.live(id)).collect();
    runs.sort_by_key(|run| (run.created_at_ms, run.id));
    shared.read(|view| {
        let mut open = Vec::with_capacity(runs.len());
        for run in runs {
            // No work order: the run has ended since its row was copied.
            if let Some(work) = reader::work(view, run.id)? {
                open.push(OpenRun { run, work });
            }
        }
        Ok(open)
    })
}
