//! Signs a model directory: writes `weir-manifest.json` and the bundle into it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::artifact::{ArtifactManifest, FileEntry, MANIFEST_FILE, VersionClaim};
use crate::content::{self, Placement, Progress};
use crate::describe::{VersionIdentity, describe};
use crate::directory::ArtifactDir;
use crate::keys::SigningKey;
use crate::path::FilePath;
use crate::signature::{sign_with_certificates, sign_with_key};
use crate::statement::Statement;
use crate::{Digest, VerifyError};

/// What to sign, and how.
pub struct SignRequest<'a> {
    /// The model directory.
    pub dir: &'a Path,
    /// What it will be.
    pub identity: &'a VersionIdentity,
    /// The private key.
    pub key: &'a SigningKey,
    /// PEM of the signer's certificate and of those between it and a root; a bare key signs without.
    pub certificates: Option<&'a str>,
    /// Name of the bundle in the directory, usually [`crate::SIGNATURE_FILE`].
    pub signature_file: &'a FilePath,
    /// Told of the bytes hashed so far.
    pub progress: Option<Progress<'a>>,
}

/// What was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedVersion {
    /// The signed manifest.
    pub manifest: ArtifactManifest,
    /// Names the version everywhere.
    pub manifest_digest: Digest,
    /// What the `ModelVersion` object must say.
    pub claim: VersionClaim,
    /// The bundle.
    pub bundle: Vec<u8>,
}

/// Why a directory was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The directory holds what could never be verified, or cannot be read.
    #[error("the directory cannot be signed")]
    Directory(#[source] VerifyError),
    /// The manifest would be invalid.
    #[error("the manifest would be invalid")]
    Manifest(#[source] VerifyError),
    /// The certificates do not fit the key.
    #[error("the certificates cannot be used")]
    Certificates(#[source] VerifyError),
    /// The model does not say what the manifest needs.
    #[error("{file:?} {fault}")]
    Model {
        /// File in the directory.
        file: String,
        /// What is wrong, and what to do.
        fault: String,
    },
    /// A file cannot be written.
    #[error("cannot write {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Writes `weir-manifest.json` and the bundle. The same directory, identity and key always give the same bytes.
///
/// # Errors
/// When the directory has links or special files, is no model, or cannot be written.
pub fn sign_directory(request: &SignRequest<'_>) -> Result<SignedVersion, SignError> {
    let dir = ArtifactDir::open(request.dir).map_err(SignError::Directory)?;
    let manifest_path: FilePath = MANIFEST_FILE.parse().expect("the constant is a valid path");
    let mut ignored = Statement::new("", BTreeMap::new(), Some(request.signature_file)).ignored;
    ignored.push(manifest_path.clone());
    let present = dir.list(&ignored).map_err(SignError::Directory)?;
    let contents = content::read_all(
        &dir,
        present.into_iter(),
        Placement::ReadOnlyVolume,
        request.progress,
    )
    .map_err(SignError::Directory)?;

    let manifest = describe(&contents, request.identity)?;
    let manifest_bytes = manifest.to_bytes().map_err(SignError::Manifest)?;
    let manifest_digest = Digest::of(&manifest_bytes);

    let mut digests: BTreeMap<_, _> = contents
        .into_iter()
        .map(|(path, content)| (path, content.digest))
        .collect();
    digests.insert(manifest_path.clone(), manifest_digest);
    let name = format!("{}-v{}", manifest.model, manifest.version);
    let statement = Statement::new(&name, digests, Some(request.signature_file));
    let bundle = match request.certificates {
        None => sign_with_key(&statement, request.key),
        Some(chain) => sign_with_certificates(&statement, request.key, chain)
            .map_err(SignError::Certificates)?,
    };

    write(request.dir, &manifest_path, &manifest_bytes)?;
    write(request.dir, request.signature_file, &bundle)?;
    let own = FileEntry {
        path: manifest_path,
        sha256: manifest_digest,
        size: manifest_bytes.len() as u64,
    };
    Ok(SignedVersion {
        claim: claim(&manifest, own),
        manifest,
        manifest_digest,
        bundle,
    })
}

fn claim(manifest: &ArtifactManifest, own: FileEntry) -> VersionClaim {
    let mut files = manifest.files.clone();
    files.push(own);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    VersionClaim {
        model: manifest.model.clone(),
        version: manifest.version,
        files,
        architecture: manifest.architecture.clone(),
        precision: manifest.precision.clone(),
        context_tokens: manifest.context_tokens,
        request_schema: manifest.request_schema,
        adapter_of: manifest.adapter_of,
    }
}

/// Readers see the old file or the new one, never half of it.
fn write(dir: &Path, path: &FilePath, bytes: &[u8]) -> Result<(), SignError> {
    let target = dir.join(path.as_str());
    let temporary = dir.join(format!("{path}.tmp"));
    let error = |source| SignError::Write {
        path: target.clone(),
        source,
    };
    std::fs::write(&temporary, bytes).map_err(error)?;
    std::fs::rename(&temporary, &target).map_err(|source| {
        // The first error is the one to report.
        drop(std::fs::remove_file(&temporary));
        error(source)
    })
}
