//! A model's rollout log on this machine: one file a record, made once and never written again.
//!
//! Making a file under a name that must not exist is the compare-and-swap, as creating an object is on a cluster; files, and not
//! rows of the store, so that a person can read what was decided and when with nothing but `cat`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use weir_manifest::Digest;
use weir_rollout::record::{decode, encode};
use weir_rollout::{Record, Stamp};

/// The records of one model, oldest first.
pub(super) struct Log {
    folder: PathBuf,
    records: Vec<Record>,
    /// Records that made no sense, and why.
    damaged: Vec<String>,
}

impl Log {
    /// Reads the log of a model under `folder`, the folder of all models' logs. What makes no sense is set aside and named.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub(super) fn open(folder: &Path, model: &str) -> io::Result<Self> {
        // A model's name may hold what a folder's may not.
        let folder = folder.join(&Digest::of(model.as_bytes()).to_hex()[..16]);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("model"), model)?;
        let mut log = Self {
            folder,
            records: Vec::new(),
            damaged: Vec::new(),
        };
        for entry in fs::read_dir(&log.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                log.read(&path);
            }
        }
        log.records.sort_by_key(|record| record.stamp);
        Ok(log)
    }

    /// All records, oldest first.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// The newest record.
    pub(super) fn head(&self) -> Option<&Record> {
        self.records.last()
    }

    /// What was found and could not be read, for people.
    pub(super) fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// Adds a record, durably, unless another one has its place: then [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// See above, and whatever the disk refuses.
    pub(super) fn append(&mut self, record: &Record) -> io::Result<()> {
        let bytes =
            encode(record).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let path = self.path(record.stamp);
        let partial = path.with_extension("partial");
        let mut file = File::create(&partial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        // A link, unlike a renaming, replaces nothing.
        let linked = fs::hard_link(&partial, &path);
        fs::remove_file(&partial)?;
        linked?;
        File::open(&self.folder)?.sync_all()?;
        let record =
            decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.records.push(record);
        self.prune();
        Ok(())
    }

    /// Old records go, the newest promotion stays. One that cannot be removed goes another time.
    fn prune(&mut self) {
        while self.records.len() > Record::KEPT_IN_LOG {
            let oldest = self.records.remove(0);
            let is_kept = oldest.stamp == self.last_promotion();
            if !is_kept {
                fs::remove_file(self.path(oldest.stamp)).ok();
            }
        }
    }

    /// The record in which the present stable version became stable.
    fn last_promotion(&self) -> Stamp {
        let stable = |record: &Record| record.stable.clone();
        let now = self.records.last().and_then(stable);
        let first = self.records.iter().find(|record| stable(record) == now);
        first.map_or_else(Stamp::default, |record| record.stamp)
    }

    fn path(&self, stamp: Stamp) -> PathBuf {
        // Digits in front, so that `ls` shows them in order.
        let name = format!("{:06}-{:010}.json", stamp.epoch, stamp.revision);
        self.folder.join(name)
    }

    fn read(&mut self, path: &Path) {
        let record = fs::read(path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| {
                decode(&bytes).map_err(|error| format!("{:#}", anyhow::Error::from(error)))
            });
        match record {
            Ok(record) => self.records.push(record),
            Err(cause) => {
                self.damaged.push(format!("{}: {cause}", path.display()));
                fs::rename(path, path.with_extension("damaged")).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_rollout::VersionId;

    use super::*;

    fn record(revision: u64) -> Record {
        Record {
            stamp: Stamp { epoch: 1, revision },
            stable: Some(VersionId::new(1, "sha256:aa")),
            ..Record::empty()
        }
    }

    #[test]
    fn what_was_appended_is_there_after_opening_again_and_a_place_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), "m/x").unwrap();
        log.append(&record(1)).unwrap();
        log.append(&record(2)).unwrap();
        let mut other = Log::open(folder.path(), "m/x").unwrap();
        assert_eq!(other.records(), log.records());
        let taken = other.append(&record(2)).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert!(Log::open(folder.path(), "m").unwrap().records().is_empty());
    }

    #[test]
    fn a_log_stays_short_and_its_head_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), "m").unwrap();
        for revision in 1..=40 {
            log.append(&record(revision)).unwrap();
        }
        let again = Log::open(folder.path(), "m").unwrap();
        assert!(again.records().len() <= Record::KEPT_IN_LOG + 1);
        assert_eq!(again.head().unwrap().stamp.revision, 40);
    }

    #[test]
    fn a_damaged_record_is_named_and_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), "m").unwrap();
        log.append(&record(1)).unwrap();
        let path = log.path(Stamp {
            epoch: 1,
            revision: 2,
        });
        fs::write(&path, b"{\"schema\":1").unwrap();
        let again = Log::open(folder.path(), "m").unwrap();
        assert_eq!(again.head().unwrap().stamp.revision, 1);
        assert_eq!(again.damaged().len(), 1, "{:?}", again.damaged());
        assert!(!path.exists());
    }
}
