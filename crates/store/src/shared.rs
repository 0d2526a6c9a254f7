//! What readers and the writer share: the engine, and copies of what is live.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use weir_budget::Account;
use weir_run::{Progress, Run, RunId};

use crate::StoreError;
use crate::by_run::RunMap;
use crate::kv::{Kv, KvError, View};
use crate::writer::Space;
use crate::writer::state::{Changes, ReadError, State};

pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) identity: String,
    /// Gone while the files are closed.
    pub(crate) engine: RwLock<Option<Arc<dyn Kv>>>,
    published: RwLock<Published>,
    /// Why no write succeeds until the process starts again.
    pub(crate) poisoned: Mutex<Option<StoreError>>,
}

/// Durable state of what changes most, as of the last commit.
#[derive(Default)]
struct Published {
    live: RunMap<(Arc<Run>, Progress)>,
    accounts: HashMap<String, Arc<Account>>,
}

impl Shared {
    pub(crate) fn new(path: PathBuf, identity: String, engine: Arc<dyn Kv>, state: &State) -> Self {
        let shared = Self {
            path,
            identity,
            engine: RwLock::new(Some(engine)),
            published: RwLock::default(),
            poisoned: Mutex::default(),
        };
        shared.publish_all(state);
        shared
    }

    /// Replaces everything readers see.
    pub(crate) fn publish_all(&self, state: &State) {
        let live = state
            .live
            .iter()
            .map(|(id, live)| (*id, (live.row.clone(), live.run.progress())));
        let accounts = state
            .accounts
            .iter()
            .map(|(tenant, account)| (tenant.clone(), Arc::new(account.clone())));
        *self.published.write() = Published {
            live: live.collect(),
            accounts: accounts.collect(),
        };
    }

    /// Shows readers what a group has changed, once it is durable.
    pub(crate) fn publish(&self, changes: &Changes, state: &State) {
        let mut published = self.published.write();
        for id in &changes.touched {
            match state.live.get(id) {
                Some(live) => {
                    let shown = (live.row.clone(), live.run.progress());
                    published.live.insert(*id, shown);
                }
                None => {
                    published.live.remove(id);
                }
            }
        }
        for tenant in &changes.accounts {
            if let Some(account) = state.accounts.get(tenant) {
                let account = Arc::new(account.clone());
                published.accounts.insert(tenant.clone(), account);
            }
        }
    }

    /// A run that is not terminal, whoever owns it.
    pub(crate) fn live(&self, id: RunId) -> Option<Run> {
        let published = self.published.read();
        let (row, progress) = published.live.get(&id)?;
        let mut run = Run::clone(row);
        run.set_progress(*progress);
        Some(run)
    }

    /// Why no run can be let in now.
    pub(crate) fn closed_to_runs(&self) -> Option<StoreError> {
        let poisoned = self.poisoned.lock().clone();
        poisoned.or_else(|| {
            let full = !Space::of(&self.path).admits();
            full.then(|| self.unwritable(&KvError::Full))
        })
    }

    pub(crate) fn live_ids(&self) -> Vec<RunId> {
        self.published.read().live.keys().copied().collect()
    }

    pub(crate) fn account(&self, tenant: &str) -> Arc<Account> {
        let published = self.published.read();
        published.accounts.get(tenant).cloned().unwrap_or_default()
    }

    /// Reads from one consistent state.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&dyn View) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        let engine = self.engine.read().clone().ok_or(StoreError::Closed)?;
        let view = engine
            .view()
            .map_err(|error| self.unreadable(&error.into()))?;
        read(&*view).map_err(|error| self.unreadable(&error))
    }

    pub(crate) fn unreadable(&self, error: &ReadError) -> StoreError {
        StoreError::Read {
            path: self.path.display().to_string(),
            cause: error.to_string(),
        }
    }

    pub(crate) fn unwritable(&self, error: &KvError) -> StoreError {
        let path = self.path.display().to_string();
        match error {
            KvError::Full => StoreError::Full { path },
            other => StoreError::Write {
                path,
                cause: other.to_string(),
            },
        }
    }
}
