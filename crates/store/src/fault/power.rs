//! A store on a medium in memory whose power can be cut.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::embedded::Embedded;
use crate::kv::{Kv, KvError, LogKv, Medium};
use crate::{Store, StoreError, dump, open};

/// A machine's power and disk. What was not synced when it is cut is lost sector by sector, in any combination.
#[derive(Clone)]
pub struct Power(Medium);

impl Power {
    /// An empty disk; what a cut takes follows from the seed.
    pub fn new(seed: u64) -> Self {
        Self(Medium::new(seed))
    }

    /// No write or sync succeeds any more: the world stands still until [`Power::cut`] or [`Power::kill`].
    pub fn freeze(&self) {
        self.0.set(|state| state.fuel = Some(0));
    }

    /// Freezes after so many more writes and syncs.
    pub fn freeze_after(&self, writes: u64) {
        self.0.set(|state| state.fuel = Some(writes));
    }

    /// Whether it stands still.
    pub fn is_frozen(&self) -> bool {
        self.0.is_dead()
    }

    /// The power goes and comes back.
    pub fn cut(&self) {
        self.0.cut_power();
    }

    /// The process dies, the kernel does not: what was written is there.
    pub fn kill(&self) {
        self.0.kill();
    }

    fn kv(&self) -> Result<LogKv, KvError> {
        LogKv::on(self.0.clone())
    }

    /// Opens the store on it.
    ///
    /// # Errors
    /// The power is off, or what is there makes no sense.
    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        let unreadable = |cause: String| StoreError::Read {
            path: "memory".to_owned(),
            cause,
        };
        let kv: Arc<dyn Kv> = Arc::new(self.kv().map_err(|error| unreadable(error.to_string()))?);
        let identity = open::identity(&*kv).map_err(unreadable)?;
        let nothing = File::open("/dev/null").map_err(|error| unreadable(error.to_string()))?;
        let again = Box::new(|| Err(KvError::Io("not while it is tested".to_owned())));
        let store = Embedded::start(PathBuf::from("/"), identity, kv, nothing, again);
        Ok(Arc::new(
            store.map_err(|error| unreadable(error.to_string()))?,
        ))
    }

    /// Every record on it; the store must be closed.
    ///
    /// # Errors
    /// As for [`Power::open`].
    pub fn dump(&self, now_ms: u64, tell: &mut dyn FnMut(Value)) -> Result<(), StoreError> {
        let kv = self.kv().map_err(|error| StoreError::Read {
            path: "memory".to_owned(),
            cause: error.to_string(),
        })?;
        dump::of(&kv, "memory", now_ms, tell)
    }
}
