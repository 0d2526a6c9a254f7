//! What an engine has to offer: ordered keys, consistent views, and atomic commits that are durable when they return.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Durability, Engine, Scrub};

mod log_kv;
mod redb_kv;
mod sled_kv;

#[cfg(feature = "faults")]
pub(crate) use log_kv::{LogKv, Medium};

/// New values by key; `None` removes. Sorted, so that an engine writes neighbours together.
pub type Batch = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// An ordered map on a medium.
pub(crate) trait Kv: Send + Sync + 'static {
    /// A consistent state that holds only what is durable. Short-lived: an engine may hold commits back while a view is open, so the
    /// thread that commits must not keep one.
    fn view(&self) -> Result<Box<dyn View + '_>, KvError>;

    /// Applies the batch whole; durable on return. After an error the engine's state is unknown until it was opened again.
    ///
    /// `publish` is called once the batch is durable and before any view shows it; a view that begins after it shows the batch. So who
    /// keeps a copy in memory of a part of what is stored never has it lag behind what a view has shown. Not called for a batch that failed.
    fn commit_with(&self, batch: &Batch, publish: &mut dyn FnMut()) -> Result<(), KvError>;

    /// The same where nobody keeps a copy.
    fn commit(&self, batch: &Batch) -> Result<(), KvError> {
        self.commit_with(batch, &mut || {})
    }

    /// Makes what was removed unreadable in the engine's files. Commits wait meanwhile.
    fn scrub(&self) -> Result<Scrub, KvError>;
}

/// One consistent state.
pub trait View {
    /// A value.
    ///
    /// # Errors
    /// It could not be read.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError>;

    /// Visits `[from, to)` in order until told to stop.
    ///
    /// # Errors
    /// It could not be read.
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError>;

    /// The last pair of `[from, to)`.
    ///
    /// # Errors
    /// It could not be read.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError>;
}

/// Called with key and value.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Why an engine could not do its work.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KvError {
    /// The view has not been given this part yet and has noted that it is wanted. Only views of [`crate::engine`] say so.
    #[error("not read yet")]
    NotRead,
    /// No space left; nothing else is known to be wrong.
    #[error("no space left on the device")]
    Full,
    /// Reading, writing or syncing failed.
    #[error("{0}")]
    Io(String),
    /// The engine's own lock on its files is not free.
    #[error("{0}")]
    Held(String),
    /// The engine found its own file damaged.
    #[error("the {engine} file is damaged: {cause}")]
    Damaged {
        /// Which engine.
        engine: &'static str,
        /// In its words.
        cause: String,
    },
}

impl KvError {
    /// The folder's lock is held here, so that nobody else is at work on the engine's files: its own lock will be free.
    fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    fn from_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(error.kind(), StorageFull | QuotaExceeded) {
            Self::Full
        } else {
            Self::Io(error.to_string())
        }
    }
}

/// How long a lock is waited for: a process that was forked while the files were open holds it too, until it has become another program.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Tries again for a while as long as what is wrong is only that somebody else holds the lock.
pub(crate) fn patiently<T, E>(
    is_held: impl Fn(&E) -> bool,
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match open() {
            Err(error) if is_held(&error) && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Opens or makes the engine's files in a folder that this process has locked.
pub(crate) fn open(
    folder: &Path,
    engine: Engine,
    durability: Durability,
) -> Result<Arc<dyn Kv>, KvError> {
    Ok(match engine {
        Engine::Log => Arc::new(log_kv::LogKv::open(&folder.join("log"), durability)?),
        Engine::Redb => Arc::new(redb_kv::RedbKv::open_or_make(
            &folder.join("weir.redb"),
            redb_kv::CACHE_BYTES,
            |_| Ok(()),
        )?),
        Engine::Sled => Arc::new(sled_kv::SledKv::open(&folder.join("sled"))?),
    })
}
