//! Hashes open files, and puts the very bytes that were hashed where nobody can change them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, Stat, fcntl_add_seals, fstat, memfd_create};
use sha2::{Digest as _, Sha256};

use crate::directory::{ArtifactDir, unreadable};
use crate::path::FilePath;
use crate::{Digest, VerifyError};

/// Read at once. Large enough to keep system calls rare, small enough to stay in the second-level cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Most threads; disks give no more with more of them.
const MAX_THREADS: usize = 8;

/// Where the verified bytes stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In memory of this process, sealed by the kernel (`F_SEAL_WRITE`): nobody, not even this process, can change them any more. Costs
    /// the size of the artifact in memory that cannot be evicted, in place of the page cache.
    #[default]
    SealedCopy,
    /// In the file itself, for volumes that nobody writes to (an image volume, a read-only claim). **The caller vouches for that**: a
    /// process that writes into the file after it was verified would change what is mapped, and nothing could tell.
    ReadOnlyVolume,
}

/// Told of every piece of content that was hashed, from any thread, in bytes.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// A file whose content has the digest.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) file: File,
}

/// Opens and hashes `paths`, several at a time.
pub(crate) fn read_all(
    dir: &ArtifactDir,
    paths: impl Iterator<Item = FilePath>,
    placement: Placement,
    progress: Option<Progress<'_>>,
) -> Result<BTreeMap<FilePath, Content>, VerifyError> {
    let paths: Vec<_> = paths.collect();
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS)
        .min(paths.len());
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut done = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let result = read(dir, path, placement, progress);
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            done.push((path.clone(), result));
        }
        done
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().expect("hashing does not panic"))
            .collect()
    });
    let mut contents = BTreeMap::new();
    let mut faults = BTreeMap::new();
    for (path, result) in done {
        match result {
            Ok(content) => drop(contents.insert(path, content)),
            Err(fault) => drop(faults.insert(path, fault)),
        }
    }
    faults
        .into_iter()
        .next()
        .map_or(Ok(contents), |(_, fault)| Err(fault))
}

/// Reads a file to its end exactly once; what is hashed is what is kept.
fn read(
    dir: &ArtifactDir,
    path: &FilePath,
    placement: Placement,
    progress: Option<Progress<'_>>,
) -> Result<Content, VerifyError> {
    let (mut file, before) = dir.open_file(path)?;
    let copy_failed = |source: io::Error| VerifyError::CopyFailed {
        path: path.to_string(),
        source,
    };
    let mut copy = match placement {
        Placement::SealedCopy => Some(anonymous_file().map_err(copy_failed)?),
        Placement::ReadOnlyVolume => None,
    };
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut size = 0_u64;
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(&dir.shown(path), error)),
        };
        let chunk = buffer.get(..count).unwrap_or_default();
        hasher.update(chunk);
        if let Some(copy) = &mut copy {
            copy.write_all(chunk).map_err(copy_failed)?;
        }
        size += count as u64;
        if let Some(report) = progress {
            report(count as u64);
        }
    }
    let after = fstat(&file).map_err(|e| unreadable(&dir.shown(path), e))?;
    if identity(&before) != identity(&after) || u64::try_from(after.st_size) != Ok(size) {
        return Err(VerifyError::FileChanged {
            path: path.to_string(),
        });
    }
    let mut file = match copy {
        Some(copy) => seal(copy).map_err(copy_failed)?,
        None => file,
    };
    file.rewind().map_err(|e| unreadable(&dir.shown(path), e))?;
    Ok(Content {
        digest: Digest::from_bytes(hasher.finalize().into()),
        size,
        file,
    })
}

/// What changes when somebody writes to a file.
fn identity(stat: &Stat) -> impl PartialEq {
    (
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec,
    )
}

fn anonymous_file() -> io::Result<File> {
    Ok(File::from(memfd_create(
        "weir-artifact",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?))
}

fn seal(file: File) -> io::Result<File> {
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(file)
}
