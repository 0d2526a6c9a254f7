//! Tokenizers and templates of versions, read from the artifact and checked against the digest that names the version: its signed manifest
//! lists every file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_manifest::{ArtifactManifest, Digest, MANIFEST_FILE, Reference};
use weir_model::{FileBytes, ModelText};

use super::objects::Served;

/// Larger files are weights, which are no business of a gateway.
const MAX_FILE: u64 = 64 << 20;
/// From a failure to the next attempt: a volume may still be on its way.
const RETRY: Duration = Duration::from_secs(5);

/// What was read, by digest.
#[derive(Default)]
pub(super) struct Texts(Mutex<BTreeMap<String, Read>>);

enum Read {
    Done(Text),
    Failed(Instant),
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
    /// Whether a version was read.
    pub(super) fn has(&self, digest: &str) -> bool {
        matches!(self.0.lock().get(digest), Some(Read::Done(_)))
    }

    /// The text side of a version; none where it cannot be read, which is tried again after a while. Blocks.
    pub(super) fn get(&self, plan: &Served) -> Option<Text> {
        match self.0.lock().get(&plan.digest) {
            Some(Read::Done(text)) if text.file == plan.references => return Some(text.clone()),
            Some(Read::Failed(at)) if at.elapsed() < RETRY => return None,
            Some(Read::Done(_) | Read::Failed(_)) | None => {}
        }
        let (read, text) = match read(plan) {
            Ok(text) => (Read::Done(text.clone()), Some(text)),
            Err(cause) => {
                let (digest, dir) = (&plan.digest, plan.dir.display());
                tracing::error!(digest, %dir, cause, "a version cannot be served from here");
                (Read::Failed(Instant::now()), None)
            }
        };
        self.0.lock().insert(plan.digest.clone(), read);
        text
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

fn read(plan: &Served) -> Result<Text, String> {
    let open =
        |name: &str| std::fs::read(plan.dir.join(name)).map_err(|error| format!("{name}: {error}"));
    let manifest = open(MANIFEST_FILE)?;
    if Digest::of(&manifest).to_string() != plan.digest {
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
