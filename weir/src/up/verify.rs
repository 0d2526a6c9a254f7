//! Versions, verified: what a worker is told to load, and the text side that the gateway needs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use weir_api::model_version::reasons;
use weir_api::{ModelVersion, SignatureSource, ValidModelVersion};
use weir_fetch::Lease;
use weir_manifest::{
    Digest, Placement, Reference, TrustPolicy, TrustPolicySpec, VerifiedArtifact, VerifyRequest,
    open_verified,
};
use weir_model::{Adapter, ModelText, OpenFiles};
use weir_operator::model::claim::claim;
use weir_worker::{LoadPlan, PlanPlacement, PlanSignature, open_files};

use super::catalog::Entry;
use super::fetches::Fetches;

/// A version that a trusted signer signed and whose text side loads.
#[derive(Clone)]
pub struct Verified {
    /// Manifest digest, `sha256:…`.
    pub digest: String,
    /// Who signed.
    pub signer: String,
    /// Tokenizer, template and generation defaults.
    pub text: Arc<ModelText>,
    /// Prompts with expected answers; none where the object names no file of them.
    pub references: Arc<[Reference]>,
    /// What a worker is told to load.
    pub plan: LoadPlan,
    /// Keeps the files in the cache, where they are there.
    pub lease: Option<Arc<Lease>>,
}

impl Verified {
    /// Manifest digest of the base, of an adapter.
    pub fn adapter_of(&self) -> Option<String> {
        self.plan.claim.adapter_of.map(|base| base.to_string())
    }
}

/// Why a version may not serve: a condition's reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unverified {
    /// One PascalCase word.
    pub reason: String,
    /// File or key at fault, and the remedy.
    pub message: String,
}

impl Unverified {
    /// Whether it may pass although nothing that people write changes.
    pub fn may_pass(&self) -> bool {
        let passing = [reasons::ARTIFACT_UNAVAILABLE, reasons::BASE_UNAVAILABLE];
        passing.contains(&self.reason.as_str()) || self.is_on_its_way()
    }

    /// Whether it only takes time.
    pub fn is_on_its_way(&self) -> bool {
        self.reason == reasons::FETCHING
    }
}

/// A verdict on one version.
pub type Verdict = Result<Verified, Unverified>;

/// Verdicts, kept until the object, the trust policy or the files' sizes and times change.
#[derive(Default)]
pub struct Verifier {
    verdicts: BTreeMap<String, (String, Verdict)>,
}

impl Verifier {
    /// The verdict on a version, made now if what it rests on has changed. An adapter's base is looked for among what is `known`.
    ///
    /// # Errors
    /// Why the version may not serve.
    pub async fn verdict(
        &mut self,
        entry: &Entry<ModelVersion>,
        trust: &TrustPolicySpec,
        fetches: &mut Fetches,
        known: &[&Verified],
    ) -> Verdict {
        let name = entry.valid.name.clone();
        let base = base_of(entry, known)?;
        let dir = if weir_fetch::is_remote(&entry.valid.manifest.artifact_uri) {
            match fetches.artifact(entry, trust) {
                // What is said changes with every byte.
                Err(unverified) => return Err(unverified),
                Ok((dir, lease)) => Ok((dir, Some(lease))),
            }
        } else {
            artifact_dir(entry).map(|dir| (dir, None))
        };
        let basis = basis(
            entry,
            dir.as_ref().ok().map(|(dir, _)| dir.as_path()),
            trust,
        );
        if let Some((known, verdict)) = self.verdicts.get(&name)
            && *known == basis
        {
            return verdict.clone();
        }
        let is_fetched = matches!(&dir, Ok((_, Some(_))));
        let verdict = match dir {
            Err(unverified) => Err(unverified),
            Ok((dir, lease)) => {
                let (valid, trust) = (entry.valid.clone(), trust.clone());
                // Hashing takes as long as reading the files: not on a thread that serves.
                let text = base.map(|base| Arc::clone(&base.text));
                let work = tokio::task::spawn_blocking(move || verify(&valid, dir, trust, text));
                let verdict = work
                    .await
                    .unwrap_or_else(|error| Err(unverified("VerifierFailed", error.to_string())));
                verdict.map(|verified| Verified { lease, ..verified })
            }
        };
        if is_fetched && verdict.is_err() && fetches.mend(&name).await {
            let message = "a file in the cache was damaged, and is fetched anew";
            return Err(unverified(reasons::FETCHING, message));
        }
        self.verdicts.insert(name, (basis, verdict.clone()));
        verdict
    }

    /// What the newest verdict on a version rests on: its object, its files' sizes and times, the trust policy.
    pub fn basis(&self, name: &str) -> Option<&str> {
        self.verdicts.get(name).map(|(basis, _)| basis.as_str())
    }

    /// Forgets versions whose objects are gone.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.verdicts.retain(|name, _| exists(name));
    }
}

pub(super) fn unverified(reason: &str, message: impl Into<String>) -> Unverified {
    Unverified {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// The artifact's directory: `file:` URIs are relative to the YAML file they stand in.
fn artifact_dir(entry: &Entry<ModelVersion>) -> Result<PathBuf, Unverified> {
    let manifest = &entry.valid.manifest;
    let Some(path) = manifest.local_path() else {
        return Err(unverified(
            reasons::ARTIFACT_UNAVAILABLE,
            format!(
                "{} is no place that `weir up` can read: name file:, https://, s3://, gs://, az:// or oci://",
                manifest.artifact_uri
            ),
        ));
    };
    let base = entry.source.file.parent().unwrap_or(Path::new("."));
    let dir = base.join(path);
    dir.canonicalize().map_err(|error| {
        unverified(
            reasons::ARTIFACT_UNAVAILABLE,
            format!(
                "cannot open the artifact directory {}: {error}",
                dir.display()
            ),
        )
    })
}

/// What a verdict rests on. Files are compared by size and time here; their content is what the verdict is about, and a worker
/// verifies again what it maps.
fn basis(entry: &Entry<ModelVersion>, dir: Option<&Path>, trust: &TrustPolicySpec) -> String {
    let mut files: Vec<String> = Vec::new();
    for found in dir
        .into_iter()
        .filter_map(|dir| std::fs::read_dir(dir).ok())
        .flatten()
        .flatten()
    {
        if let Ok(meta) = found.metadata() {
            // The time of the last change is the kernel's own: unlike the time of modification nobody can set it back.
            files.push(format!(
                "{} {} {} {}.{}",
                found.file_name().display(),
                meta.len(),
                meta.ino(),
                meta.ctime(),
                meta.ctime_nsec()
            ));
        }
    }
    files.sort();
    let trust = serde_json::to_string(trust).unwrap_or_default();
    Digest::of(format!("{} {dir:?} {files:?} {trust}", entry.generation).as_bytes()).to_string()
}

/// The version that an adapter is of; none where the version is no adapter.
fn base_of<'a>(
    entry: &Entry<ModelVersion>,
    known: &[&'a Verified],
) -> Result<Option<&'a Verified>, Unverified> {
    let Some(digest) = &entry.valid.manifest.adapter_of else {
        return Ok(None);
    };
    let Some(base) = known.iter().find(|base| base.digest == *digest) else {
        return Err(unverified(
            reasons::BASE_UNAVAILABLE,
            format!(
                "it is an adapter of {digest}, and no verified ModelVersion has this manifest digest: apply the base's object too, or sign the adapter for the base that is there"
            ),
        ));
    };
    if base.plan.claim.adapter_of.is_some() {
        return Err(unverified(
            reasons::BASE_MISMATCH,
            format!(
                "it is an adapter of {digest}, which is an adapter itself; sign it for the model"
            ),
        ));
    }
    Ok(Some(base))
}

fn verify(
    valid: &ValidModelVersion,
    dir: PathBuf,
    trust: TrustPolicySpec,
    base: Option<Arc<ModelText>>,
) -> Verdict {
    let policy = TrustPolicy::new(trust.clone())
        .map_err(|error| unverified("TrustPolicyInvalid", error.to_string()))?;
    let claim = claim(valid).map_err(|message| unverified("PathInvalid", message))?;
    let signature = match &valid.signature {
        SignatureSource::Bundle(text) => PlanSignature::Bundle(text.clone()),
        SignatureSource::File(name) => PlanSignature::File(name.clone()),
    };
    let bundle = signature.decode().map_err(|error| {
        unverified(
            reasons::SIGNATURE_INVALID,
            format!("spec.signature.bundle is not base64: {error}"),
        )
    })?;
    let request = VerifyRequest {
        dir: &dir,
        signature: signature.source(&bundle),
        policy: &policy,
        now: Timestamp::now(),
        // Nothing is served from here but the text side, which is read at once.
        placement: Placement::ReadOnlyVolume,
        progress: None,
    };
    let artifact = open_verified(&request, &claim)
        .map_err(|error| unverified(error.reason(), error.condition_message()))?;
    let text = match base {
        Some(base) => {
            check_adapter(&artifact, &base)?;
            base
        }
        None => Arc::new(text_of(&artifact)?),
    };
    let references = references_of(&artifact, valid.manifest.references.as_deref())?;
    let digest = artifact.manifest_digest;
    Ok(Verified {
        digest: digest.to_string(),
        signer: artifact.signer.id.clone(),
        text,
        references,
        lease: None,
        plan: LoadPlan {
            fetch: None,
            dir,
            digest,
            claim,
            signature,
            trust,
            placement: PlanPlacement::SealedCopy,
        },
    })
}

/// An adapter speaks with its base's tokenizer and template; what is left to see is whether it fits the network.
fn check_adapter(artifact: &VerifiedArtifact, base: &ModelText) -> Result<(), Unverified> {
    let files = files_of(artifact)?;
    Adapter::load(&files, &base.config).map_err(|error| {
        let reason = error.category();
        unverified(reason, format!("{:#}", anyhow::Error::from(error)))
    })?;
    Ok(())
}

/// The references that were signed with the version.
fn references_of(
    artifact: &VerifiedArtifact,
    name: Option<&str>,
) -> Result<Arc<[Reference]>, Unverified> {
    let Some(name) = name else {
        return Ok(Arc::default());
    };
    let all = artifact.references(name);
    all.map(Into::into)
        .map_err(|message| unverified(reasons::REFERENCES_INVALID, message))
}

/// Everything but the weights, from the files that were verified.
fn text_of(artifact: &VerifiedArtifact) -> Result<ModelText, Unverified> {
    let files = files_of(artifact)?;
    ModelText::from_files(&files).map_err(|error| {
        let message = format!("{:#}", anyhow::Error::from(error));
        unverified(reasons::UNSUPPORTED_MODEL, message)
    })
}

fn files_of(artifact: &VerifiedArtifact) -> Result<OpenFiles, Unverified> {
    open_files(artifact).map_err(|error| {
        let reason = error.reason();
        unverified(reason, format!("{:#}", anyhow::Error::from(error)))
    })
}
