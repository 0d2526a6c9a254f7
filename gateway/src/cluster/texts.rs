//! Tokenizers and templates of versions, read from the artifact and checked against the digest that names the version: its signed manifest
//! lists every file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_manifest::{ArtifactManifest, Digest, MANIFEST_FILE};
use weir_model::{FileBytes, ModelText};

/// Larger files are weights, which are no business of a gateway.
const MAX_FILE: u64 = 64 << 20;
/// From a failure to the next attempt: a volume may still be on its way.
const RETRY: Duration = Duration::from_secs(5);

/// What was read, by digest.
#[derive(Default)]
pub(super) struct Texts(Mutex<BTreeMap<String, Read>>);

enum Read {
    Done(Arc<ModelText>),
    Failed(Instant),
}

impl Texts {
    /// Whether a version was read.
    pub(super) fn has(&self, digest: &str) -> bool {
        matches!(self.0.lock().get(digest), Some(Read::Done(_)))
    }

    /// The text side of a version; none where it cannot be read, which is tried again after a while. Blocks.
    pub(super) fn get(&self, digest: &str, dir: &Path) -> Option<Arc<ModelText>> {
        match self.0.lock().get(digest) {
            Some(Read::Done(text)) => return Some(Arc::clone(text)),
            Some(Read::Failed(at)) if at.elapsed() < RETRY => return None,
            Some(Read::Failed(_)) | None => {}
        }
        let read = match read(digest, dir) {
            Ok(text) => Read::Done(Arc::new(text)),
            Err(cause) => {
                tracing::error!(digest, dir = %dir.display(), cause, "a version cannot be served from here");
                Read::Failed(Instant::now())
            }
        };
        let mut all = self.0.lock();
        all.insert(digest.to_owned(), read);
        match all.get(digest) {
            Some(Read::Done(text)) => Some(Arc::clone(text)),
            _ => None,
        }
    }

    /// Whether something is to be tried again.
    pub(super) fn has_failed(&self) -> bool {
        self.0
            .lock()
            .values()
            .any(|read| matches!(read, Read::Failed(_)))
    }

    /// Forgets versions that are gone.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().retain(|digest, _| exists(digest));
    }
}

fn read(digest: &str, dir: &Path) -> Result<ModelText, String> {
    let open =
        |name: &str| std::fs::read(dir.join(name)).map_err(|error| format!("{name}: {error}"));
    let manifest = open(MANIFEST_FILE)?;
    if Digest::of(&manifest).to_string() != digest {
        return Err(format!(
            "{MANIFEST_FILE} is another version's: its digest is {}",
            Digest::of(&manifest)
        ));
    }
    let manifest = ArtifactManifest::from_bytes(&manifest).map_err(|error| error.to_string())?;
    let mut files = Vec::new();
    for file in manifest
        .files
        .iter()
        .filter(|file| file.size <= MAX_FILE && !file.path.as_str().ends_with(".safetensors"))
    {
        let name = file.path.as_str();
        let bytes = open(name)?;
        // What was hashed is what is used: the bytes in memory.
        if Digest::of(&bytes) != file.sha256 {
            return Err(format!("{name} is not what was signed"));
        }
        files.push((name.to_owned(), bytes));
    }
    ModelText::from_files(&FileBytes::new(files)).map_err(|error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    })
}
