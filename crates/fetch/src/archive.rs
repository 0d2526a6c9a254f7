//! A version on its way to where there is no network: a folder or a tar file with the record and the blobs, as they lie in a cache.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weir_manifest::FileEntry;

use crate::FetchError;
use crate::cache::{Cache, Lease, Record};
use crate::partial::{Finished, Partial};

/// Longest record: the same bound as for a signed manifest's own list.
const MAX_RECORD: u64 = 16 << 20;

/// Writes a version that is in the cache to a folder, or to a tar file where the name ends in `.tar`. Blocks.
///
/// # Errors
/// A file cannot be read or written.
pub fn export(cache: &Cache, name: &str, to: &Path) -> Result<(), FetchError> {
    let record = cache.record(name).ok_or_else(|| FetchError::Archive {
        path: cache.model(name),
        cause: "the version is not in the cache".to_owned(),
    })?;
    let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
    let blob = |file: &FileEntry| format!("blobs/sha256/{}", file.sha256.to_hex());
    let record_name = format!("records/{name}.json");
    if to.extension().is_some_and(|extension| extension == "tar") {
        let failed = |error| FetchError::cache("write", to)(error);
        let mut archive = tar::Builder::new(File::create(to).map_err(failed)?);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive
            .append_data(&mut header, &record_name, text.as_slice())
            .map_err(failed)?;
        for file in record.all() {
            let path = cache.blob(&file.sha256);
            let mut open = File::open(&path).map_err(FetchError::cache("read", &path))?;
            archive.append_file(blob(file), &mut open).map_err(failed)?;
        }
        return archive
            .into_inner()
            .and_then(|file| file.sync_all())
            .map_err(failed);
    }
    for file in record.all() {
        let target = to.join(blob(file));
        let parent = target.parent().unwrap_or(to);
        fs::create_dir_all(parent).map_err(FetchError::cache("make", parent))?;
        crate::cache::remove(&target)?;
        fs::copy(cache.blob(&file.sha256), &target).map_err(FetchError::cache("write", &target))?;
    }
    let target = to.join(&record_name);
    let parent = target.parent().unwrap_or(to);
    fs::create_dir_all(parent).map_err(FetchError::cache("make", parent))?;
    fs::write(&target, text).map_err(FetchError::cache("write", &target))
}

/// Takes a version from what [`export`] wrote. Every file is hashed on its way; one that is not what its name says is not kept.
///
/// # Errors
/// It is no export, or a file of it is not what its name says.
pub async fn import(
    cache: &Cache,
    from: &Path,
) -> Result<Vec<(String, Record, Lease)>, FetchError> {
    let mut records = Vec::new();
    let fault = |cause: String| FetchError::Archive {
        path: from.to_owned(),
        cause,
    };
    if from.is_dir() {
        let dir = from.join("records");
        for entry in fs::read_dir(&dir)
            .map_err(FetchError::cache("list", &dir))?
            .flatten()
        {
            let file =
                File::open(entry.path()).map_err(FetchError::cache("read", &entry.path()))?;
            records.extend(record(&entry.path(), file));
        }
        for (name, record) in &records {
            cache
                .make_room(record.all().map(|file| file.size).sum())
                .await?;
            let lease = cache.hold(name, record).await?;
            for file in record.all() {
                let path = from.join("blobs/sha256").join(file.sha256.to_hex());
                let open = File::open(&path).map_err(FetchError::cache("read", &path))?;
                take(cache, file, open).await?.map_err(fault)?;
            }
            drop(lease);
        }
    } else {
        records = unpack(cache, from).await?;
    }
    if records.is_empty() {
        return Err(fault("it has no record of a version".to_owned()));
    }
    let mut all = Vec::new();
    for (name, record) in records {
        let lease = cache.hold(&name, &record).await?;
        if !cache.link(&name, &record).await? {
            return Err(fault("a file of the version is missing in it".to_owned()));
        }
        all.push((name, record, lease));
    }
    Ok(all)
}

async fn unpack(cache: &Cache, from: &Path) -> Result<Vec<(String, Record)>, FetchError> {
    let failed = |error| FetchError::cache("read", from)(error);
    let fault = |cause: String| FetchError::Archive {
        path: from.to_owned(),
        cause,
    };
    let mut archive = tar::Archive::new(File::open(from).map_err(failed)?);
    let mut found: Vec<(String, Record)> = Vec::new();
    let mut leases = Vec::new();
    for entry in archive.entries().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = PathBuf::from(String::from_utf8_lossy(&entry.path_bytes()).into_owned());
        if path.starts_with("records") {
            // The record comes first, so that what follows is asked for.
            if let Some((name, record)) = record(&path, entry) {
                cache
                    .make_room(record.all().map(|file| file.size).sum())
                    .await?;
                leases.push(cache.hold(&name, &record).await?);
                found.push((name, record));
            }
            continue;
        }
        let hex = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        let wanted = found
            .iter()
            .flat_map(|(_, record)| record.all())
            .find(|file| file.sha256.to_hex() == hex);
        if let Some(file) = wanted.cloned() {
            take(cache, &file, entry).await?.map_err(fault)?;
        }
    }
    Ok(found)
}

/// The record in a file, if it is one.
fn record(path: &Path, file: impl Read) -> Option<(String, Record)> {
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
    let name = path.file_stem()?.to_str()?;
    // The name becomes one of a folder: a digest, or what is made of one.
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let record: Record = serde_json::from_slice(&text).ok()?;
    is_plain.then(|| (name.to_owned(), record))
}

/// Brings a file into the cache. Blocks while reading: only a command of people does this. The inner error is the file's.
async fn take(
    cache: &Cache,
    want: &FileEntry,
    mut from: impl Read,
) -> Result<Result<(), String>, FetchError> {
    let _lock = cache.lock_blob(&want.sha256).await?;
    if cache.has(want) {
        return Ok(Ok(()));
    }
    let mut partial = Partial::open(cache, want)?;
    let failed = |error: io::Error| FetchError::cache("read", &cache.partial(&want.sha256))(error);
    io::copy(&mut from.by_ref().take(partial.len()), &mut io::sink()).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    while partial.len() < want.size {
        let count = from.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Ok(Err(format!("the file {} is too short in it", want.path)));
        }
        let left = usize::try_from(want.size - partial.len()).unwrap_or(usize::MAX);
        partial.write(buffer.get(..count.min(left)).unwrap_or_default(), want.size)?;
    }
    match partial.finish(cache, want)? {
        Finished::Whole => Ok(Ok(())),
        Finished::Wrong(found) => Ok(Err(format!(
            "the file {} has the digest {found} in it, and its record says {}",
            want.path, want.sha256
        ))),
    }
}
