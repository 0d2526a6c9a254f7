//! The contract, on a server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use weir_budget::{Ask, Limits, Refusal};
use weir_ledger::{Chain, Day, Head, Link};
use weir_run::{Decision, Epoch, Run, RunId, Sequence};
use weir_store::engine::{
    Cancel, Closing, Expire, KvError, Op, QUEUE, Queue, ReadError, Request, Route, TakeOver, View,
    check_admission, check_kinds, check_note, check_writes, key, read,
};
use weir_store::{
    Admission, Admit, Append, Appended, Budget, ChainDay, EventRecord, Note, Noted, Object,
    ObjectRange, ObjectWrite, OpenRun, Purge, Purged, Repair, Repaired, Replicas, Scrub, Store,
    StoreError, StoreFuture, UsageReport, Written,
};

use crate::error::unreadable;
use crate::fetch::fetch;
use crate::memory::{Memory, MemoryView, Wants};
use crate::open::Server;

/// Rounds of reading that one answer may need.
const ROUNDS: usize = 32;
/// An admission that is not answered by then is refused. Should it come through after all, its gateway finds the run in the store.
const ADMITTED_WITHIN: Duration = Duration::from_secs(10);

/// An open store on a server.
pub struct Postgres {
    pub(crate) server: Arc<Server>,
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<Queue>>>,
    tasks: [AbortHandle; 2],
}

impl Drop for Postgres {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Postgres {
    pub(crate) fn new(
        server: Arc<Server>,
        queue: mpsc::Sender<Queue>,
        tasks: [AbortHandle; 2],
    ) -> Self {
        Self {
            server,
            queue: Mutex::new(Some(queue)),
            tasks,
        }
    }

    /// Commits that another gateway's beat, and that were evaluated again.
    pub fn races(&self) -> u64 {
        self.server.races()
    }

    fn sender(&self) -> Result<mpsc::Sender<Queue>, StoreError> {
        self.queue.lock().clone().ok_or(StoreError::Closed)
    }

    /// Queues a write, waiting for a place, and waits for its answer.
    pub(crate) fn write<R: Request>(&self, request: R) -> StoreFuture<'_, R::Answer> {
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

    /// Reads from one state of the database, in as many rounds as it takes to know what is wanted. Each round reads everything anew, so
    /// that the last one is one state.
    fn read<T: Send + 'static>(
        &self,
        mut wants: Wants,
        read: impl Fn(&dyn View) -> Result<T, ReadError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(async move {
            for _ in 0..ROUNDS {
                let mut memory = Memory::default();
                if !wants.is_empty() {
                    fetch(&self.server.pool, &wants, &mut memory)
                        .await
                        .map_err(|error| unreadable(&self.server.path, &error))?;
                }
                let (outcome, more) = {
                    let view = MemoryView::new(&memory);
                    let outcome = read(&view);
                    (outcome, view.into_parts().0)
                };
                match outcome {
                    Ok(answer) if more.is_empty() => return Ok(answer),
                    Ok(_) | Err(ReadError::Engine(KvError::NotRead)) => wants.add(more),
                    Err(error) => return Err(self.nonsense(error.to_string())),
                }
            }
            Err(self.nonsense("an answer wants to read without end".to_owned()))
        })
    }

    fn nonsense(&self, cause: String) -> StoreError {
        StoreError::Read {
            path: self.server.path.clone(),
            cause,
        }
    }
}

fn wants(records: impl IntoIterator<Item = Vec<u8>>, run: Option<RunId>) -> Wants {
    Wants {
        records: records.into_iter().collect(),
        lasts: run.into_iter().collect(),
        ..Wants::default()
    }
}

impl Store for Postgres {
    fn admit(&self, admission: Admission) -> StoreFuture<'_, Admit> {
        Box::pin(async move {
            check_admission(&admission).map_err(StoreError::Contract)?;
            let (op, answered) = Op::new(admission);
            // New work is turned away at once when the writer cannot keep up; what is live waits instead.
            self.sender()?
                .try_send(Queue::Write(op))
                .map_err(|error| match error {
                    mpsc::error::TrySendError::Full(_) => StoreError::Busy { queued: QUEUE },
                    mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
                })?;
            match tokio::time::timeout(ADMITTED_WITHIN, answered).await {
                Ok(answer) => answer.map_err(|_| StoreError::Closed)?,
                Err(_) => Err(StoreError::Away {
                    path: self.server.path.clone(),
                    cause: format!("it did not answer within {ADMITTED_WITHIN:?}"),
                }),
            }
        })
    }

    fn would_refuse(
        &self,
        tenant: &str,
        ask: Ask,
        limits: Limits,
        now_ms: u64,
    ) -> StoreFuture<'_, Option<Refusal>> {
        let tenant = tenant.to_owned();
        let first = wants([key::account(&tenant)], None);
        self.read(first, move |view| {
            let account = read::stored_account(view, &tenant)?;
            Ok(account.check(&limits, &ask, now_ms).err())
        })
    }

    fn append(&self, appends: Vec<Append>) -> StoreFuture<'_, Vec<Appended>> {
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
        let tenant = tenant.to_owned();
        let first = wants([key::run(&tenant, run)], Some(run));
        self.read(first, move |view| read::live_or_ended(view, &tenant, run))
    }

    fn run_by_key(&self, tenant: &str, request_key: &str) -> StoreFuture<'_, Option<Run>> {
        let (tenant, request_key) = (tenant.to_owned(), request_key.to_owned());
        self.read(Wants::default(), move |view| {
            match read::id_by_key(view, &tenant, &request_key)? {
                Some(id) => read::live_or_ended(view, &tenant, id),
                None => Ok(None),
            }
        })
    }

    fn events(
        &self,
        run: RunId,
        after: Sequence,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventRecord>> {
        self.read(Wants::default(), move |view| {
            read::events(view, run, after, limit)
        })
    }

    fn open_runs(&self) -> StoreFuture<'_, Vec<OpenRun>> {
        self.read(Wants::default(), open_runs)
    }

    fn budget(&self, tenant: &str, periods_s: Vec<u64>, now_ms: u64) -> StoreFuture<'_, Budget> {
        let tenant = tenant.to_owned();
        let first = wants([key::account(&tenant)], None);
        self.read(first, move |view| {
            let account = read::stored_account(view, &tenant)?;
            Ok(read::budget(&account, &periods_s, now_ms))
        })
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
        self.read(Wants::default(), move |view| {
            read::usage(view, &tenant, &periods_s, from_ms..to_ms, now_ms)
        })
    }

    fn runs(&self, tenant: &str, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<Run>> {
        let tenant = tenant.to_owned();
        self.read(Wants::default(), move |view| {
            read::runs(view, &tenant, after, limit)
        })
    }

    fn chain(&self, chain: Chain, after: u64, limit: usize) -> StoreFuture<'_, Vec<Link>> {
        self.read(Wants::default(), move |view| {
            read::chain(view, &chain, after, limit)
        })
    }

    fn chain_head(&self, chain: Chain) -> StoreFuture<'_, Head> {
        self.read(Wants::default(), move |view| read::chain_head(view, &chain))
    }

    fn chain_day(&self, chain: Chain, day: Day) -> StoreFuture<'_, Option<ChainDay>> {
        self.read(Wants::default(), move |view| {
            read::chain_day(view, &chain, day)
        })
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
        const SCRUB: &str = "DELETE FROM weir.chunk c USING weir.expired e WHERE c.run = e.run";
        Box::pin(async move {
            self.rows(sqlx::query(SCRUB)).await?;
            Ok(Scrub::Later(
                "the rows are deleted; the server's vacuum frees their space, and its write-ahead log, standbys and backups keep them for as long as they are set up to"
                    .to_owned(),
            ))
        })
    }

    fn expire(&self, now_ms: u64, limit: usize) -> StoreFuture<'_, usize> {
        self.write(Expire { now_ms, limit })
    }

    fn write_objects(&self, writes: Vec<ObjectWrite>) -> StoreFuture<'_, Written> {
        if let Err(why) = check_writes(&writes) {
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
        self.read(Wants::default(), move |view| {
            read::object(view, space, &owner, &name)
        })
    }

    fn objects(&self, range: ObjectRange) -> StoreFuture<'_, Vec<Object>> {
        self.read(Wants::default(), move |view| read::objects(view, &range))
    }

    fn replicas(&self) -> Option<&dyn Replicas> {
        Some(self)
    }

    fn closed_to_runs(&self) -> Option<StoreError> {
        self.server.trouble()
    }

    fn identity(&self) -> String {
        self.server.identity.clone()
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

/// All live runs; what is missing of any of them is asked for at once.
fn open_runs(view: &dyn View) -> Result<Vec<OpenRun>, ReadError> {
    let (from, to) = key::family(key::OPEN);
    let mut ids = Vec::new();
    view.scan(&from, &to, &mut |key, _| {
        if let (Some(tenant), Some(run)) = (key::tenant(key), key::trailing_run(key)) {
            ids.push((tenant.to_owned(), run));
        }
        std::ops::ControlFlow::Continue(())
    })?;
    let mut open = Vec::new();
    let mut first = None;
    for (tenant, id) in ids {
        match (read::live_or_ended(view, &tenant, id), read::work(view, id)) {
            (Ok(Some(run)), Ok(Some(work))) => open.push(OpenRun { run, work }),
            (Err(error), _) | (_, Err(error)) => first = first.or(Some(error)),
            _ => {}
        }
    }
    open.sort_by_key(|open| (open.run.created_at_ms, open.run.id));
    first.map_or(Ok(open), Err)
}
