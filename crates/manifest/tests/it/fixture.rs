//! The committed artifact and signatures (`fixtures/make.py`), and copies of them to spoil.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use weir_manifest::{
    FilePath, Placement, PublicKey, SIGNATURE_FILE, SignRequest, SignatureSource, SignedVersion,
    SigningKey, TrustPolicy, VerifiedArtifact, VerifyError, VerifyRequest, VersionClaim,
    VersionIdentity, open_verified, sign_directory,
};

/// Within the validity of every good certificate.
pub(crate) const NOW: &str = "2026-11-29T00:00:00Z";

pub(crate) fn now() -> Timestamp {
    NOW.parse().unwrap()
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    fs::read(path(name)).unwrap()
}

pub(crate) fn public_key(name: &str) -> PublicKey {
    PublicKey::from_pem(&text(&format!("keys/{name}.pub"))).unwrap()
}

pub(crate) fn identity() -> VersionIdentity {
    VersionIdentity {
        model: "tiny".to_owned(),
        version: 2,
        context_tokens: None,
        request_schema: 1,
        adapter_of: None,
    }
}

pub(crate) fn signature_file() -> FilePath {
    SIGNATURE_FILE.parse().unwrap()
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// A signed copy of the model in a directory of its own.
pub(crate) struct Artifact {
    /// Removed when dropped.
    pub(crate) root: tempfile::TempDir,
    pub(crate) key: SigningKey,
    pub(crate) signed: SignedVersion,
    pub(crate) policy: TrustPolicy,
}

impl Artifact {
    pub(crate) fn signed_with(key: SigningKey, identity: &VersionIdentity) -> Self {
        Self::signed_beside(key, identity, &|_| {})
    }

    /// With files that `add` writes before the signing.
    pub(crate) fn signed_beside(
        key: SigningKey,
        identity: &VersionIdentity,
        add: &dyn Fn(&Path),
    ) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("model");
        copy_dir(&path("model"), &dir);
        add(&dir);
        let request = SignRequest {
            dir: &dir,
            identity,
            key: &key,
            certificates: None,
            signature_file: &signature_file(),
            progress: None,
        };
        let signed = sign_directory(&request).unwrap();
        let policy = TrustPolicy::of_key("release", key.public_key());
        Self {
            root,
            key,
            signed,
            policy,
        }
    }

    pub(crate) fn new() -> Self {
        Self::signed_with(
            SigningKey::generate(weir_manifest::Algorithm::P256).unwrap(),
            &identity(),
        )
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("model")
    }

    pub(crate) fn open(&self) -> Result<VerifiedArtifact, VerifyError> {
        self.open_as(&self.signed.claim)
    }

    pub(crate) fn open_as(&self, claim: &VersionClaim) -> Result<VerifiedArtifact, VerifyError> {
        open_verified(
            &request(
                &self.dir(),
                SignatureSource::File(SIGNATURE_FILE),
                &self.policy,
            ),
            claim,
        )
    }
}

pub(crate) fn request<'a>(
    dir: &'a Path,
    signature: SignatureSource<'a>,
    policy: &'a TrustPolicy,
) -> VerifyRequest<'a> {
    VerifyRequest {
        dir,
        signature,
        policy,
        now: now(),
        placement: Placement::SealedCopy,
        progress: None,
    }
}
