//! Verifies an artifact and hands out the files that were verified.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use jiff::Timestamp;

use crate::artifact::{ArtifactManifest, MANIFEST_FILE, VersionClaim, mismatch};
use crate::bundle::MAX_BUNDLE_BYTES;
use crate::content::{self, Content, Placement, Progress};
use crate::directory::{ArtifactDir, unreadable};
use crate::path::FilePath;
use crate::references::Reference;
use crate::signature::{SignedStatement, Signer, check_signature};
use crate::statement::Statement;
use crate::trust::TrustPolicy;
use crate::{Digest, VerifyError};

/// Name of the signature beside the artifact's files, unless the object says otherwise.
pub const SIGNATURE_FILE: &str = "model.sig";

/// Where the bundle is.
#[derive(Clone, Copy, Debug)]
pub enum SignatureSource<'a> {
    /// In the object (`spec.signature.bundle`, decoded).
    Inline(&'a [u8]),
    /// In the artifact's directory (`spec.signature.file`).
    File(&'a str),
}

/// What to verify, against what.
pub struct VerifyRequest<'a> {
    /// The artifact's directory.
    pub dir: &'a Path,
    /// Its signature.
    pub signature: SignatureSource<'a>,
    /// Who may sign what.
    pub policy: &'a TrustPolicy,
    /// The time at which keys and certificates must be valid.
    pub now: Timestamp,
    /// Where the verified bytes stay.
    pub placement: Placement,
    /// Told of the bytes hashed so far, if anybody wants to know.
    pub progress: Option<Progress<'a>>,
}

/// A file that was verified: the open file, not a name.
#[derive(Debug)]
pub struct VerifiedFile {
    sha256: Digest,
    size: u64,
    file: File,
}

impl VerifiedFile {
    /// Digest of the content.
    pub fn sha256(&self) -> Digest {
        self.sha256
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The file that was hashed (or its sealed copy), to be mapped. Opening the name again would verify nothing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The whole content.
    ///
    /// # Errors
    /// When the system cannot read it.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// A directory whose files are exactly those that a trusted signer signed.
#[derive(Debug)]
pub struct VerifiedDirectory {
    /// Who signed.
    pub signed: SignedStatement,
    files: BTreeMap<FilePath, VerifiedFile>,
}

/// A model version that may be served.
#[derive(Debug)]
pub struct VerifiedArtifact {
    /// What it is.
    pub manifest: ArtifactManifest,
    /// Names the version everywhere.
    pub manifest_digest: Digest,
    /// Who signed it.
    pub signer: Signer,
    files: BTreeMap<FilePath, VerifiedFile>,
}

impl VerifiedArtifact {
    /// A file by its path in the artifact.
    pub fn file(&self, path: &str) -> Option<&VerifiedFile> {
        path.parse::<FilePath>()
            .ok()
            .and_then(|path| self.files.get(&path))
    }

    /// Every file, ordered by path.
    pub fn files(&self) -> impl Iterator<Item = (&FilePath, &VerifiedFile)> {
        self.files.iter()
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// When the artifact has no such file, or the system cannot read it.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, VerifyError> {
        let file = self.file(path).ok_or_else(|| VerifyError::FileMissing {
            path: path.to_owned(),
        })?;
        file.read().map_err(|e| unreadable(Path::new(path), e))
    }

    /// The references in a file. One that cannot be used must stop the version: its guard would be missing.
    ///
    /// # Errors
    /// The artifact has no such file, or a line of it cannot be asked; with the remedy.
    pub fn references(&self, name: &str) -> Result<Vec<Reference>, String> {
        let read = self.read(name).map_err(|error| error.to_string());
        let read = read.and_then(|file| Reference::parse(&file).map_err(|error| error.to_string()));
        read.map_err(|why| {
            format!(
                "{name} holds no references that can be asked: {why}; correct it, sign again, and count the version up"
            )
        })
    }
}

/// Verifies the artifact of a model version and opens it for serving.
///
/// In this order, cheapest first: the signature holds under a key that may sign `claim.model`; the object and the statement list the same
/// files with the same digests; the directory holds exactly these files; each, opened once and without following links, has the signed
/// content; the signed manifest says what the object says.
///
/// # Errors
/// The first fault, naming file, key or field.
pub fn open_verified(
    request: &VerifyRequest<'_>,
    claim: &VersionClaim,
) -> Result<VerifiedArtifact, VerifyError> {
    let dir = ArtifactDir::open(request.dir)?;
    let (statement, signer) = {
        let checked = read_signature(&dir, request)?;
        let (statement, signer) = checked.permit(&claim.model)?;
        (statement.clone(), signer.clone())
    };
    check_digests(&statement, claim)?;
    let files = verify_files(&dir, &statement, request)?;
    let manifest = read_manifest(&files, &statement)?;
    manifest.check_claim(claim)?;
    let size = files.get(&manifest_path()).map_or(0, |f| f.size);
    if let Some(file) = claim
        .files
        .iter()
        .find(|f| f.path.as_str() == MANIFEST_FILE && f.size != size)
    {
        return Err(mismatch(
            "spec.manifest.files[\"weir-manifest.json\"].size",
            file.size.to_string(),
            size.to_string(),
        ));
    }
    artifact(manifest, signer, files)
}

/// Verifies what can be without the artifact: that a signer who may sign `claim.model` signed exactly the files and digests of the object.
/// What the files themselves say is left to whoever reads them.
///
/// # Errors
/// The first fault, naming key or field.
pub fn check_claim(
    bundle: &[u8],
    policy: &TrustPolicy,
    now: Timestamp,
    claim: &VersionClaim,
) -> Result<Signer, VerifyError> {
    let checked = check_signature(bundle, policy, now)?;
    let (statement, signer) = checked.permit(&claim.model)?;
    check_digests(statement, claim)?;
    Ok(signer.clone())
}

/// Verifies an artifact without an object that says what it should be, as `weir verify` does: it is what its signed manifest says.
///
/// # Errors
/// The first fault, naming file, key or field.
pub fn open_signed(request: &VerifyRequest<'_>) -> Result<VerifiedArtifact, VerifyError> {
    let VerifiedDirectory { signed, files } = verify_directory(request)?;
    let manifest = read_manifest(&files, signed.unpermitted())?;
    let (_, signer) = signed.permit(&manifest.model)?;
    artifact(manifest, signer.clone(), files)
}

/// Verifies a directory that need not have a `weir-manifest.json`, such as one that another tool signed. Which model the signer may sign is
/// left to the caller: [`SignedStatement::permit`].
///
/// # Errors
/// The first fault, naming file or key.
pub fn verify_directory(request: &VerifyRequest<'_>) -> Result<VerifiedDirectory, VerifyError> {
    let dir = ArtifactDir::open(request.dir)?;
    let signed = read_signature(&dir, request)?;
    let files = verify_files(&dir, signed.unpermitted(), request)?;
    Ok(VerifiedDirectory { signed, files })
}

impl VerifiedDirectory {
    /// Every file, ordered by path.
    pub fn files(&self) -> impl Iterator<Item = (&FilePath, &VerifiedFile)> {
        self.files.iter()
    }
}

fn artifact(
    manifest: ArtifactManifest,
    signer: Signer,
    files: BTreeMap<FilePath, VerifiedFile>,
) -> Result<VerifiedArtifact, VerifyError> {
    Ok(VerifiedArtifact {
        manifest_digest: manifest.digest()?,
        manifest,
        signer,
        files,
    })
}

fn manifest_path() -> FilePath {
    MANIFEST_FILE.parse().expect("the constant is a valid path")
}

fn read_signature(
    dir: &ArtifactDir,
    request: &VerifyRequest<'_>,
) -> Result<SignedStatement, VerifyError> {
    let bundle = match request.signature {
        SignatureSource::Inline(bytes) => bytes.to_vec(),
        SignatureSource::File(name) => {
            let path: FilePath = name.parse()?;
            let (file, _) = dir.open_file(&path).map_err(|e| match e {
                VerifyError::FileMissing { .. } => VerifyError::SignatureMissing {
                    path: dir.shown(&path),
                },
                other => other,
            })?;
            let mut bytes = Vec::new();
            // One byte more than allowed, so that a larger file is seen as such.
            file.take(MAX_BUNDLE_BYTES as u64 + 1)
                .read_to_end(&mut bytes)
                .map_err(|e| unreadable(&dir.shown(&path), e))?;
            bytes
        }
    };
    check_signature(&bundle, request.policy, request.now)
}

/// The object's digests against the signed ones, before a byte of content is read.
fn check_digests(statement: &Statement, claim: &VersionClaim) -> Result<(), VerifyError> {
    for file in &claim.files {
        let field = || format!("spec.manifest.files[{:?}]", file.path);
        match statement.files.get(&file.path) {
            None => return Err(mismatch(&field(), "listed", "absent")),
            Some(signed) if *signed != file.sha256 => {
                return Err(mismatch(
                    &format!("{}.sha256", field()),
                    file.sha256.to_hex(),
                    signed.to_hex(),
                ));
            }
            Some(_) => {}
        }
    }
    match statement
        .files
        .keys()
        .find(|path| !claim.files.iter().any(|f| f.path == **path))
    {
        Some(path) => Err(mismatch(
            &format!("spec.manifest.files[{path:?}]"),
            "absent",
            "listed",
        )),
        None => Ok(()),
    }
}

fn verify_files(
    dir: &ArtifactDir,
    statement: &Statement,
    request: &VerifyRequest<'_>,
) -> Result<BTreeMap<FilePath, VerifiedFile>, VerifyError> {
    let mut ignored = statement.ignored.clone();
    if let SignatureSource::File(name) = request.signature {
        ignored.push(name.parse()?);
    }
    let present = dir.list(&ignored)?;
    if let Some(extra) = present
        .iter()
        .find(|path| !statement.files.contains_key(path))
    {
        return Err(VerifyError::FileUnlisted {
            path: extra.to_string(),
        });
    }
    let contents = content::read_all(
        dir,
        statement.files.keys().cloned(),
        request.placement,
        request.progress,
    )?;
    let mut files = BTreeMap::new();
    for (path, Content { digest, size, file }) in contents {
        let expected = statement
            .files
            .get(&path)
            .expect("only files of the statement were read");
        if digest != *expected {
            return Err(VerifyError::FileTampered {
                path: path.into(),
                expected: expected.to_string(),
                actual: digest.to_string(),
            });
        }
        files.insert(
            path,
            VerifiedFile {
                sha256: digest,
                size,
                file,
            },
        );
    }
    Ok(files)
}

/// The manifest from the verified bytes, consistent with the statement and with the sizes found.
fn read_manifest(
    files: &BTreeMap<FilePath, VerifiedFile>,
    statement: &Statement,
) -> Result<ArtifactManifest, VerifyError> {
    let file = files
        .get(&manifest_path())
        .ok_or(VerifyError::ManifestMissing)?;
    if file.size > MAX_BUNDLE_BYTES as u64 {
        return Err(VerifyError::ManifestInvalid {
            cause: format!("it is larger than {MAX_BUNDLE_BYTES} bytes"),
        });
    }
    let bytes = file
        .read()
        .map_err(|e| unreadable(Path::new(MANIFEST_FILE), e))?;
    let manifest = ArtifactManifest::from_bytes(&bytes)?;
    manifest.check_statement(&statement.files)?;
    for entry in &manifest.files {
        let size = files.get(&entry.path).map_or(0, |f| f.size);
        if entry.size != size {
            return Err(VerifyError::ManifestInvalid {
                cause: format!(
                    "it gives {:?} {} bytes, but it has {size}",
                    entry.path, entry.size
                ),
            });
        }
    }
    Ok(manifest)
}
