//! Whether a version may serve: the verdict on its signature, kept until the object, the trust policy or the files change.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use weir_api::model_version::reasons;
use weir_api::{SignatureSource, ValidModelVersion};
use weir_manifest::{
    Digest, Placement, TrustPolicy, TrustPolicySpec, VerifyRequest, VersionClaim, check_claim,
    open_verified,
};

use crate::model::claim;
use crate::world::{Agenda, Key};

/// A version that a trusted signer signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Manifest digest, `sha256:…`.
    pub digest: String,
    /// Who signed.
    pub signer: String,
    /// What the object says, as it was signed.
    pub claim: VersionClaim,
    /// Whether the files themselves were read here; workers read them in any case.
    pub is_read: bool,
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
    /// Whether looking again may help although nothing was changed.
    pub fn may_pass(&self) -> bool {
        self.reason == reasons::ARTIFACT_UNAVAILABLE
    }
}

/// A verdict.
pub type Verdict = Result<Verified, Unverified>;

/// Verdicts by object.
pub struct Verifier {
    agenda: Agenda,
    artifacts: String,
    known: Mutex<BTreeMap<String, (String, Option<Verdict>)>>,
}

impl Verifier {
    /// Where volumes with artifacts are mounted, and what is touched when a verdict is there.
    pub fn new(artifacts: &str, agenda: Agenda) -> Self {
        Self {
            agenda,
            artifacts: artifacts.to_owned(),
            known: Mutex::default(),
        }
    }

    /// The verdict on a version, none while its files are being read.
    pub fn verdict(
        self: &std::sync::Arc<Self>,
        version: &ValidModelVersion,
        trust: &TrustPolicySpec,
    ) -> Option<Verdict> {
        let dir = version
            .manifest
            .mounted_path(&self.artifacts)
            .map(PathBuf::from);
        let dir = dir.filter(|dir| dir.is_dir());
        let basis = basis(version, dir.as_deref(), trust);
        if let Some((known, verdict)) = self.known.lock().get(&version.name)
            && *known == basis
        {
            return verdict.clone();
        }
        let entry = (basis.clone(), None);
        self.known.lock().insert(version.name.clone(), entry);
        let (this, version, trust) = (std::sync::Arc::clone(self), version.clone(), trust.clone());
        // Hashing takes as long as reading the files.
        tokio::task::spawn_blocking(move || {
            let verdict = verify(&version, dir.as_deref(), trust);
            let mut known = this.known.lock();
            if let Some(entry) = known
                .get_mut(&version.name)
                .filter(|entry| entry.0 == basis)
            {
                entry.1 = Some(verdict);
            }
            drop(known);
            this.agenda.touch(Key::Model(version.model.clone()));
        });
        None
    }

    /// Forgets versions whose objects are gone.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.known.lock().retain(|name, _| exists(name));
    }
}

fn unverified(reason: &str, message: impl Into<String>) -> Unverified {
    Unverified {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// What a verdict rests on. Files are compared by size and time here; their content is what the verdict is about.
fn basis(version: &ValidModelVersion, dir: Option<&Path>, trust: &TrustPolicySpec) -> String {
    let mut files: Vec<String> = Vec::new();
    let listed = dir.and_then(|dir| std::fs::read_dir(dir).ok());
    for found in listed.into_iter().flatten().flatten() {
        if let Ok(meta) = found.metadata() {
            // The time of the last change is the kernel's own: unlike the time of modification nobody can set it back.
            let (seconds, nanos) = (meta.ctime(), meta.ctime_nsec());
            files.push(format!(
                "{} {} {} {seconds}.{nanos}",
                found.file_name().display(),
                meta.len(),
                meta.ino()
            ));
        }
    }
    files.sort();
    let trust = serde_json::to_string(trust).unwrap_or_default();
    let claimed = format!(
        "{} {} {:?} {:?}",
        version.model, version.version, version.manifest, version.signature
    );
    Digest::of(format!("{claimed} {dir:?} {files:?} {trust}").as_bytes()).to_string()
}

fn verify(version: &ValidModelVersion, dir: Option<&Path>, trust: TrustPolicySpec) -> Verdict {
    let policy = TrustPolicy::new(trust);
    let policy = policy.map_err(|error| unverified("TrustPolicyInvalid", error.to_string()))?;
    let said = claim::claim(version).map_err(|error| unverified("PathInvalid", error))?;
    let inline = match &version.signature {
        SignatureSource::Bundle(text) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim());
            let bytes = bytes.map_err(|error| {
                let message = format!("spec.signature.bundle is not base64: {error}");
                unverified(reasons::SIGNATURE_INVALID, message)
            })?;
            Some(bytes)
        }
        SignatureSource::File(_) => None,
    };
    let fault =
        |error: weir_manifest::VerifyError| unverified(error.reason(), error.condition_message());
    let Some(dir) = dir else {
        let Some(bundle) = inline else {
            let message = format!(
                "the signature is a file of the artifact, and {} is not mounted here: put the bundle into spec.signature.bundle, or use a file: or pvc: URI that the operator mounts",
                version.manifest.artifact_uri
            );
            return Err(unverified(reasons::ARTIFACT_UNAVAILABLE, message));
        };
        let signer = check_claim(&bundle, &policy, Timestamp::now(), &said).map_err(fault)?;
        return Ok(Verified {
            digest: claim::claimed_digest(version),
            signer: signer.id,
            claim: said,
            is_read: false,
        });
    };
    let request = VerifyRequest {
        dir,
        signature: match (&inline, &version.signature) {
            (Some(bytes), _) => weir_manifest::SignatureSource::Inline(bytes),
            (None, SignatureSource::File(name)) => weir_manifest::SignatureSource::File(name),
            (None, SignatureSource::Bundle(_)) => weir_manifest::SignatureSource::Inline(&[]),
        },
        policy: &policy,
        now: Timestamp::now(),
        // Nothing is served from here.
        placement: Placement::ReadOnlyVolume,
        progress: None,
    };
    let artifact = open_verified(&request, &said).map_err(fault)?;
    if let Some(name) = &version.manifest.references {
        artifact
            .references(name)
            .map_err(|message| unverified(reasons::REFERENCES_INVALID, message))?;
    }
    Ok(Verified {
        digest: artifact.manifest_digest.to_string(),
        signer: artifact.signer.id.clone(),
        claim: said,
        is_read: true,
    })
}
