//! The files that the log needs. Tests put a medium below that loses power.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::kv::KvError;
use crate::kv::redb_kv::RedbKv;

const BASE: &str = "checkpoint.redb";
/// Written at a time when a file is filled with zeros.
const ZEROS: usize = 1 << 20;

/// A folder of segments, and the checkpoint beside them.
pub(super) trait Disk: Send + Sync {
    /// Names of all segments.
    fn segments(&self) -> io::Result<Vec<String>>;

    /// Opens a segment.
    fn open(&self, name: &str) -> io::Result<Box<dyn Segment>>;

    /// Makes a segment of zeros. On return its blocks, its length and its name are durable; before, its name is not there.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn Segment>>;

    /// Removes a segment whose content nobody needs.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Space left.
    fn free_bytes(&self) -> u64;

    /// Whether there is a checkpoint.
    fn has_base(&self) -> io::Result<bool>;

    /// Opens the checkpoint, or makes one with what `fill` commits: durable with it, or not there.
    fn base(&self, fill: Fill<'_>) -> Result<RedbKv, KvError>;
}

/// Commits what a new checkpoint begins with.
pub(super) type Fill<'a> = &'a dyn Fn(&RedbKv) -> Result<(), KvError>;

/// A file of fixed length.
pub(super) trait Segment: Send + Sync {
    /// Everything in it.
    fn read(&self) -> io::Result<Vec<u8>>;

    /// Overwrites; durable after the next sync.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;

    /// What was synced will not be read soon: the kernel need not keep it.
    fn forget(&self);
}

/// A folder of the file system.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        // A file that a crash left half filled never had its name.
        for entry in std::fs::read_dir(path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                std::fs::remove_file(path)?;
            }
        }
        let folder = Self {
            path: path.to_owned(),
        };
        folder.sync()?;
        Ok(folder)
    }

    /// Of the file system; one that does not say is large.
    pub(super) fn total_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.path)
            .map_or(u64::MAX, |fs| fs.f_blocks.saturating_mul(fs.f_frsize))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Disk for Folder {
    fn segments(&self) -> io::Result<Vec<String>> {
        let mut names = vec![];
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if Path::new(&name).extension().is_some_and(|e| e == "segment") {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Segment>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn Segment>> {
        let path = self.path.join(name);
        let unnamed = path.with_extension("new");
        let made = filled(&unnamed, bytes);
        let Ok(file) = made else {
            // What is half filled would hold the space that is missing.
            let _ = std::fs::remove_file(&unnamed);
            return made.map(|file| Box::new(file) as Box<dyn Segment>);
        };
        std::fs::rename(&unnamed, &path)?;
        self.sync()?;
        Ok(Box::new(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.path)
            .map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
    }

    fn has_base(&self) -> io::Result<bool> {
        self.path.join(BASE).try_exists()
    }

    fn base(&self, fill: Fill<'_>) -> Result<RedbKv, KvError> {
        let base = RedbKv::open_or_make(&self.path.join(BASE), CACHE_BYTES, fill)?;
        self.sync().map_err(|error| KvError::from_io(&error))?;
        Ok(base)
    }
}

/// What is live is in tables above the checkpoint; from it comes what is old, and the kernel keeps its pages too.
const CACHE_BYTES: usize = 16 << 20;

/// Zeros that were written, not only reserved: overwriting them changes no metadata, so that a sync need not wait for the journal.
fn filled(path: &Path, bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)?;
    let zeros = vec![0; ZEROS];
    let mut offset = 0;
    while offset < bytes {
        let left = usize::try_from(bytes - offset).unwrap_or(usize::MAX);
        let part = &zeros[..left.min(ZEROS)];
        file.write_all_at(part, offset)?;
        offset += part.len() as u64;
    }
    file.sync_all()?;
    file.forget();
    Ok(file)
}

impl Segment for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.metadata()?.len()).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    /// Also because a small write into a large piece of the kernel's memory is accounted, and on some file systems written, as the whole piece.
    fn forget(&self) {
        // Advice: nothing is wrong when it is not taken.
        let _ = rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed);
    }
}
