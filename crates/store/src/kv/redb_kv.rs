//! redb 4: a copy-on-write B-tree in one file.

use std::path::Path;

use redb::{
    Database, DatabaseError, ReadOnlyTable, ReadableDatabase, StorageError, TableDefinition,
};

use super::{Batch, Kv, KvError, Pair, View, Visit};

/// One table for all families of records, so that a commit touches one tree.
const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("weir");

/// Rows of live runs, accounts and the right edges of the families fit many times over.
const CACHE_BYTES: usize = 64 << 20;

pub(crate) struct RedbKv {
    database: Database,
}

impl RedbKv {
    fn open(path: &Path) -> Result<Self, KvError> {
        let mut builder = Database::builder();
        Self::made(builder.set_cache_size(CACHE_BYTES).create(path))
    }

    /// Opens the file, or makes it with what `fill` commits. It has its name only once it is whole: redb does not know a file again whose
    /// making was interrupted. The caller syncs the folder.
    pub(crate) fn open_or_make(
        path: &Path,
        fill: impl FnOnce(&Self) -> Result<(), KvError>,
    ) -> Result<Self, KvError> {
        let io = |error: std::io::Error| KvError::from_io(&error);
        if !path.try_exists().map_err(io)? {
            let unnamed = path.with_extension("new");
            match std::fs::remove_file(&unnamed) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io(error));
                }
                _ => {}
            }
            fill(&Self::open(&unnamed)?)?;
            let made = std::fs::File::open(&unnamed).and_then(|file| file.sync_all());
            made.map_err(io)?;
            std::fs::rename(&unnamed, path).map_err(io)?;
        }
        Self::open(path)
    }

    /// On a medium that tests are in control of.
    #[cfg(test)]
    pub(crate) fn on(backend: impl redb::StorageBackend) -> Result<Self, KvError> {
        Self::made(Database::builder().create_with_backend(backend))
    }

    fn made(database: Result<Database, DatabaseError>) -> Result<Self, KvError> {
        let database = database.map_err(|error| match error {
            DatabaseError::Storage(error) => storage(&error),
            other => KvError::Io(other.to_string()),
        })?;
        let kv = Self { database };
        // The table exists from here on, so that a view need not ask.
        kv.commit(&Batch::new())?;
        Ok(kv)
    }
}

impl RedbKv {
    /// Commits what `fill` puts and removes.
    pub(crate) fn write(
        &self,
        fill: impl FnOnce(Put<'_>) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        // The default durability syncs before commit returns.
        let mut transaction = self.database.begin_write().map_err(any)?;
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
}

/// Takes a key and its new value; `None` removes.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), KvError>;

impl Kv for RedbKv {
    fn view(&self) -> Result<Box<dyn View + '_>, KvError> {
        let transaction = self.database.begin_read().map_err(any)?;
        let table = transaction.open_table(TABLE).map_err(any)?;
        Ok(Box::new(RedbView { table }))
    }

    fn commit(&self, batch: &Batch) -> Result<(), KvError> {
        self.write(|put| {
            batch
                .iter()
                .try_for_each(|(key, value)| put(key, value.as_deref()))
        })
    }
}

struct RedbView {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
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
        let kv = RedbKv::open(&path).unwrap();
        kv.commit(&batch(b"small")).unwrap();
        let error = kv.commit(&batch(&vec![1; 20 << 20])).unwrap_err();
        drop(kv);
        // What the failed commit wrote still fills the file: space has to come from elsewhere.
        std::fs::remove_file(&ballast).unwrap();
        let reopened = RedbKv::open(&path);
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
