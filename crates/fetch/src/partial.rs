//! What came of one file so far. It is trusted for nothing: what a process that died had written is hashed again, and a file gets its name
//! only when the whole of it has the digest.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use weir_manifest::{Digest, FileEntry};

use crate::FetchError;
use crate::cache::{Cache, record_of, remove, seal, sync_parent, write_whole};

/// After so many bytes they are brought to the disk, and the record says so: what a machine's crash can cost.
const SYNC_EVERY: u64 = 64 << 20;
/// Read at once while hashing again.
const CHUNK: usize = 1 << 20;

/// An open part of a file.
#[derive(Debug)]
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    len: u64,
    synced: u64,
    boot: String,
}

/// What a record says. Beyond `synced` a machine that crashed may have left anything; a process that crashed left all that it wrote.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    size: u64,
    synced: u64,
    /// The start of the machine under which it was written.
    boot: String,
}

impl Written {
    /// How many of the bytes that are there may be what was written.
    fn kept(&self, size: u64, there: u64, boot: &str) -> u64 {
        match self {
            Self { size: other, .. } if *other != size => 0,
            Self { boot: same, .. } if same == boot && !boot.is_empty() => there.min(size),
            Self { synced, .. } => there.min(*synced),
        }
    }
}

/// Changes whenever the machine starts.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// What a whole part turned out to be.
pub(crate) enum Finished {
    /// It has its name.
    Whole,
    /// It has another digest, and is gone.
    Wrong(Digest),
}

impl Partial {
    /// Opens what there is of a file, or begins. The caller holds the blob's lock. Blocks.
    pub(crate) fn open(cache: &Cache, want: &FileEntry) -> Result<Self, FetchError> {
        let path = cache.partial(&want.sha256);
        let record: Option<Written> = fs::read(record_of(&path))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        let opened = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        let mut file = opened.map_err(FetchError::cache("open", &path))?;
        let failed = |error| FetchError::cache("read", &path)(error);
        let there = file.metadata().map_err(failed)?.len();
        let boot = boot();
        let len = record
            .as_ref()
            .map_or(0, |record| record.kept(want.size, there, &boot));
        let synced = record.map_or(0, |record| record.synced).min(len);
        file.set_len(len).map_err(failed)?;
        let (hasher, read) = hash(&mut file).map_err(failed)?;
        file.seek(SeekFrom::Start(read)).map_err(failed)?;
        let partial = Self {
            file,
            path,
            hasher,
            len: read,
            synced,
            boot,
        };
        partial.note(want.size)?;
        Ok(partial)
    }

    /// How much of it there is.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Adds what came. Blocks.
    pub(crate) fn write(&mut self, bytes: &[u8], size: u64) -> Result<(), FetchError> {
        let needed = size.saturating_sub(self.len);
        self.file.write_all(bytes).map_err(|error| {
            match FetchError::cache("write", &self.path)(error) {
                FetchError::NoSpace { path, .. } => FetchError::NoSpace {
                    path,
                    needed,
                    available: 0,
                },
                other => other,
            }
        })?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        if self.len - self.synced >= SYNC_EVERY {
            self.sync(size)?;
        }
        Ok(())
    }

    /// Brings it to the disk. Blocks.
    pub(crate) fn sync(&mut self, size: u64) -> Result<(), FetchError> {
        if self.synced < self.len {
            self.file
                .sync_data()
                .map_err(FetchError::cache("write", &self.path))?;
            self.synced = self.len;
            self.note(size)?;
        }
        Ok(())
    }

    fn note(&self, size: u64) -> Result<(), FetchError> {
        let record = Written {
            size,
            synced: self.synced,
            boot: self.boot.clone(),
        };
        let text = serde_json::to_vec(&record).unwrap_or_default();
        write_whole(&record_of(&self.path), &text)
    }

    /// Gives it its name if it is the file. Blocks.
    pub(crate) fn finish(self, cache: &Cache, want: &FileEntry) -> Result<Finished, FetchError> {
        let Self {
            file, path, hasher, ..
        } = self;
        let found = Digest::from_bytes(hasher.finalize().into());
        if found != want.sha256 {
            remove(&path)?;
            remove(&record_of(&path))?;
            return Ok(Finished::Wrong(found));
        }
        seal(&file, &path)?;
        let blob = cache.blob(&want.sha256);
        fs::rename(&path, &blob).map_err(FetchError::cache("rename", &path))?;
        sync_parent(&blob)?;
        remove(&record_of(&path))?;
        Ok(Finished::Whole)
    }
}

/// Hashes a file from where it is read to its end; how long that was.
pub(crate) fn hash(file: &mut File) -> io::Result<(Sha256, u64)> {
    let (mut hasher, mut buffer, mut read) = (Sha256::new(), vec![0; CHUNK], 0);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((hasher, read));
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
        read += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_crash_of_the_machine_only_what_reached_the_disk_is_read_again() {
        let record = Written {
            size: 100,
            synced: 40,
            boot: "a".to_owned(),
        };
        for (size, there, boot, kept) in [
            (100, 70, "a", 70),
            (100, 70, "b", 40),
            (100, 30, "b", 30),
            (100, 170, "a", 100),
            (99, 70, "a", 0),
        ] {
            assert_eq!(
                record.kept(size, there, boot),
                kept,
                "{size} {there} {boot}"
            );
        }
    }
}
