//! sled 0.34: a Bw-tree over a log.
//!
//! sled shows a batch to readers before it is synced. Reads here wait for the sync in progress instead, because nothing may be seen that a
//! power cut could take back.
//!
//! On Linux sled's own flush is `sync_file_range`, which promises nothing about the file's length or the device's cache, and large values
//! go to files of their own that it does not sync at all. So a commit here syncs the file itself, and the file system when a value is large.

use std::fs::File;
use std::path::Path;

use parking_lot::{RwLock, RwLockReadGuard};

use super::{Batch, Kv, KvError, Pair, View, Visit};
use crate::Scrub;

/// As for redb.
const CACHE_BYTES: u64 = 64 << 20;

pub(crate) struct SledKv {
    database: sled::Db,
    /// Held for writing from the moment a batch becomes visible until it is durable.
    visible: RwLock<Visible>,
    /// sled's log, to sync it.
    log: File,
}

/// What readers would see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visible {
    /// What was committed.
    Durable,
    /// A batch whose sync failed, too. sled cannot take it back, so nothing is read until the files are opened again.
    Unsynced,
}

/// sled keeps a value in a file of its own when it is about as large as a segment (512 KiB); well below that to be sure.
const OWN_FILE_BYTES: usize = 64 << 10;

impl SledKv {
    pub(crate) fn open(path: &Path) -> Result<Self, KvError> {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            // Every commit syncs; a timer would only sync at other moments as well.
            .flush_every_ms(None)
            .mode(sled::Mode::HighThroughput);
        let open = || config.open().map_err(|error| any(&error));
        let database = super::patiently(KvError::is_held, open)?;
        let log = File::open(path.join("db")).map_err(|error| KvError::from_io(&error))?;
        Ok(Self {
            database,
            visible: RwLock::new(Visible::Durable),
            log,
        })
    }
}

impl Kv for SledKv {
    fn scrub(&self) -> Result<Scrub, KvError> {
        Ok(Scrub::Later(
            "sled keeps old bytes in its log until it writes over them, and has no call that makes it".into(),
        ))
    }

    fn view(&self) -> Result<Box<dyn View + '_>, KvError> {
        let visible = self.visible.read();
        match *visible {
            Visible::Durable => Ok(Box::new(SledView {
                database: &self.database,
                _durable: visible,
            })),
            Visible::Unsynced => Err(KvError::Io(
                "the last commit could not be synced, and what is there now may not last".into(),
            )),
        }
    }

    fn commit_with(&self, batch: &Batch, publish: &mut dyn FnMut()) -> Result<(), KvError> {
        let mut all = sled::Batch::default();
        for (key, value) in batch {
            match value {
                Some(value) => all.insert(key.as_slice(), value.as_slice()),
                None => all.remove(key.as_slice()),
            }
        }
        let mut visible = self.visible.write();
        *visible = Visible::Unsynced;
        self.database
            .apply_batch(all)
            .map_err(|error| any(&error))?;
        self.database.flush().map_err(|error| any(&error))?;
        let large = |value: &Option<Vec<u8>>| {
            value
                .as_ref()
                .is_some_and(|value| value.len() >= OWN_FILE_BYTES)
        };
        let synced = if batch.values().any(large) {
            rustix::fs::syncfs(&self.log).map_err(Into::into)
        } else {
            self.log.sync_data()
        };
        synced.map_err(|error| KvError::from_io(&error))?;
        *visible = Visible::Durable;
        publish();
        Ok(())
    }
}

struct SledView<'a> {
    database: &'a sled::Db,
    _durable: RwLockReadGuard<'a, Visible>,
}

impl View for SledView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let value = self.database.get(key).map_err(|error| any(&error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        for pair in self.database.range(from..to) {
            let (key, value) = pair.map_err(|error| any(&error))?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        let Some(pair) = self.database.range(from..to).next_back() else {
            return Ok(None);
        };
        let (key, value) = pair.map_err(|error| any(&error))?;
        Ok(Some((key.to_vec(), value.to_vec())))
    }
}

fn any(error: &sled::Error) -> KvError {
    match error {
        // The library has no other word for it.
        sled::Error::Io(error) if error.to_string().contains("could not acquire lock") => {
            KvError::Held(error.to_string())
        }
        sled::Error::Io(error) => KvError::from_io(error),
        sled::Error::Corruption { .. } => KvError::Damaged {
            engine: "sled",
            cause: error.to_string(),
        },
        other => KvError::Io(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Batch {
        Batch::from([(key.into(), Some(b"value".to_vec()))])
    }

    #[test]
    fn nothing_is_read_after_a_commit_that_could_not_be_synced() {
        let folder = tempfile::tempdir().unwrap();
        let mut kv = SledKv::open(folder.path()).unwrap();
        kv.commit(&put("a")).unwrap();
        // A pipe takes no sync.
        let (end, _) = std::io::pipe().unwrap();
        let log = std::mem::replace(&mut kv.log, File::from(std::os::fd::OwnedFd::from(end)));
        kv.commit(&put("b")).unwrap_err();
        kv.log = log;
        let error = kv.view().err().expect("no view").to_string();
        assert!(error.contains("could not be synced"), "{error}");
        drop(kv);
        let kv = SledKv::open(folder.path()).unwrap();
        assert!(kv.view().unwrap().get(b"a").unwrap().is_some());
    }
}
