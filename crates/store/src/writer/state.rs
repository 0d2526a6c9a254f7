//! What the writer keeps in memory: live runs and accounts, as they will be once the group at hand is durable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use weir_budget::{Account, Reservation};
use weir_run::{Run, RunId};

use crate::by_run::RunMap;
use crate::kv::{Batch, Kv, KvError, Pair, View};
use crate::record::{self, BadRecord, key, seal, unseal};
use crate::{EventRecord, WorkOrder};

/// A run that is not terminal.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) run: Run,
    pub(crate) reservation: Reservation,
    /// The row as readers have it; their copy of the progress is separate.
    pub(crate) row: Arc<Run>,
}

/// Live runs and accounts.
#[derive(Default)]
pub struct State {
    pub(crate) live: RunMap<Live>,
    pub(crate) accounts: HashMap<String, Account>,
}

/// What reading found wrong.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The engine could not read.
    #[error(transparent)]
    Engine(#[from] KvError),
    /// A record makes no sense.
    #[error("{what} {of}: {source}")]
    Record {
        /// Which kind of record.
        what: &'static str,
        /// Whose.
        of: String,
        /// What is wrong with it.
        source: BadRecord,
    },
    /// A record that others rely on is not there.
    #[error("{what} {of} is missing")]
    Missing {
        /// Which kind of record.
        what: &'static str,
        /// Whose.
        of: String,
    },
}

impl ReadError {
    pub(crate) fn from_record(what: &'static str, source: BadRecord) -> Self {
        at(what, "")(source)
    }
}

/// Adds the record's name to what is wrong with it.
pub(crate) fn at(
    what: &'static str,
    of: impl std::fmt::Display,
) -> impl FnOnce(BadRecord) -> ReadError {
    let of = of.to_string();
    move |source| ReadError::Record { what, of, source }
}

pub(crate) fn missing(what: &'static str, of: impl std::fmt::Display) -> ReadError {
    ReadError::Missing {
        what,
        of: of.to_string(),
    }
}

/// Every live run and account, as the medium has them.
pub(crate) fn recover(kv: &dyn Kv) -> Result<State, ReadError> {
    let view = kv.view()?;
    let mut state = State::default();
    for (key, value) in pairs(&*view, key::family(key::ACCOUNT))? {
        let tenant = key::tenant(&key).ok_or_else(|| missing("the tenant of", "an account"))?;
        let account = decode_account(tenant, &key, &value)?;
        state.accounts.insert(tenant.to_owned(), account);
    }
    for (key, value) in pairs(&*view, key::family(key::OPEN))? {
        let (Some(tenant), Some(id)) = (key::tenant(&key), key::trailing_run(&key)) else {
            return Err(missing("the run of", "a reservation"));
        };
        let reservation = unseal(&key, &value)
            .and_then(record::run::decode_reservation)
            .map_err(at("the reservation of", id))?;
        let run = live_run(&*view, tenant, id)?;
        let row = Arc::new(run.clone());
        let live = Live {
            run,
            reservation,
            row,
        };
        state.live.insert(id, live);
    }
    Ok(state)
}

/// All pairs of a range. Only for ranges that are bounded by what is live, or by one run.
pub(crate) fn pairs(
    view: &dyn View,
    (from, to): (Vec<u8>, Vec<u8>),
) -> Result<Vec<Pair>, ReadError> {
    let mut all = vec![];
    view.scan(&from, &to, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(all)
}

pub(crate) fn decode_account(tenant: &str, key: &[u8], value: &[u8]) -> Result<Account, ReadError> {
    let text = unseal(key, value).map_err(at("the account of", tenant))?;
    serde_json::from_slice(text)
        .map_err(|_| at("the account of", tenant)(BadRecord::Value("account")))
}

/// The row of a live run, brought up to date by its last chunk.
pub(crate) fn live_run(view: &dyn View, tenant: &str, id: RunId) -> Result<Run, ReadError> {
    let key = key::run(tenant, id);
    let value = view.get(&key)?.ok_or_else(|| missing("the row of", id))?;
    let mut run = unseal(&key, &value)
        .and_then(|payload| record::run::decode(tenant, id, payload))
        .map_err(at("the row of", id))?;
    let (from, to) = key::chunks(id);
    let (key, value) = view
        .last(&from, &to)?
        .ok_or_else(|| missing("the events of", id))?;
    let progress = unseal(&key, &value)
        .and_then(record::chunk::progress)
        .map_err(at("the events of", id))?;
    // A row that was written with or after the chunk is as far, and may know more: a cancellation, a new writer.
    if progress.last_sequence > run.last_sequence {
        run.set_progress(progress);
    }
    Ok(run)
}

/// The changes of one group: evaluated in order, each op seeing those before it, then committed as one batch.
pub struct Group<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) view: &'a dyn View,
    pub(crate) changes: Changes,
    /// Set where several gateways share the records: whose writes these are. The state then holds only what this group has read.
    pub(crate) owner: Option<&'a str>,
}

/// What a group changes.
#[derive(Default)]
pub struct Changes {
    /// New values by key.
    pub(crate) batch: Batch,
    /// Runs whose events are over.
    pub(crate) expired: BTreeSet<RunId>,
    /// Events taken in and not yet encoded, by run: one chunk per run and commit.
    pub(crate) events: BTreeMap<RunId, Vec<EventRecord>>,
    /// Live runs with changes beyond their progress.
    pub(crate) rows: BTreeSet<RunId>,
    /// Runs that readers must be told of.
    pub(crate) touched: BTreeSet<RunId>,
    pub(crate) accounts: BTreeSet<String>,
}

impl Changes {
    pub(crate) fn put(&mut self, key: Vec<u8>, payload: Vec<u8>) {
        let sealed = seal(&key, payload);
        self.batch.insert(key, Some(sealed));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.batch.insert(key, None);
    }

    pub(crate) fn put_run(&mut self, run: &Run) {
        self.put(key::run(&run.tenant, run.id), record::run::encode(run));
    }

    pub(crate) fn put_work(&mut self, run: RunId, work: &WorkOrder) {
        self.put(key::work(run), record::run::encode_work(work));
    }

    /// Encodes the events taken in for a run, with its progress after them.
    pub(crate) fn put_chunk(&mut self, run: &Run) {
        let Some(events) = self.events.remove(&run.id) else {
            return;
        };
        if let Some(first) = events.first() {
            let payload = record::chunk::encode(&run.progress(), &events);
            self.put(key::chunk(run.id, first.sequence), payload);
        }
    }
}

impl<'a> Group<'a> {
    /// Nothing changed yet.
    pub(crate) fn new(state: &'a mut State, view: &'a dyn View, owner: Option<&'a str>) -> Self {
        Self {
            state,
            view,
            changes: Changes::default(),
            owner,
        }
    }
}

impl Group<'_> {
    /// Reads a live run where the state does not have everything.
    pub(crate) fn know_run(&mut self, id: RunId) -> Result<(), ReadError> {
        if self.owner.is_none() || self.state.live.contains_key(&id) {
            return Ok(());
        }
        let key = key::owner(id);
        let Some(value) = self.get(&key)? else {
            return Ok(());
        };
        let tenant = unseal(&key, &value).map_err(at("the owner of", id))?;
        let tenant = std::str::from_utf8(tenant)
            .map_err(|_| at("the owner of", id)(BadRecord::Value("tenant")))?;
        let key = key::open(tenant, id);
        let Some(value) = self.get(&key)? else {
            return Ok(());
        };
        let reservation = unseal(&key, &value)
            .and_then(record::run::decode_reservation)
            .map_err(at("the reservation of", id))?;
        let run = live_run(self.view, tenant, id)?;
        let row = Arc::new(run.clone());
        let live = Live {
            run,
            reservation,
            row,
        };
        self.state.live.insert(id, live);
        Ok(())
    }

    /// Reads an account where the state does not have everything.
    pub(crate) fn know_account(&mut self, tenant: &str) -> Result<(), ReadError> {
        if self.owner.is_none() || self.state.accounts.contains_key(tenant) {
            return Ok(());
        }
        let key = key::account(tenant);
        if let Some(value) = self.get(&key)? {
            let account = decode_account(tenant, &key, &value)?;
            self.state.accounts.insert(tenant.to_owned(), account);
        }
        Ok(())
    }

    /// A sealed value as this group left it.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        match self.changes.batch.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.view.get(key)?),
        }
    }

    /// All pairs of a range as this group left them.
    pub(crate) fn merged(
        &self,
        (from, to): (Vec<u8>, Vec<u8>),
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ReadError> {
        let changed: Vec<_> = self
            .changes
            .batch
            .range(from.clone()..to.clone())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut all: BTreeMap<_, _> = pairs(self.view, (from, to))?.into_iter().collect();
        for (key, value) in changed {
            match value {
                Some(value) => all.insert(key, value),
                None => all.remove(&key),
            };
        }
        Ok(all)
    }

    /// The run, live or not, if it is this tenant's.
    pub(crate) fn run(&self, tenant: &str, id: RunId) -> Result<Option<Run>, ReadError> {
        if let Some(live) = self.state.live.get(&id) {
            return Ok((live.run.tenant == tenant).then(|| live.run.clone()));
        }
        let key = key::run(tenant, id);
        let Some(value) = self.get(&key)? else {
            return Ok(None);
        };
        unseal(&key, &value)
            .and_then(|payload| record::run::decode(tenant, id, payload))
            .map(Some)
            .map_err(at("the row of", id))
    }

    /// The run by id alone.
    pub(crate) fn any_run(&self, id: RunId) -> Result<Option<Run>, ReadError> {
        let key = key::owner(id);
        let Some(value) = self.get(&key)? else {
            return Ok(None);
        };
        let tenant = unseal(&key, &value).map_err(at("the owner of", id))?;
        let tenant = std::str::from_utf8(tenant)
            .map_err(|_| at("the owner of", id)(BadRecord::Value("tenant")))?;
        self.run(tenant, id)
    }

    /// Encodes what is left: rows, chunks and accounts of this group.
    pub(crate) fn finish(mut self) -> Changes {
        for id in std::mem::take(&mut self.changes.rows) {
            if let Some(live) = self.state.live.get_mut(&id) {
                live.row = Arc::new(live.run.clone());
                self.changes.put_run(&live.run);
            }
        }
        let written: Vec<RunId> = self.changes.events.keys().copied().collect();
        for id in written {
            if let Some(live) = self.state.live.get(&id) {
                self.changes.put_chunk(&live.run);
            }
        }
        assert!(self.changes.events.is_empty(), "every event has a run");
        for tenant in &self.changes.accounts {
            let account = self.state.accounts.get(tenant);
            let text = serde_json::to_vec(&account.cloned().unwrap_or_default())
                .expect("an account is lists of numbers and names");
            let key = key::account(tenant);
            let sealed = seal(&key, text);
            self.changes.batch.insert(key, Some(sealed));
        }
        self.changes
    }
}
