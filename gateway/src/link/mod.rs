//! Sessions with workers: every row a worker sends becomes durable, then visible, then acknowledged, in this order.

mod commit;
mod connect;
mod reconcile;
mod session;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use weir_protocol::worker::{EngineLimits, Submit, WorkerStatus};
use weir_run::RunId;

pub(crate) use commit::{Outcome, append_durably};
pub(crate) use session::Link;
pub(crate) use writer::{Ending, Pending, Writer};

use crate::snapshot::WorkerEndpoint;

/// A run on its way to a worker: its writer and what the worker needs.
pub(crate) struct Job {
    pub(crate) writer: Writer,
    pub(crate) submit: Submit,
    pub(crate) pool: String,
    /// How often a worker took it and lost it before it started.
    pub(crate) attempts: u32,
}

/// What others tell a link.
pub(crate) enum Command {
    /// Carry this run out.
    Submit(Box<Job>),
    /// The run is meant to end: its live control says how.
    Cancel(RunId),
    /// The process at this endpoint is gone for certain: do not wait for it.
    Died,
    /// Finish what runs, then end.
    Retire,
}

/// A link as others see it.
pub(crate) struct LinkHandle {
    pub(crate) endpoint: WorkerEndpoint,
    commands: mpsc::UnboundedSender<Command>,
    pub(crate) connected: AtomicBool,
    pub(crate) welcomed: AtomicBool,
    pub(crate) draining: AtomicBool,
    retiring: AtomicBool,
    pub(crate) in_flight: AtomicU32,
    pub(crate) in_flight_tokens: AtomicU64,
    pub(crate) facts: Mutex<Facts>,
}

/// What a worker said of itself.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    pub(crate) digests: Vec<String>,
    pub(crate) limits: EngineLimits,
    pub(crate) status: WorkerStatus,
}

impl LinkHandle {
    pub(crate) fn new(endpoint: WorkerEndpoint) -> (Arc<Self>, mpsc::UnboundedReceiver<Command>) {
        // Unbounded, but bounded by what it carries: at most two commands for every admitted run.
        let (commands, receiver) = mpsc::unbounded_channel();
        let handle = Self {
            endpoint,
            commands,
            connected: AtomicBool::new(false),
            welcomed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            in_flight_tokens: AtomicU64::new(0),
            facts: Mutex::default(),
        };
        (Arc::new(handle), receiver)
    }

    /// Sends a command; gives a run back when the link has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|refused| refused.0)
    }

    pub(crate) fn retire(&self) {
        self.retiring.store(true, Ordering::Release);
        // The link may have ended already.
        self.send(Command::Retire).ok();
    }

    /// Whether new runs of a version may go there at all.
    pub(crate) fn serves(&self, digest: &str) -> bool {
        self.is_open() && self.facts.lock().digests.iter().any(|d| d == digest)
    }

    fn is_open(&self) -> bool {
        self.connected.load(Ordering::Acquire)
            && !self.draining.load(Ordering::Acquire)
            && !self.retiring.load(Ordering::Acquire)
    }

    /// KV positions of the worker.
    pub(crate) fn kv_tokens(&self) -> u64 {
        let facts = self.facts.lock();
        u64::from(facts.limits.blocks_total) * u64::from(facts.limits.block_tokens)
    }

    /// Whether the worker should get another run now: it may hold a few beyond what it runs, so that it never idles between steps.
    pub(crate) fn has_capacity(&self) -> bool {
        let max_running = self.facts.lock().limits.max_running.max(1);
        self.in_flight.load(Ordering::Acquire) < max_running + (max_running / 8).max(1)
    }

    pub(crate) fn occupy(&self, tokens: u64) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.in_flight_tokens.fetch_add(tokens, Ordering::AcqRel);
    }

    pub(crate) fn vacate(&self, tokens: u64) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.in_flight_tokens.fetch_sub(tokens, Ordering::AcqRel);
    }
}
