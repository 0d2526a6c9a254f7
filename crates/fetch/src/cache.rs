//! What lies where on the disk.
//!
//! ```text
//! blobs/sha256/HEX     whole files, named by their digest, never written again
//! partial/HEX          what came of a file so far; HEX.json says how much of it has reached the disk
//! models/NAME/…        a version's files under their names: hard links to blobs, so a folder as `weir verify` wants one, without links out of it
//! records/NAME.json    which files a version has; its time is when it was last used
//! locks/…              one for each blob (who fetches it), one for each version (who uses it), and one for all changes of the tables above
//! ```
//!
//! Any number of processes may use one cache. All locks are `flock`: who dies holds none. A blob gets its name only when its whole content
//! had the digest and reached the disk. Everything else can be thrown away at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_manifest::{Digest, FileEntry};

use crate::FetchError;
use crate::space::{Kept, evict};

/// Between two attempts to get a lock. Whoever holds one for long fetches a file of gigabytes.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// The lock of all tables.
const TABLES: &str = "tables";

/// A cache of models in a folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    limit: Option<u64>,
    free_percent: u8,
}

/// Which files a version has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Where they came from last.
    pub uri: String,
    /// Every signed file.
    pub files: Vec<FileEntry>,
    /// The signature, where it is a file beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<FileEntry>,
}

impl Record {
    /// Everything that lies in the version's folder.
    pub fn all(&self) -> impl Iterator<Item = &FileEntry> {
        self.files.iter().chain(&self.signature)
    }
}

/// As long as it lives, the version is not evicted, whoever runs out of room.
#[derive(Debug)]
pub struct Lease(#[expect(dead_code, reason = "the open file holds the lock")] File);

/// An exclusive lock, until dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the open file holds the lock")] File);

impl Cache {
    /// A cache in a folder, which is made where it is not there, that holds at most `limit` bytes.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(root: &Path, limit: Option<u64>) -> Result<Self, FetchError> {
        for folder in ["blobs/sha256", "partial", "models", "records", "locks"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(FetchError::cache("make", &path))?;
        }
        let root = root
            .canonicalize()
            .map_err(FetchError::cache("open", root))?;
        Ok(Self {
            root,
            limit,
            free_percent: 0,
        })
    }

    /// Leaves so much of the volume free: others live on it too, and a kubelet that finds it full throws pods out.
    #[must_use]
    pub fn leaving_free(mut self, percent: u8) -> Self {
        self.free_percent = percent.min(100);
        self
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a version's files.
    pub fn model(&self, name: &str) -> PathBuf {
        self.root.join("models").join(name)
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.to_hex())
    }

    pub(crate) fn partial(&self, digest: &Digest) -> PathBuf {
        self.root.join("partial").join(digest.to_hex())
    }

    pub(crate) fn has(&self, file: &FileEntry) -> bool {
        let found = fs::metadata(self.blob(&file.sha256));
        found.is_ok_and(|meta| meta.len() == file.size)
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.root.join("records").join(format!("{name}.json"))
    }

    /// What is known of a version.
    pub fn record(&self, name: &str) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.record_path(name)).ok()?).ok()
    }

    /// The names of all versions.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, FetchError> {
        let names = listed(&self.root.join("records"))?;
        let stem = |(name, _): (String, _)| name.strip_suffix(".json").map(str::to_owned);
        Ok(names.into_iter().filter_map(stem).collect())
    }

    fn lock_file(&self, name: &str) -> Result<File, FetchError> {
        let path = self.root.join("locks").join(name);
        let opened = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .open(&path);
        opened.map_err(FetchError::cache("open the lock", &path))
    }

    /// Waits until nobody else has the lock.
    pub(crate) async fn lock(&self, name: &str) -> Result<Lock, FetchError> {
        let file = self.lock_file(name)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(fs::TryLockError::WouldBlock) => tokio::time::sleep(ASK_EVERY).await,
                Err(fs::TryLockError::Error(error)) => {
                    return Err(FetchError::cache(
                        "lock",
                        &self.root.join("locks").join(name),
                    )(error));
                }
            }
        }
    }

    pub(crate) async fn lock_tables(&self) -> Result<Lock, FetchError> {
        self.lock(TABLES).await
    }

    /// The lock of a blob, if nobody has it.
    pub(crate) fn try_lock_blob(&self, digest: &Digest) -> Result<Option<Lock>, FetchError> {
        let file = self.lock_file(&format!("b-{}", digest.to_hex()))?;
        Ok(file.try_lock().is_ok().then_some(Lock(file)))
    }

    pub(crate) async fn lock_blob(&self, digest: &Digest) -> Result<Lock, FetchError> {
        self.lock(&format!("b-{}", digest.to_hex())).await
    }

    /// Says that a version is used, and what it consists of.
    pub(crate) async fn hold(&self, name: &str, record: &Record) -> Result<Lease, FetchError> {
        let _tables = self.lock_tables().await?;
        let lease = self.lock_file(&format!("m-{name}"))?;
        lease
            .lock_shared()
            .map_err(FetchError::cache("lock", &self.root.join("locks")))?;
        if self.record(name).as_ref() == Some(record) {
            let path = self.record_path(name);
            let touched = File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_modified(SystemTime::now()));
            touched.map_err(FetchError::cache("touch", &path))?;
        } else {
            let text = serde_json::to_vec(record).unwrap_or_default();
            write_whole(&self.record_path(name), &text)?;
        }
        Ok(Lease(lease))
    }

    /// Whether a version's folder holds exactly these files, each the very blob.
    pub(crate) fn is_linked(&self, name: &str, record: &Record) -> bool {
        let dir = self.model(name);
        let same = |file: &FileEntry| {
            let (linked, blob) = (
                fs::symlink_metadata(dir.join(file.path.as_str())),
                fs::metadata(self.blob(&file.sha256)),
            );
            matches!((linked, blob), (Ok(one), Ok(other)) if (one.dev(), one.ino()) == (other.dev(), other.ino()))
        };
        record.all().all(same) && count_files(&dir) == record.all().count()
    }

    /// Gives a version's files their names. Says no where a file went meanwhile.
    pub(crate) async fn link(&self, name: &str, record: &Record) -> Result<bool, FetchError> {
        let _tables = self.lock_tables().await?;
        if self.is_linked(name, record) {
            return Ok(true);
        }
        if !record.all().all(|file| self.has(file)) {
            return Ok(false);
        }
        let dir = self.model(name);
        let making = self.root.join("models").join(format!(".{name}"));
        remove(&making)?;
        for file in record.all() {
            let path = making.join(file.path.as_str());
            let parent = path.parent().unwrap_or(&making);
            fs::create_dir_all(parent).map_err(FetchError::cache("make", parent))?;
            fs::hard_link(self.blob(&file.sha256), &path)
                .map_err(FetchError::cache("link", &path))?;
        }
        remove(&dir)?;
        fs::rename(&making, &dir).map_err(FetchError::cache("rename", &making))?;
        sync_parent(&dir)?;
        Ok(true)
    }

    /// Makes room for `needed` more bytes: within the limit, and on the volume.
    pub(crate) async fn make_room(&self, needed: u64) -> Result<(), FetchError> {
        let _tables = self.lock_tables().await?;
        let (models, sizes) = self.contents()?;
        let total: u64 = sizes.values().sum();
        let by_limit = self
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(needed));
        let (available, reserve) = self.available()?;
        // What may be held at all: a volume that others filled beyond the reserve is brought back to it.
        let reach = (total + available).saturating_sub(reserve);
        let by_volume = reach.saturating_sub(needed);
        let eviction = evict(&models, &sizes, by_limit.min(by_volume));
        for name in &eviction.models {
            tracing::info!(name, "a version is evicted from the cache");
            remove(&self.model(name))?;
            remove(&self.record_path(name))?;
        }
        for digest in &eviction.blobs {
            remove(&self.blob(digest))?;
            remove(&self.partial(digest))?;
            remove(&record_of(&self.partial(digest)))?;
        }
        if let Some(limit) = self
            .limit
            .filter(|_| eviction.left > by_limit || needed > self.limit.unwrap_or(u64::MAX))
        {
            return Err(FetchError::CacheFull {
                path: self.root.clone(),
                limit,
                held: eviction.left,
                needed,
            });
        }
        if eviction.left > by_volume || needed > reach {
            return Err(FetchError::NoSpace {
                path: self.root.clone(),
                needed,
                available: reach.saturating_sub(eviction.left),
            });
        }
        Ok(())
    }

    /// Bytes that are free on the volume, and those of it that are to stay so.
    fn available(&self) -> Result<(u64, u64), FetchError> {
        let stat = rustix::fs::statvfs(&self.root)
            .map_err(|error| FetchError::cache("ask the volume of", &self.root)(error.into()))?;
        let reserve = stat.f_blocks / 100 * u64::from(self.free_percent);
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok((bytes(stat.f_bavail), bytes(reserve)))
    }

    /// Every version, and every blob, whole or not, with its size.
    fn contents(&self) -> Result<(Vec<Kept>, BTreeMap<Digest, u64>), FetchError> {
        let mut sizes: BTreeMap<Digest, u64> = BTreeMap::new();
        for folder in ["blobs/sha256", "partial"] {
            for (name, meta) in listed(&self.root.join(folder))? {
                if let Ok(digest) = name.parse() {
                    *sizes.entry(digest).or_default() += meta.len();
                }
            }
        }
        let mut models = Vec::new();
        for name in self.names()? {
            let Some(record) = self.record(&name) else {
                remove(&self.record_path(&name))?;
                continue;
            };
            let used = fs::metadata(self.record_path(&name)).and_then(|meta| meta.modified());
            let used = used
                .ok()
                .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let is_held = self.lock_file(&format!("m-{name}"))?.try_lock().is_err();
            models.push(Kept {
                name,
                used: used.map_or(0, |used| {
                    u64::try_from(used.as_millis()).unwrap_or(u64::MAX)
                }),
                is_held,
                blobs: record
                    .all()
                    .map(|file| file.sha256)
                    .collect::<BTreeSet<_>>(),
            });
        }
        Ok((models, sizes))
    }
}

/// The record beside a part of a file.
pub(crate) fn record_of(partial: &Path) -> PathBuf {
    partial.with_extension("json")
}

/// Nobody writes to a blob again: what several versions share must not be changed through one of them.
pub(crate) fn seal(file: &File, path: &Path) -> Result<(), FetchError> {
    let sealed = file
        .set_permissions(fs::Permissions::from_mode(0o444))
        .and_then(|()| file.sync_all());
    sealed.map_err(FetchError::cache("write", path))
}

/// Writes a small file so that whoever opens it sees all of it or none.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FetchError> {
    let making = path.with_extension(format!("{}.new", std::process::id()));
    let written = File::create(&making).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_data()
    });
    written
        .and_then(|()| fs::rename(&making, path))
        .map_err(FetchError::cache("write", path))
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), FetchError> {
    let parent = path.parent().unwrap_or(path);
    let synced = File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(FetchError::cache("write", parent))
}

/// Removes a file or a folder, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), FetchError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FetchError::cache("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn listed(dir: &Path) -> Result<Vec<(String, fs::Metadata)>, FetchError> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).map_err(FetchError::cache("list", dir))? {
        let entry = entry.map_err(FetchError::cache("list", dir))?;
        // What went meanwhile is not there.
        if let (Ok(name), Ok(meta)) = (entry.file_name().into_string(), entry.metadata()) {
            all.push((name, meta));
        }
    }
    Ok(all)
}

/// The depth is bounded by that of a signed path: this code alone makes these folders.
fn count_files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => count_files(&entry.path()),
        _ => 1,
    };
    entries.map(count).sum()
}
