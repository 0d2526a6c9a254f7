//! What a parent passes to a worker it starts.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use weir_manifest::{
    Digest, Placement, SIGNATURE_FILE, SignatureSource, TrustPolicySpec, VersionClaim,
};

use super::LoadError;

/// One model version to load, and who must have signed it. A JSON file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadPlan {
    /// The artifact's directory; where it is fetched, the cache says which.
    #[serde(default)]
    pub dir: PathBuf,
    /// Where the files come from, when they are elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<PlanFetch>,
    /// Manifest digest of the version.
    pub digest: Digest,
    /// What the object says about the version.
    pub claim: VersionClaim,
    /// The signature over it.
    pub signature: PlanSignature,
    /// Who may sign.
    pub trust: TrustPolicySpec,
    /// Where the verified bytes stay.
    #[serde(default)]
    pub placement: PlanPlacement,
}

/// Where the files come from, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanFetch {
    /// The artifact's URI.
    pub uri: String,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// Most bytes that the cache may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// How much of its volume is left free, in percent: others live on it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_percent: Option<u8>,
    /// Most bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Files at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<usize>,
    /// The folder where the Secret of the place is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<PathBuf>,
}

/// Where the signature is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlanSignature {
    /// A Sigstore bundle in base64, from the object.
    Bundle(String),
    /// A file in the artifact's directory.
    File(String),
}

/// Where the verified bytes stay; see `weir_manifest::Placement`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlanPlacement {
    /// In sealed memory of the worker.
    #[default]
    SealedCopy,
    /// In the files, on a volume that nobody writes to.
    ReadOnlyVolume,
}

impl LoadPlan {
    /// Reads a plan.
    ///
    /// # Errors
    /// The file cannot be read or is not a plan.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let text = std::fs::read(path).map_err(|source| LoadError::PlanUnreadable {
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| LoadError::PlanMalformed {
            path: path.to_owned(),
            source,
        })
    }
}

impl PlanSignature {
    /// The bundle's bytes, where they are in the plan; none where the signature is a file.
    ///
    /// # Errors
    /// The bundle is not base64.
    pub fn decode(&self) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Bundle(text) => STANDARD.decode(text.trim()),
            Self::File(_) => Ok(Vec::new()),
        }
    }

    /// What the verifier is told; `bundle` is what [`PlanSignature::decode`] returned. A file without a name has the usual one.
    pub fn source<'a>(&'a self, bundle: &'a [u8]) -> SignatureSource<'a> {
        match self {
            Self::Bundle(_) => SignatureSource::Inline(bundle),
            Self::File(name) if name.is_empty() => SignatureSource::File(SIGNATURE_FILE),
            Self::File(name) => SignatureSource::File(name),
        }
    }
}

impl From<PlanPlacement> for Placement {
    fn from(placement: PlanPlacement) -> Self {
        match placement {
            PlanPlacement::SealedCopy => Self::SealedCopy,
            PlanPlacement::ReadOnlyVolume => Self::ReadOnlyVolume,
        }
    }
}
