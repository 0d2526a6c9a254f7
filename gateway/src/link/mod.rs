//! Sessions with workers: every row a worker sends becomes durable, then visible, then acknowledged, in this order.

mod ask;
mod commit;
mod connect;
mod dispatch;
mod judged;
mod measured;
mod pieces;
mod receive;
mod reconcile;
mod resumed;
mod session;
mod watch;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use weir_admission::Pace;
use weir_protocol::worker::{EngineLimits, HeldRun, LoadedModel, Submit, WorkerStatus};
use weir_run::RunId;

pub(crate) use ask::{Answer, BEGINNING_BYTES, BEGINNING_TOKENS, Question, Said};
pub(crate) use commit::{Outcome, append_durably, take_over_durably};
pub(crate) use connect::look;
pub(crate) use dispatch::{Dispatch, prefixes};
pub(crate) use resumed::ChoiceEnds;
pub(crate) use session::{Link, parse_id};
pub(crate) use writer::{Ending, Pending, Writer};

use crate::policy::OutputAnswer;
use crate::snapshot::WorkerEndpoint;

/// A run on its way to a worker: its writer and what the worker needs.
pub(crate) struct Job {
    pub(crate) writer: Writer,
    pub(crate) submit: Submit,
    pub(crate) pool: String,
    /// What is expected of it on the worker that it goes to.
    pub(crate) dispatch: Option<Dispatch>,
    /// How often a worker took it and lost it before it started.
    pub(crate) attempts: u32,
}

impl Job {
    /// The version that the run is pinned to.
    pub(crate) fn digest(&self) -> &str {
        &self.submit.version_digest
    }
}

/// What others tell a link.
pub(crate) enum Command {
    /// Carry this run out.
    Submit(Box<Job>),
    /// Go on with a run of another gateway, which this one has just taken over and the worker holds.
    Adopt(Box<Job>, HeldRun),
    /// The run is meant to end: its live control says how.
    Cancel(RunId),
    /// Ask this, for nobody's run.
    Ask(Box<Question>),
    /// What checkers said to a part of a run's output.
    Judged(RunId, OutputAnswer),
    /// The process at this endpoint is gone for certain: do not wait for it.
    Died,
    /// Finish what runs, then end.
    Retire,
}

/// A link as others see it.
pub(crate) struct LinkHandle {
    /// Counts the links of this process.
    pub(crate) id: u64,
    pub(crate) endpoint: WorkerEndpoint,
    commands: mpsc::UnboundedSender<Command>,
    pub(crate) connected: AtomicBool,
    pub(crate) welcomed: AtomicBool,
    pub(crate) draining: AtomicBool,
    retiring: AtomicBool,
    pub(crate) in_flight: AtomicU32,
    pub(crate) in_flight_tokens: AtomicU64,
    /// Prompt tokens of runs that were sent and not started.
    pub(crate) outstanding: AtomicU64,
    /// Runs in flight of each tenant that has any.
    held: Mutex<BTreeMap<String, u32>>,
    pub(crate) facts: Mutex<Facts>,
    begun: Instant,
    /// When the worker last got something done or had nothing to do, in milliseconds since `begun`.
    progress_ms: AtomicU64,
    /// Runs were taken back because it got nothing done: it has nothing to do now, which proves nothing.
    is_suspect: AtomicBool,
}

/// What a worker said of itself.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    pub(crate) digests: Vec<String>,
    /// Versions whose runs may have a grammar.
    pub(crate) grammars: Vec<String>,
    /// Versions whose runs may ask for log-probabilities of their prompts.
    pub(crate) scorers: Vec<String>,
    /// Longest sequence of each, where it said so.
    pub(crate) contexts: BTreeMap<String, u32>,
    pub(crate) limits: EngineLimits,
    pub(crate) status: WorkerStatus,
    /// How fast it computes, as learned from its statuses.
    pub(crate) pace: Pace,
}

impl Facts {
    /// What the worker has: a version, and adapters of it, which come and go.
    fn note(&mut self, models: &[LoadedModel]) {
        let digests = |of: fn(&LoadedModel) -> bool| {
            let models = models.iter().filter(|model| of(model));
            models.map(|model| model.version_digest.clone()).collect()
        };
        self.grammars = digests(|model| model.grammars);
        self.scorers = digests(|model| model.scores_prompts);
        self.digests = digests(|_| true);
        let contexts = models.iter();
        self.contexts = contexts
            .map(|model| (model.version_digest.clone(), model.context_tokens))
            .collect();
    }

    /// What the worker cannot do and a run asks for.
    fn lack(&self, submit: &Submit) -> Option<&'static str> {
        let (digest, sampling) = (&submit.version_digest, submit.sampling.as_ref());
        if submit.grammar.is_some() && !self.grammars.contains(digest) {
            return Some(
                "grammar_error: the worker cannot make the output follow a format or call tools",
            );
        }
        let scores = sampling.is_some_and(|sampling| sampling.prompt_logprobs.is_some());
        (scores && !self.scorers.contains(digest)).then_some(
            "the worker cannot tell log-probabilities of a prompt; leave `echo` or `promptLogprobs` out",
        )
    }
}

/// How many links this process has had.
static LINKS: AtomicU64 = AtomicU64::new(0);

impl LinkHandle {
    pub(crate) fn new(endpoint: WorkerEndpoint) -> (Arc<Self>, mpsc::UnboundedReceiver<Command>) {
        // Unbounded, but bounded by what it carries: at most two commands for every admitted run.
        let (commands, receiver) = mpsc::unbounded_channel();
        let handle = Self {
            id: LINKS.fetch_add(1, Ordering::Relaxed),
            endpoint,
            commands,
            connected: AtomicBool::new(false),
            welcomed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            in_flight_tokens: AtomicU64::new(0),
            outstanding: AtomicU64::new(0),
            is_suspect: AtomicBool::new(false),
            held: Mutex::default(),
            facts: Mutex::default(),
            begun: Instant::now(),
            progress_ms: AtomicU64::new(0),
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

    /// Whether it may be sent new runs of a version now: it serves it, and gets done what it has.
    pub(crate) fn takes(&self, digest: &str) -> bool {
        self.serves(digest) && !self.is_stalled()
    }

    fn is_open(&self) -> bool {
        self.connected.load(Ordering::Acquire)
            && !self.draining.load(Ordering::Acquire)
            && !self.retiring.load(Ordering::Acquire)
    }

    /// Whether a sequence of so many tokens fits its context and its memory at all.
    pub(crate) fn could_hold(&self, digest: &str, tokens: u64) -> bool {
        let facts = self.facts.lock();
        let context = facts.contexts.get(digest).copied().unwrap_or(0);
        let fits_context = context == 0 || tokens <= u64::from(context);
        let memory = u64::from(facts.limits.blocks_total) * u64::from(facts.limits.block_tokens);
        fits_context && (memory == 0 || tokens <= memory)
    }

    /// KV positions of the worker.
    pub(crate) fn kv_tokens(&self) -> u64 {
        let facts = self.facts.lock();
        u64::from(facts.limits.blocks_total) * u64::from(facts.limits.block_tokens)
    }

    /// Runs it could be sent now: a few beyond what it computes at once, so that it never idles between steps.
    pub(crate) fn seats(&self) -> u32 {
        self.most_seats()
            .saturating_sub(self.in_flight.load(Ordering::Acquire))
    }

    /// Seats, free or not.
    pub(crate) fn most_seats(&self) -> u32 {
        let max_running = self.max_running();
        max_running + (max_running / 8).max(1)
    }

    fn max_running(&self) -> u32 {
        self.facts.lock().limits.max_running.max(1)
    }

    /// Seats that no tenant may take who has as many: an eighth of what is computed at once, and those beyond it, so that a newcomer is
    /// computed in the next steps and not when one of somebody's long runs ends. A worker of fewer than eight has none to spare.
    pub(crate) fn reserved_seats(&self) -> u32 {
        self.max_running() / 8 * 2
    }

    /// Runs in flight of each tenant that has any.
    pub(crate) fn held(&self) -> BTreeMap<String, u32> {
        self.held.lock().clone()
    }

    /// KV positions that are free or can be freed. A worker with nothing to do takes everything: whether a run fits at all it says
    /// itself.
    pub(crate) fn free_kv_tokens(&self) -> u64 {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return u64::MAX;
        }
        let facts = self.facts.lock();
        let (limits, status) = (&facts.limits, &facts.status);
        if status.blocks_total > 0 {
            let blocks = u64::from(status.blocks_free) + u64::from(status.blocks_cached);
            return blocks * u64::from(limits.block_tokens);
        }
        let total = u64::from(limits.blocks_total) * u64::from(limits.block_tokens);
        total.saturating_sub(self.in_flight_tokens.load(Ordering::Acquire))
    }

    /// The worker got something done; whether it had counted as stalled.
    pub(crate) fn progressed(&self) -> bool {
        let was_stalled = self.is_stalled();
        let now = self.begun.elapsed().as_millis() as u64;
        self.progress_ms.store(now, Ordering::Release);
        self.is_suspect.store(false, Ordering::Release);
        was_stalled
    }

    /// Its runs were taken back: it stays out until it gets something done or says itself that it has nothing to do.
    pub(crate) fn suspect(&self) {
        self.is_suspect.store(true, Ordering::Release);
    }

    /// How long it has had something to do and got nothing done.
    pub(crate) fn stalled_ms(&self) -> u64 {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let now = self.begun.elapsed().as_millis() as u64;
        now.saturating_sub(self.progress_ms.load(Ordering::Acquire))
    }

    /// It has something to do and gets nothing done: it is left out until it does. Its port says nothing of that.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_suspect.load(Ordering::Acquire) || self.stalled_ms() > self.stall_after_ms()
    }

    /// A worker whose steps are long is given longer before it counts as stalled.
    pub(crate) fn stall_after_ms(&self) -> u64 {
        let facts = self.facts.lock();
        facts.pace.stall_after_ms(facts.limits.max_batch_tokens)
    }

    pub(crate) fn occupy(&self, tenant: &str, tokens: u64) {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            let now = self.begun.elapsed().as_millis() as u64;
            self.progress_ms.store(now, Ordering::Release);
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.in_flight_tokens.fetch_add(tokens, Ordering::AcqRel);
        *self.held.lock().entry(tenant.to_owned()).or_default() += 1;
    }

    pub(crate) fn vacate(&self, tenant: &str, tokens: u64) {
        let mut held = self.held.lock();
        if let Some(count) = held.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                held.remove(tenant);
            }
        }
        drop(held);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.in_flight_tokens.fetch_sub(tokens, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
