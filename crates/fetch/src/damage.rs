//! Files that are not any more what they were when they came: disks lose bits, and people edit what lies in a cache.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use sha2::Digest as _;
use weir_manifest::Digest;

use crate::FetchError;
use crate::blob::blocking;
use crate::cache::{Cache, remove};
use crate::partial::hash;

impl Cache {
    /// Looks through a version's files, and throws away those whose content is not what their name says or cannot be read, and the folder
    /// that names them where it does not hold the very files: the next fetch brings them anew. Whether anything was wrong. For whoever
    /// found something wrong with the version.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub async fn mend(&self, name: &str) -> Result<bool, FetchError> {
        let Some(record) = self.record(name) else {
            return Ok(false);
        };
        let mut seen = BTreeSet::new();
        for file in record.all().filter(|file| seen.insert(file.sha256)) {
            // Somebody fetches it: it is looked at when it gets its name.
            let Some(_lock) = self.try_lock_blob(&file.sha256)? else {
                continue;
            };
            let path = self.blob(&file.sha256);
            let reading = path.clone();
            let found = blocking(move || Ok(digest(&reading))).await?;
            if !matches!(found, Ok(found) if found == file.sha256) {
                tracing::warn!(
                    file = file.path.as_str(),
                    name,
                    ?found,
                    "a file of the cache is damaged"
                );
                remove(&path)?;
            }
        }
        let _tables = self.lock_tables().await?;
        let is_wrong = !self.is_linked(name, &record);
        if is_wrong {
            remove(&self.model(name))?;
        }
        Ok(is_wrong)
    }
}

fn digest(path: &Path) -> io::Result<Digest> {
    let (hasher, _) = hash(&mut File::open(path)?)?;
    Ok(Digest::from_bytes(hasher.finalize().into()))
}
