//! What this gateway measures of versions on trial: cumulative counts of runs that the coin alone assigned.
//!
//! Only integers leave it. A run counts when it settles, at equal age whichever version it has, so that failing at once and failing by
//! timeout weigh the same; failures count a second time at once, for those who cannot wait.

mod book;
mod looping;
mod trial;
mod words;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use weir_rollout::evidence::{Counts, EntryKey, Snapshot};
use weir_rollout::routing::Table;
use weir_run::RunId;
use weir_store::RunMap;

use book::Book;
pub(crate) use looping::Looping;
use trial::Trial;
pub(crate) use trial::{End, Output};
pub(crate) use words::is_refusal;

use crate::clock::random_u128;

/// All models' counts, and the runs that have not settled.
pub(crate) struct Evidence {
    gateway: String,
    /// This process: another one starts its counters at 0.
    boot: String,
    times: Times,
    books: Mutex<HashMap<String, Book>>,
    open: [Mutex<RunMap<Trial>>; 16],
}

/// When runs count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Age at which a run settles, and time without a token after which one that a worker has is bad.
    pub(crate) settle: Duration,
    /// Latencies of a table count only for runs assigned so long after it was applied.
    pub(crate) warm_up: Duration,
}

/// A run as the coin assigned it.
pub(crate) struct Assigned<'a> {
    pub(crate) model: &'a str,
    pub(crate) digest: &'a str,
    pub(crate) tenant: &'a str,
    pub(crate) table: &'a Table,
    /// Since when the table is applied.
    pub(crate) since: Option<Instant>,
}

impl Assigned<'_> {
    fn key(&self) -> EntryKey {
        EntryKey {
            table: self.table.order,
            attempt: self.table.attempt.clone().unwrap_or_default(),
            digest: self.digest.to_owned(),
        }
    }
}

impl Evidence {
    pub(crate) fn new(gateway: String, times: Times) -> Self {
        Self {
            gateway,
            boot: format!("{:032x}", random_u128()),
            times,
            books: Mutex::default(),
            open: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, run: RunId) -> &Mutex<RunMap<Trial>> {
        // The low bits of an id are random.
        &self.open[usize::from(run.to_bytes()[15] & 15)]
    }

    fn count(&self, model: &str, key: &EntryKey, counts: impl FnOnce(&mut Counts)) {
        let mut books = self.books.lock();
        if let Some(book) = books.get_mut(model) {
            book.count(key, counts);
        }
    }

    /// The coin gave a version a run, and the run was accepted.
    pub(crate) fn assigned(&self, run: RunId, assigned: &Assigned<'_>, now: Instant) {
        let key = Arc::new(assigned.key());
        {
            let mut books = self.books.lock();
            let book = books.entry(assigned.model.to_owned()).or_default();
            book.open(&key);
            book.count(&key, |counts| counts.assigned += 1);
        }
        let is_warm = assigned
            .since
            .is_some_and(|since| now.duration_since(since) >= self.times.warm_up);
        let trial = Trial::new(key, assigned, is_warm, now);
        self.shard(run).lock().insert(run, trial);
    }

    /// The version itself refused a run that the coin gave it: its template, its tokenizer or its context.
    pub(crate) fn failed_at_once(&self, run: RunId, assigned: &Assigned<'_>, now: Instant) {
        self.assigned(run, assigned, now);
        self.ended(run, End::Failed, now);
    }

    /// A run that the coin gave a version found no place, or not in time.
    pub(crate) fn overloaded(&self, assigned: &Assigned<'_>) {
        let key = assigned.key();
        let mut books = self.books.lock();
        let book = books.entry(assigned.model.to_owned()).or_default();
        book.open(&key);
        book.count(&key, |counts| counts.overload += 1);
    }

    /// A worker has the run, or (`None`) no longer.
    pub(crate) fn sent(&self, run: RunId, at: Option<Instant>) {
        if let Some(trial) = self.shard(run).lock().get_mut(&run) {
            trial.sent = at;
        }
    }

    /// So many tokens of a run became visible.
    pub(crate) fn shown(&self, run: RunId, tokens: u64, now: Instant) {
        if tokens > 0
            && let Some(trial) = self.shard(run).lock().get_mut(&run)
        {
            trial.shown(tokens, now);
        }
    }

    /// A run ended.
    pub(crate) fn ended(&self, run: RunId, end: End, now: Instant) {
        let mut open = self.shard(run).lock();
        let Some(trial) = open.get_mut(&run) else {
            return;
        };
        let at_once = trial.ended(end, now);
        let (model, key) = (trial.model.clone(), Arc::clone(&trial.key));
        drop(open);
        self.count(&model, &key, |counts| counts.add(&at_once));
    }

    /// Somebody else has the run: what became of it is not known here.
    pub(crate) fn forget(&self, run: RunId) {
        self.shard(run).lock().remove(&run);
    }

    /// Settles what is due.
    pub(crate) fn settle(&self, now: Instant) {
        let settle = self.times.settle;
        for shard in &self.open {
            let mut done = Vec::new();
            shard.lock().retain(|_, trial| {
                if trial.stalls(now, settle) {
                    let at_once = Counts {
                        failed_so_far: 1,
                        ..Counts::default()
                    };
                    done.push((trial.model.clone(), Arc::clone(&trial.key), at_once, None));
                }
                let is_due = trial.is_over() && now.duration_since(trial.assigned) >= settle;
                if is_due {
                    let bad = trial.is_bad().map(|bad| (trial.tenant.clone(), bad));
                    let counts = trial.settled();
                    done.push((trial.model.clone(), Arc::clone(&trial.key), counts, bad));
                }
                !is_due
            });
            let mut books = self.books.lock();
            for (model, key, counts, bad) in done {
                if let Some(book) = books.get_mut(&*model) {
                    book.count(&key, |sum| sum.add(&counts));
                    if let Some((tenant, is_bad)) = bad {
                        book.block(&key, &tenant, is_bad, now);
                    }
                }
            }
        }
        for book in self.books.lock().values_mut() {
            book.close_blocks(now);
        }
    }

    /// What was counted of each version, by digest, under all tables that are remembered.
    pub(crate) fn totals(&self) -> BTreeMap<String, Counts> {
        let mut totals: BTreeMap<String, Counts> = BTreeMap::new();
        for book in self.books.lock().values() {
            for (key, counts) in book.entries() {
                totals.entry(key.digest.clone()).or_default().add(counts);
            }
        }
        totals
    }

    /// Everything counted of a model so far.
    pub(crate) fn snapshot(&self, model: &str) -> Snapshot {
        let mut books = self.books.lock();
        let (sequence, entries) = match books.get_mut(model) {
            Some(book) => book.snapshot(),
            None => (0, Vec::new()),
        };
        Snapshot {
            gateway: self.gateway.clone(),
            boot: self.boot.clone(),
            sequence,
            entries,
        }
    }
}

#[cfg(test)]
mod tests;
