//! Tokenizers and templates of versions, read from the artifact and checked against the digest that names the version: its signed manifest
//! lists every file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_manifest::{ArtifactManifest, Digest, FileEntry, MANIFEST_FILE, Reference};
use weir_model::{FileBytes, ModelText};

use super::elsewhere::Place;
use super::objects::{Elsewhere, Served};

/// Larger files are weights, which are no business of a gateway.
const MAX_FILE: u64 = 64 << 20;
/// From a failure to the next attempt: a volume may still be on its way.
const RETRY: Duration = Duration::from_secs(5);

/// What was read, by digest. Cloning shares it.
#[derive(Clone)]
pub(super) struct Texts(Arc<Inner>);

struct Inner {
    read: Mutex<BTreeMap<String, Read>>,
    place: Place,
    /// Something was read meanwhile.
    changed: Arc<Notify>,
}

enum Read {
    Done(Text),
    /// Its files are on their way.
    Coming,
    Failed {
        at: Instant,
        /// Its files are elsewhere, and may come yet.
        is_remote: bool,
    },
}

/// What a gateway knows of a version.
#[derive(Clone)]
pub(super) struct Text {
    /// Tokenizer, template and generation defaults.
    pub(super) model: Arc<ModelText>,
    /// Prompts with expected answers, if its signer gave any with it.
    pub(super) references: Arc<[Reference]>,
    /// The file that holds them.
    file: Option<String>,
}

impl Texts {
    /// Nothing yet; `changed` is told when something was read that took long.
    pub(super) fn new(place: Place, changed: Arc<Notify>) -> Self {
        Self(Arc::new(Inner {
            read: Mutex::default(),
            place,
            changed,
        }))
    }

    /// Whether a version was read.
    pub(super) fn has(&self, digest: &str) -> bool {
        matches!(self.0.read.lock().get(digest), Some(Read::Done(_)))
    }

    /// The text side of a version; none where it cannot be read, which is tried again after a while. Blocks, but not for what is fetched.
    pub(super) fn get(&self, plan: &Served) -> Option<Text> {
        match self.0.read.lock().get(&plan.digest) {
            Some(Read::Done(text)) if text.file == plan.references => return Some(text.clone()),
            Some(Read::Failed { at, .. }) if at.elapsed() < RETRY => return None,
            Some(Read::Coming) => return None,
            Some(Read::Done(_) | Read::Failed { .. }) | None => {}
        }
        if let Some(elsewhere) = &plan.fetch {
            self.begin(plan, elsewhere.clone());
            return None;
        }
        self.keep(plan, read(plan, &plan.dir))
    }

    /// Fetches beside whoever waits for other versions.
    fn begin(&self, plan: &Served, elsewhere: Elsewhere) {
        let coming = (plan.digest.clone(), Read::Coming);
        self.0.read.lock().extend([coming]);
        let (this, plan) = (self.clone(), plan.clone());
        tokio::spawn(async move {
            let text = match this.0.place.bring(&plan.digest, &elsewhere, is_text).await {
                Ok(fetched) => {
                    let of = plan.clone();
                    let reading = move || read(&of, &fetched.dir);
                    let read = tokio::task::spawn_blocking(reading).await;
                    read.unwrap_or_else(|error| Err(error.to_string()))
                }
                Err(cause) => Err(cause),
            };
            this.keep(&plan, text);
            this.0.changed.notify_one();
        });
    }

    fn keep(&self, plan: &Served, read: Result<Text, String>) -> Option<Text> {
        let (read, text) = match read {
            Ok(text) => (Read::Done(text.clone()), Some(text)),
            Err(cause) => {
                let (digest, dir) = (&plan.digest, plan.dir.display());
                tracing::error!(digest, %dir, cause, "a version cannot be served from here");
                let at = Instant::now();
                let is_remote = plan.fetch.is_some();
                (Read::Failed { at, is_remote }, None)
            }
        };
        self.0.read.lock().insert(plan.digest.clone(), read);
        text
    }

    /// Whether something is to be tried again.
    pub(super) fn has_failed(&self) -> bool {
        let read = self.0.read.lock();
        let failed = |read: &Read| matches!(read, Read::Failed { .. });
        read.values().any(failed)
    }

    /// Whether the text of a version that is elsewhere has not come yet.
    pub(super) fn are_coming(&self) -> bool {
        let is_coming = |read: &Read| match read {
            Read::Coming => true,
            Read::Failed { is_remote, .. } => *is_remote,
            Read::Done(_) => false,
        };
        self.0.read.lock().values().any(is_coming)
    }

    /// Forgets versions that are gone.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.read.lock().retain(|digest, _| exists(digest));
    }
}

/// Whether a file is a gateway's business.
fn is_text(file: &FileEntry) -> bool {
    file.size <= MAX_FILE && !file.path.as_str().ends_with(".safetensors")
}

fn read(plan: &Served, dir: &Path) -> Result<Text, String> {
    let open =
        |name: &str| std::fs::read(dir.join(name)).map_err(|error| format!("{name}: {error}"));
    let manifest = open(MANIFEST_FILE)?;
    if Digest::of(&manifest).to_string() != plan.digest {
        return Err(format!(
            "{MANIFEST_FILE} is another version's: its digest is {}",
            Digest::of(&manifest)
        ));
    }
    let manifest = ArtifactManifest::from_bytes(&manifest).map_err(|error| error.to_string())?;
    let mut files = Vec::new();
    for file in manifest.files.iter().filter(|file| is_text(file)) {
        let name = file.path.as_str();
        let bytes = open(name)?;
        // What was hashed is what is used: the bytes in memory.
        if Digest::of(&bytes) != file.sha256 {
            return Err(format!("{name} is not what was signed"));
        }
        files.push((name.to_owned(), bytes));
    }
    let references = match &plan.references {
        Some(name) => references(name, &files)?,
        None => Arc::default(),
    };
    let model = ModelText::from_files(&FileBytes::new(files)).map_err(|error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    })?;
    Ok(Text {
        model: Arc::new(model),
        references,
        file: plan.references.clone(),
    })
}

/// A version whose references cannot be asked is not served: its guard would be missing.
fn references(name: &str, files: &[(String, Vec<u8>)]) -> Result<Arc<[Reference]>, String> {
    let found = files.iter().find(|(file, _)| file == name);
    let (_, bytes) =
        found.ok_or_else(|| format!("{name} is not among the files that were signed"))?;
    let all = Reference::parse(bytes).map_err(|error| format!("{name}: {error}"))?;
    Ok(all.into())
}

#[cfg(test)]
mod tests;
