//! Names of things: versions and records.

use serde::{Deserialize, Serialize};

/// One version of the model, by number and by the digest of its signed manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionId {
    /// Its number, from 1.
    pub version: u32,
    /// Digest of its signed manifest, `sha256:…`.
    pub digest: String,
}

impl VersionId {
    /// A version by number and digest.
    pub fn new(version: u32, digest: impl Into<String>) -> Self {
        Self {
            version,
            digest: digest.into(),
        }
    }
}

/// Which record ordered something: a child is never changed on behalf of an older record than the one it carries.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stamp {
    /// Counts rebuilt logs.
    pub epoch: u32,
    /// Counts records within an epoch.
    pub revision: u64,
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.revision)
    }
}

impl std::str::FromStr for Stamp {
    type Err = StampError;

    fn from_str(text: &str) -> Result<Self, StampError> {
        let parse = || {
            let (epoch, revision) = text.split_once('.')?;
            Some(Self {
                epoch: epoch.parse().ok()?,
                revision: revision.parse().ok()?,
            })
        };
        parse().ok_or_else(|| StampError(text.to_owned()))
    }
}

/// A label that is no stamp.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no record stamp: two numbers with a dot between them, such as 1.17, are expected"
)]
pub struct StampError(String);
