//! The contract every store keeps, and the words it uses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use weir_budget::{Ask, Limits, Refusal};
use weir_ledger::{Chain, Day, Head, Link};
use weir_run::{
    Decision, Epoch, Illegal, Run, RunId, RunStatus, Sequence, Start, Terminal, Usage, Verdict,
    WorkOrder,
};

use crate::upkeep::{ChainDay, Note, Noted, Purge, Purged, Repair, Repaired, Scrub};
use crate::{Object, ObjectRange, ObjectWrite, Written};

/// A future that a store returns. It may be dropped at any await: what was begun is either done whole or not at all.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A run that asks to be let in.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The row to insert, with status `Accepted` and `last_sequence` 1.
    pub run: Run,
    /// What the worker will need.
    pub work: WorkOrder,
    /// What it reserves.
    pub ask: Ask,
    /// The tenant's limits now.
    pub limits: Limits,
    /// Event 1, as it will be replayed.
    pub accepted: EventRecord,
    /// What the client sent beyond the prompt, kept as the object `run`/tenant/run id for as long as the run's events are.
    pub attachment: Option<bytes::Bytes>,
    /// Now.
    pub now_ms: u64,
}

/// What became of an [`Admission`]. A refusal leaves no trace: the request key stays free.
#[derive(Clone, Debug)]
pub enum Admit {
    /// The run, its first event and its reservation are durable.
    Admitted,
    /// The request key is known with the same payload: that run.
    Replayed(Box<Run>),
    /// The request key is known with another payload: the run that has it.
    Conflict(RunId),
    /// A limit does not suffice.
    Refused(Refusal),
    /// `replaces` names a run that is unknown, live, or already replaced.
    BadReplaces(String),
}

/// One event as it is stored and replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Its number.
    pub sequence: Sequence,
    /// The SSE `event`: `accepted`, `started`, `delta`, or a terminal status.
    pub kind: &'static str,
    /// The SSE `data`: one line of JSON.
    pub data: bytes::Bytes,
}

/// Events to add to one run. The whole of it is applied, or nothing.
#[derive(Clone, Debug)]
pub struct Append {
    /// Which run.
    pub run: RunId,
    /// The writer; refused unless it is the run's present epoch.
    pub epoch: Epoch,
    /// Contiguous, the first one right after the run's last.
    pub events: Vec<EventRecord>,
    /// Output tokens these events add.
    pub output_tokens: u64,
    /// Rows of worker output these events cover: the run's `output_index` afterwards.
    pub output_index: u64,
    /// Set when the worker took the run up: prompt tokens reused, and who.
    pub started: Option<Start>,
    /// Set when the last event is terminal: the reservation is settled in the same commit.
    pub terminal: Option<Terminal>,
    /// What policies decided about these events; kept in the run's row.
    pub verdicts: Vec<Verdict>,
    /// Now.
    pub now_ms: u64,
}

/// What became of an [`Append`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// Durable. The run's status now: a writer that reads `Cancelling` asks its worker to stop.
    Done(RunStatus),
    /// Another writer took the run over.
    Fenced(Epoch),
    /// The run is terminal already.
    Terminal(RunStatus),
    /// No such run.
    Unknown,
    /// The writer broke the contract of the run's log; nothing of this append was applied, the others of the batch were.
    Refused(Illegal),
}

/// A run that is not terminal, with what is needed to carry it on.
#[derive(Clone, Debug)]
pub struct OpenRun {
    /// The row.
    pub run: Run,
    /// What the worker needs.
    pub work: WorkOrder,
}

/// One budget window as clients see it: limit = available + reserved + used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetWindow {
    /// Length.
    pub period_s: u64,
    /// Start, in milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// Tokens settled.
    pub used_tokens: u64,
    /// Tokens of live runs.
    pub reserved_tokens: u64,
    /// Micro-units settled.
    pub used_micros: u64,
    /// Micro-units of live runs.
    pub reserved_micros: u64,
}

impl BudgetWindow {
    /// When it ends, in milliseconds since the Unix epoch.
    pub fn end_ms(&self) -> u64 {
        let length_ms = self.period_s.saturating_mul(1000);
        self.start_ms.saturating_add(length_ms)
    }

    /// Tokens left of a limit: limit = available + reserved + used. Negative after the limit was lowered, until that is worked off.
    pub fn available_tokens(&self, limit: u64) -> i64 {
        weir_budget::available(limit, self.used_tokens, self.reserved_tokens)
    }

    /// Micro-units left of a limit, likewise.
    pub fn available_micros(&self, limit: u64) -> i64 {
        weir_budget::available(limit, self.used_micros, self.reserved_micros)
    }
}

/// A tenant's account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// One per period asked for: the window that `now` is in.
    pub windows: Vec<BudgetWindow>,
    /// Runs that are not terminal.
    pub live_runs: u64,
    /// Runs accepted in the minute that contains `now`.
    pub minute_requests: u64,
    /// Tokens they reserved.
    pub minute_tokens: u64,
}

/// Terminal runs by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the statuses themselves")]
pub struct RunCounts {
    pub completed: u64,
    pub cancelled: u64,
    pub interrupted: u64,
    pub failed: u64,
    pub expired: u64,
}

/// What was billed for one model version, for runs accepted on one UTC day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    /// When they were accepted.
    pub day: Day,
    /// The model.
    pub model: String,
    /// The version.
    pub version: u32,
    /// Terminal runs.
    pub runs: RunCounts,
    /// Sums over them.
    pub usage: Usage,
}

/// A tenant's reconciled ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// Windows that contain `now`.
    pub budget: Budget,
    /// Billed runs accepted in the range asked for, by model, version and day.
    pub by_model: Vec<ModelUsage>,
    /// Whether the account equals the sum over the ledger and the live runs.
    pub consistent: bool,
    /// Where it does not: the account's field, what the account says (`old`) and what ledger and live runs give (`new`). Empty exactly
    /// when `consistent`.
    pub differences: Vec<weir_ledger::Change>,
}

/// Durable runs, events, budgets and usage.
///
/// Every method is atomic and its answer durable. Clones of one store (behind `Arc`) may be used from any task.
pub trait Store: Send + Sync + 'static {
    /// Lets a run in: request key, budgets, row and event 1 in one commit.
    fn admit(&self, admission: Admission) -> StoreFuture<'_, Admit>;

    /// Checks an admission without leaving a trace, to name the first refusal that applies. `Ok(None)`: it would be let in.
    fn would_refuse(
        &self,
        tenant: &str,
        ask: Ask,
        limits: Limits,
        now_ms: u64,
    ) -> StoreFuture<'_, Option<Refusal>>;

    /// Adds events to many runs in one commit; one answer each, in order.
    ///
    /// A run that ends is settled in the same commit, and its [`weir_ledger::UsageRecord`] becomes the next link of its tenant's chain
    /// ([`Chain::Ledger`]). A chain has one head for all gateways of a store, and its growth is serialised as the account's is.
    fn append(&self, appends: Vec<Append>) -> StoreFuture<'_, Vec<Appended>>;

    /// As [`Store::append`], where the caller keeps the appends to try again; saves a copy of each event where the store can.
    fn append_shared(&self, appends: Arc<Vec<Append>>) -> StoreFuture<'_, Vec<Appended>> {
        self.append(Vec::clone(&appends))
    }

    /// Records the intent to cancel and answers with the run; idempotent. `None`: no such run of this tenant.
    fn cancel(&self, tenant: &str, run: RunId, now_ms: u64) -> StoreFuture<'_, Option<Run>>;

    /// Takes a run over: raises its epoch by one and answers with it. `None`: unknown or terminal.
    fn take_over(&self, run: RunId) -> StoreFuture<'_, Option<Epoch>>;

    /// Notes how a run was routed, before it is sent to a worker.
    fn route(&self, run: RunId, decision: Decision) -> StoreFuture<'_, ()>;

    /// A run of this tenant.
    fn run(&self, tenant: &str, run: RunId) -> StoreFuture<'_, Option<Run>>;

    /// The run of this tenant that has a request key.
    fn run_by_key(&self, tenant: &str, request_key: &str) -> StoreFuture<'_, Option<Run>>;

    /// Retained events of a run with a sequence above `after`, at most `limit`, in order. The caller has checked the tenant.
    fn events(
        &self,
        run: RunId,
        after: Sequence,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventRecord>>;

    /// All runs that are not terminal, in the order they were accepted.
    fn open_runs(&self) -> StoreFuture<'_, Vec<OpenRun>>;

    /// The tenant's account in the windows that contain `now`.
    fn budget(&self, tenant: &str, periods_s: Vec<u64>, now_ms: u64) -> StoreFuture<'_, Budget>;

    /// The tenant's ledger over runs accepted in `[from_ms, to_ms)`, reconciled with the account.
    fn usage(
        &self,
        tenant: &str,
        periods_s: Vec<u64>,
        from_ms: u64,
        to_ms: u64,
        now_ms: u64,
    ) -> StoreFuture<'_, UsageReport>;

    /// The tenant's runs that still have a row, live ones included, in the order of their ids (that is, of time), after one of them.
    fn runs(&self, tenant: &str, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<Run>>;

    /// Links of a chain with a number above `after`, at most `limit`, in order.
    fn chain(&self, chain: Chain, after: u64, limit: usize) -> StoreFuture<'_, Vec<Link>>;

    /// The end of a chain; [`Head::empty`] when it has no link.
    fn chain_head(&self, chain: Chain) -> StoreFuture<'_, Head>;

    /// Where a UTC day lies in a chain; `None` when it has no link of that day.
    fn chain_day(&self, chain: Chain, day: Day) -> StoreFuture<'_, Option<ChainDay>>;

    /// Adds lines to the audit log ([`Chain::Audit`]) and writes objects, all of it in one commit or, when an object is not as expected,
    /// nothing. That makes an alert be raised once over all gateways and restarts.
    fn note(&self, note: Note) -> StoreFuture<'_, Noted>;

    /// Derives a tenant's account anew from its ledger and its live runs ([`weir_budget::Account::rebuilt`]). With `apply`, what differs is
    /// written in one commit with a line of the audit log; nothing is written where nothing differs. Safe while runs go on. Never touches
    /// the ledger.
    fn repair(&self, repair: Repair) -> StoreFuture<'_, Repaired>;

    /// Drops the content of terminal runs accepted before a moment: their events, what came with their admission, and the client's labels in
    /// the row. Row, request key, usage and ledger stay. At most `limit` rows are looked at; the answer says where to go on.
    fn purge(&self, purge: Purge) -> StoreFuture<'_, Purged>;

    /// Makes what was removed unreadable in the store's own files too. Writes wait meanwhile: for people, after a [`Store::purge`].
    fn scrub(&self) -> StoreFuture<'_, Scrub>;

    /// Drops events (and work orders) of terminal runs whose retention is over, at most `limit` runs; how many were dropped.
    fn expire(&self, now_ms: u64, limit: usize) -> StoreFuture<'_, usize>;

    /// Writes objects in one commit, or none of them when one is not as expected.
    fn write_objects(&self, writes: Vec<ObjectWrite>) -> StoreFuture<'_, Written>;

    /// An object.
    fn object(
        &self,
        space: &'static str,
        owner: &str,
        name: &str,
    ) -> StoreFuture<'_, Option<Object>>;

    /// Objects of one owner in a space, by name.
    fn objects(&self, range: ObjectRange) -> StoreFuture<'_, Vec<Object>>;

    /// The other gateways of this store; `None` where there cannot be any.
    fn replicas(&self) -> Option<&dyn crate::Replicas> {
        None
    }

    /// Why no run could be let in now, as far as that is known without trying: readiness asks now and then. `None`: nothing is known
    /// against it.
    fn closed_to_runs(&self) -> Option<StoreError> {
        None
    }

    /// A stable identity, made when the store was: gateways of one store may attach to each other's runs.
    fn identity(&self) -> String;

    /// Waits for what was begun and closes the files; nothing may be called afterwards.
    fn close(&self, within: Duration) -> StoreFuture<'_, ()>;
}

/// The store could not do its work. Nothing that was asked for is durable unless a later read says so.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The medium refused a write or a sync. The writer is poisoned: it refuses all writes until the process starts again.
    #[error("cannot write to the store at {path:?}: {cause}")]
    Write {
        /// Where.
        path: String,
        /// What the medium said.
        cause: String,
    },
    /// The medium is full; writes are refused until there is space.
    #[error("the store at {path:?} is out of disk space")]
    Full {
        /// Where.
        path: String,
    },
    /// The medium could not be read, or what it holds makes no sense.
    #[error("cannot read the store at {path:?}: {cause}")]
    Read {
        /// Where.
        path: String,
        /// What was found.
        cause: String,
    },
    /// The store's server cannot be reached, or did not answer in time. What was asked for is not durable, unless a later read says so.
    #[error("the store at {path:?} cannot be reached: {cause}")]
    Away {
        /// Where, without secrets.
        path: String,
        /// What went wrong last.
        cause: String,
    },
    /// Another process has the store open.
    #[error("the store at {path:?} is in use by another process")]
    Locked {
        /// Where.
        path: String,
    },
    /// More work is queued than the store takes; try again later.
    #[error("the store has {queued} writes queued")]
    Busy {
        /// The bound that was reached.
        queued: usize,
    },
    /// The caller broke the contract; other calls are not touched.
    #[error("refused a write that breaks the contract of the store: {0}")]
    Contract(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}
