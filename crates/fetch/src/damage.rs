//! Files that are not any more what they were when they came: disks lose bits, and people edit what lies in a cache.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use weir_manifest::{Digest, FilePath};

use crate::FetchError;
use crate::blob::blocking;
use crate::cache::{Cache, remove};

/// Read at once.
const CHUNK: usize = 1 << 20;

impl Cache {
    /// Reads every file of a version, and throws away those whose content is not what their name says: the next fetch brings them anew.
    /// Which they were. For whoever found something wrong with the version.
    ///
    /// # Errors
    /// A file cannot be read or removed.
    pub async fn drop_damaged(&self, name: &str) -> Result<Vec<FilePath>, FetchError> {
        let Some(record) = self.record(name) else {
            return Ok(Vec::new());
        };
        let mut dropped = Vec::new();
        let mut seen = BTreeSet::new();
        for file in record.all().filter(|file| seen.insert(file.sha256)) {
            let _lock = self.lock_blob(&file.sha256).await?;
            let path = self.blob(&file.sha256);
            let reading = path.clone();
            let found = blocking(move || hash(&reading)).await?;
            if found.is_some_and(|found| found != file.sha256) {
                tracing::warn!(
                    file = file.path.as_str(),
                    name,
                    "a file of the cache is damaged"
                );
                remove(&path)?;
                dropped.push(file.path.clone());
            }
        }
        if !dropped.is_empty() {
            let _tables = self.lock_tables().await?;
            remove(&self.model(name))?;
        }
        Ok(dropped)
    }
}

/// `None` where there is no file.
fn hash(path: &Path) -> Result<Option<Digest>, FetchError> {
    let failed = FetchError::cache("read", path);
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        let count = file
            .read(&mut buffer)
            .map_err(FetchError::cache("read", path))?;
        if count == 0 {
            return Ok(Some(Digest::from_bytes(hasher.finalize().into())));
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
}
