//! redb 4: a copy-on-write B-tree in one file.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use redb::{
    Database, DatabaseError, ReadOnlyTable, ReadableDatabase, StorageError, TableDefinition,
};

use super::{Batch, Kv, KvError, Pair, View, Visit};
use crate::Scrub;

/// One table for all families of records, so that a commit touches one tree.
const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("weir");

/// For a store of its own: rows of live runs, accounts and the right edges of the families fit many times over.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// Copied in one commit when the file is written anew.
const RENEW_BYTES: usize = 16 << 20;

/// Where a view begins.
enum Shown {
    /// At the newest state: nobody keeps copies in memory that must not lag behind it.
    Newest,
    /// At this one, so that no reader waits for a sync.
    Last(Arc<RedbView>),
}

pub(crate) struct RedbKv {
    /// Replaced when the file is written anew; reads that have begun keep the old one.
    database: RwLock<Arc<Database>>,
    /// What views show. Replaced together with the copies in memory that others keep, and not by redb's own commit: its newest state is there
    /// for readers a moment before that commit returns.
    shown: RwLock<Shown>,
    /// Held through a commit, and while the file is written anew.
    writing: Mutex<()>,
    cache_bytes: usize,
    /// Where the file is; `None` in tests that are in control of the medium.
    path: Option<PathBuf>,
}

impl RedbKv {
    fn open(path: &Path, cache_bytes: usize) -> Result<Self, KvError> {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let made = || Self::made(builder.create(path), Some(path.to_owned()));
        let kv = super::patiently(KvError::is_held, made)?;
        Ok(Self { cache_bytes, ..kv })
    }

    /// Opens the file, or makes it with what `fill` commits. It has its name only once it is whole: redb does not know a file again whose
    /// making was interrupted. The caller syncs the folder.
    pub(crate) fn open_or_make(
        path: &Path,
        cache_bytes: usize,
        fill: impl FnOnce(&Self) -> Result<(), KvError>,
    ) -> Result<Self, KvError> {
        let io = |error: std::io::Error| KvError::from_io(&error);
        // A file that a crash left half filled never had its name.
        let unnamed = path.with_extension("new");
        remove_if_there(&unnamed)?;
        if !path.try_exists().map_err(io)? {
            fill(&Self::open(&unnamed, cache_bytes)?)?;
            let made = std::fs::File::open(&unnamed).and_then(|file| file.sync_all());
            made.map_err(io)?;
            std::fs::rename(&unnamed, path).map_err(io)?;
        }
        Self::open(path, cache_bytes)
    }

    /// On a medium that tests are in control of.
    #[cfg(any(test, feature = "faults"))]
    pub(crate) fn on(backend: impl redb::StorageBackend) -> Result<Self, KvError> {
        Self::made(Database::builder().create_with_backend(backend), None)
    }

    fn made(
        database: Result<Database, DatabaseError>,
        path: Option<PathBuf>,
    ) -> Result<Self, KvError> {
        let database = database.map_err(|error| match error {
            DatabaseError::Storage(error) => storage(&error),
            DatabaseError::DatabaseAlreadyOpen => KvError::Held(error.to_string()),
            other => KvError::Io(other.to_string()),
        })?;
        let kv = Self {
            shown: RwLock::new(Shown::Newest),
            database: RwLock::new(Arc::new(database)),
            writing: Mutex::new(()),
            cache_bytes: CACHE_BYTES,
            path,
        };
        // The table exists from here on, so that a view need not ask.
        kv.write(|_| Ok(()))?;
        Ok(kv)
    }
}

impl RedbKv {
    /// Commits what `fill` puts and removes.
    pub(crate) fn write(
        &self,
        fill: impl FnOnce(Put<'_>) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let _writing = self.writing.lock();
        self.transact(fill)
    }

    /// The caller holds `writing`.
    fn transact(&self, fill: impl FnOnce(Put<'_>) -> Result<(), KvError>) -> Result<(), KvError> {
        // The default durability syncs before commit returns.
        let database = self.database.read().clone();
        let mut transaction = database.begin_write().map_err(any)?;
        // The allocator's state is saved with each commit, in two phases: a crash is repaired at once instead of by a walk over the file,
        // and the primary slot is valid without trusting a checksum.
        transaction.set_two_phase_commit(true);
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(TABLE).map_err(any)?;
            fill(&mut |key, value| {
                match value {
                    Some(value) => drop(table.insert(key, value).map_err(any)?),
                    None => drop(table.remove(key).map_err(any)?),
                }
                Ok(())
            })?;
        }
        transaction.commit().map_err(any)
    }

    fn newest(&self) -> Result<RedbView, KvError> {
        let transaction = self.database.read().begin_read().map_err(any)?;
        let table = transaction.open_table(TABLE).map_err(any)?;
        Ok(RedbView { table })
    }

    /// All pairs in a new file, durable but for its name.
    fn copy_to(&self, path: &Path) -> Result<Self, KvError> {
        let new = Self::open(path, self.cache_bytes)?;
        let view = self.newest()?;
        let mut next = Some(vec![]);
        while let Some(from) = next.take() {
            let mut part = Batch::new();
            let mut bytes = 0;
            view.scan(&from, &[u8::MAX], &mut |key, value| {
                if bytes >= RENEW_BYTES {
                    next = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                bytes += key.len() + value.len();
                part.insert(key.to_vec(), Some(value.to_vec()));
                ControlFlow::Continue(())
            })?;
            new.write(|put| put_all(&part, put))?;
        }
        drop(view);
        let synced = std::fs::File::open(path).and_then(|file| file.sync_all());
        synced.map_err(|error| KvError::from_io(&error))?;
        Ok(new)
    }

    /// Writes everything that is there to a new file and puts it in the place of the old one: redb leaves what was removed in pages that it
    /// has not used again yet. `false`: the medium is a test's.
    pub(crate) fn renew(&self) -> Result<bool, KvError> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let _writing = self.writing.lock();
        let io = |error: std::io::Error| KvError::from_io(&error);
        let unnamed = path.with_extension("new");
        remove_if_there(&unnamed)?;
        let copied = self.copy_to(&unnamed);
        if copied.is_err() {
            // What is half filled would hold the space that is missing.
            let _ = std::fs::remove_file(&unnamed);
        }
        let new = copied?;
        std::fs::rename(&unnamed, path).map_err(io)?;
        // From here on the old file has no name: nothing may go to it any more, whatever else fails.
        *self.database.write() = new.database.into_inner();
        let mut shown = self.shown.write();
        if matches!(*shown, Shown::Last(_)) {
            *shown = Shown::Last(Arc::new(self.newest()?));
        }
        drop(shown);
        if let Some(folder) = path.parent() {
            let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(io)?;
        }
        Ok(true)
    }
}

/// Takes a key and its new value; `None` removes.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), KvError>;

impl Kv for RedbKv {
    fn scrub(&self) -> Result<Scrub, KvError> {
        self.renew().map(|_| Scrub::Done)
    }

    fn view(&self) -> Result<Box<dyn View + '_>, KvError> {
        if let Shown::Last(view) = &*self.shown.read() {
            return Ok(Box::new(view.clone()));
        }
        Ok(Box::new(self.newest()?))
    }

    fn commit_with(&self, batch: &Batch, publish: &mut dyn FnMut()) -> Result<(), KvError> {
        let _writing = self.writing.lock();
        // Until the first commit views begin at the newest state, which this one must not become for them.
        let mut first = self.shown.write();
        if matches!(*first, Shown::Newest) {
            *first = Shown::Last(Arc::new(self.newest()?));
        }
        drop(first);
        self.transact(|put| put_all(batch, put))?;
        let newest = Arc::new(self.newest()?);
        let mut shown = self.shown.write();
        publish();
        *shown = Shown::Last(newest);
        Ok(())
    }
}

fn put_all(batch: &Batch, put: Put<'_>) -> Result<(), KvError> {
    let mut all = batch.iter();
    all.try_for_each(|(key, value)| put(key, value.as_deref()))
}

fn remove_if_there(path: &Path) -> Result<(), KvError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(KvError::from_io(&error)),
        _ => Ok(()),
    }
}

struct RedbView {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl View for Arc<RedbView> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.as_ref().get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.as_ref().scan(from, to, visit)
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        self.as_ref().last(from, to)
    }
}

impl View for RedbView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let value = self.table.get(key).map_err(any)?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        for pair in self.table.range(from..to).map_err(any)? {
            let (key, value) = pair.map_err(any)?;
            if visit(key.value(), value.value()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        let mut range = self.table.range(from..to).map_err(any)?;
        let Some(pair) = range.next_back() else {
            return Ok(None);
        };
        let (key, value) = pair.map_err(any)?;
        Ok(Some((key.value().to_vec(), value.value().to_vec())))
    }
}

fn any(error: impl Into<redb::Error>) -> KvError {
    match error.into() {
        redb::Error::Io(error) => KvError::from_io(&error),
        redb::Error::Corrupted(cause) => KvError::Damaged {
            engine: "redb",
            cause,
        },
        other => KvError::Io(other.to_string()),
    }
}

fn storage(error: &StorageError) -> KvError {
    match error {
        StorageError::Io(error) => KvError::from_io(error),
        StorageError::Corrupted(cause) => KvError::Damaged {
            engine: "redb",
            cause: cause.clone(),
        },
        other => KvError::Io(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_commit_that_meets_a_full_disk_says_so_and_the_file_opens_again_with_what_was_committed() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "weir-test"])
            .arg(folder.path())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("skipped: mounting a tmpfs needs root");
            return;
        }
        let path = folder.path().join("weir.redb");
        let ballast = folder.path().join("ballast");
        std::fs::write(&ballast, vec![0; 4 << 20]).unwrap();
        let batch = |value: &[u8]| Batch::from([(b"key".to_vec(), Some(value.to_vec()))]);
        let kv = RedbKv::open(&path, CACHE_BYTES).unwrap();
        kv.commit(&batch(b"small")).unwrap();
        let error = kv.commit(&batch(&vec![1; 20 << 20])).unwrap_err();
        drop(kv);
        // What the failed commit wrote still fills the file: space has to come from elsewhere.
        std::fs::remove_file(&ballast).unwrap();
        let reopened = RedbKv::open(&path, CACHE_BYTES);
        let value = reopened
            .as_ref()
            .map(|kv| kv.view().unwrap().get(b"key").unwrap());
        let found = value.map_err(ToString::to_string);
        let again = reopened
            .as_ref()
            .map(|kv| kv.commit(&batch(b"other")).is_ok());
        let again = again.unwrap_or(false);
        drop(reopened);
        let unmounted = Command::new("umount").arg("-l").arg(folder.path()).status();
        assert!(unmounted.unwrap().success());
        assert!(matches!(error, KvError::Full), "{error}");
        assert_eq!(found, Ok(Some(b"small".to_vec())));
        assert!(again, "the reopened file takes commits");
    }
}
