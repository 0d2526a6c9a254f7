//! `weir-manifest.json`: what a model version is, inside of what is signed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::canonical::{from_canonical, to_canonical};
use crate::path::FilePath;
use crate::{Digest, VerifyError};

/// Name of the manifest in every artifact.
pub const MANIFEST_FILE: &str = "weir-manifest.json";

/// The signed description of one model version, in canonical JSON. Its digest is the manifest digest that names the version everywhere:
/// since it lists every other file with its digest, two versions with equal digests are equal in every byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactManifest {
    /// The name clients use.
    pub model: String,
    /// Ordered, at least 1.
    pub version: u32,
    /// As in `config.json`, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Of the weights: `bf16`, `f16`, `f32`.
    pub precision: String,
    /// Longest prompt and output together.
    pub context_tokens: u32,
    /// Version of the request schema it answers to.
    pub request_schema: u32,
    /// Digest of `tokenizer.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Digest>,
    /// Digest of the chat template's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Digest>,
    /// Manifest digest of the base version, for an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_of: Option<Digest>,
    /// Digest of `references.jsonl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub references: Option<Digest>,
    /// Every other signed file, ordered by path.
    pub files: Vec<FileEntry>,
}

/// A file of the artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileEntry {
    /// Relative to the artifact.
    pub path: FilePath,
    /// Digest of the content; written without the prefix.
    #[serde(serialize_with = "bare_hex")]
    pub sha256: Digest,
    /// In bytes.
    pub size: u64,
}

/// What an object (`ModelVersion`) says about the artifact it names. It must agree with the signed manifest in every field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionClaim {
    /// `spec.model`.
    pub model: String,
    /// `spec.version`.
    pub version: u32,
    /// `spec.manifest.files`, `weir-manifest.json` among them.
    pub files: Vec<FileEntry>,
    /// `spec.manifest.architecture`.
    pub architecture: String,
    /// `spec.manifest.precision`.
    pub precision: String,
    /// `spec.manifest.contextTokens`.
    pub context_tokens: u32,
    /// `spec.manifest.requestSchema`.
    pub request_schema: u32,
    /// `spec.manifest.adapterOf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_of: Option<Digest>,
}

impl ArtifactManifest {
    /// The bytes of `weir-manifest.json`.
    ///
    /// # Errors
    /// When a field breaks a rule.
    pub fn to_bytes(&self) -> Result<Vec<u8>, VerifyError> {
        self.check()?;
        to_canonical(self).map_err(|e| VerifyError::ManifestInvalid {
            cause: e.to_string(),
        })
    }

    /// Reads `weir-manifest.json`, which must be in canonical form.
    ///
    /// # Errors
    /// When the bytes are not canonical JSON of a manifest, or a field breaks a rule.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VerifyError> {
        let manifest: Self = from_canonical(bytes).map_err(|e| {
            let source = std::error::Error::source(&e)
                .map(|s| format!(": {s}"))
                .unwrap_or_default();
            VerifyError::ManifestInvalid {
                cause: format!("{e}{source}"),
            }
        })?;
        // One spelling: digests, for example, could be written in two ways.
        if manifest.to_bytes()? != bytes {
            return Err(VerifyError::ManifestInvalid {
                cause: "it is not in canonical form".to_owned(),
            });
        }
        Ok(manifest)
    }

    /// The manifest digest of the version: the digest of the canonical bytes.
    ///
    /// # Errors
    /// When a field breaks a rule.
    pub fn digest(&self) -> Result<Digest, VerifyError> {
        Ok(Digest::of(&self.to_bytes()?))
    }

    fn check(&self) -> Result<(), VerifyError> {
        let fault = |cause: String| Err(VerifyError::ManifestInvalid { cause });
        for (field, text) in [
            ("model", &self.model),
            ("architecture", &self.architecture),
            ("precision", &self.precision),
        ] {
            if text.is_empty() || text.len() > 253 || text.chars().any(char::is_control) {
                return fault(format!(
                    "{field} must have 1 to 253 bytes without control characters"
                ));
            }
        }
        for (field, number) in [
            ("version", self.version),
            ("contextTokens", self.context_tokens),
            ("requestSchema", self.request_schema),
        ] {
            if number == 0 {
                return fault(format!("{field} must be at least 1"));
            }
        }
        if !self.files.is_sorted_by(|a, b| a.path < b.path) {
            return fault("files must be ordered by path, each once".to_owned());
        }
        Ok(())
    }

    /// Compares the object with the signed manifest, field by field.
    ///
    /// # Errors
    /// [`VerifyError::ManifestMismatch`] naming the first field that differs. An older artifact presented under a newer version number
    /// fails here: its number is inside of what was signed.
    pub fn check_claim(&self, claim: &VersionClaim) -> Result<(), VerifyError> {
        let optional =
            |digest: &Option<Digest>| digest.map_or_else(|| "absent".to_owned(), |d| d.to_string());
        let fields = [
            ("spec.model", claim.model.clone(), self.model.clone()),
            (
                "spec.version",
                claim.version.to_string(),
                self.version.to_string(),
            ),
            (
                "spec.manifest.architecture",
                claim.architecture.clone(),
                self.architecture.clone(),
            ),
            (
                "spec.manifest.precision",
                claim.precision.clone(),
                self.precision.clone(),
            ),
            (
                "spec.manifest.contextTokens",
                claim.context_tokens.to_string(),
                self.context_tokens.to_string(),
            ),
            (
                "spec.manifest.requestSchema",
                claim.request_schema.to_string(),
                self.request_schema.to_string(),
            ),
            (
                "spec.manifest.adapterOf",
                optional(&claim.adapter_of),
                optional(&self.adapter_of),
            ),
        ];
        for (field, claimed, signed) in fields {
            if claimed != signed {
                return Err(mismatch(field, claimed, signed));
            }
        }
        let own = self.files.iter().map(|f| (&f.path, f)).collect();
        check_files(&own, claim)
    }

    /// Does the list of files in the manifest agree with the statement's?
    pub(crate) fn check_statement(
        &self,
        signed: &BTreeMap<FilePath, Digest>,
    ) -> Result<(), VerifyError> {
        let fault = |cause| Err(VerifyError::ManifestInvalid { cause });
        for file in &self.files {
            if signed.get(&file.path) != Some(&file.sha256) {
                return fault(format!(
                    "it lists {:?} with a digest that the signature does not have",
                    file.path
                ));
            }
        }
        if let Some(path) = signed.keys().find(|path| {
            path.as_str() != MANIFEST_FILE && !self.files.iter().any(|f| f.path == **path)
        }) {
            return fault(format!("it does not list {path:?}, which is signed"));
        }
        Ok(())
    }
}

fn bare_hex<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&digest.to_hex())
}

fn check_files(
    own: &BTreeMap<&FilePath, &FileEntry>,
    claim: &VersionClaim,
) -> Result<(), VerifyError> {
    let mut seen = BTreeSet::new();
    for file in &claim.files {
        if !seen.insert(&file.path) {
            return Err(mismatch(
                &format!("spec.manifest.files[{:?}]", file.path),
                "listed twice",
                "listed once",
            ));
        }
        // The manifest cannot hold its own digest; the statement has it.
        if file.path.as_str() == MANIFEST_FILE {
            continue;
        }
        let Some(signed) = own.get(&file.path) else {
            return Err(mismatch(
                &format!("spec.manifest.files[{:?}]", file.path),
                "listed",
                "absent",
            ));
        };
        if file.sha256 != signed.sha256 {
            return Err(mismatch(
                &format!("spec.manifest.files[{:?}].sha256", file.path),
                file.sha256.to_hex(),
                signed.sha256.to_hex(),
            ));
        }
        if file.size != signed.size {
            return Err(mismatch(
                &format!("spec.manifest.files[{:?}].size", file.path),
                file.size.to_string(),
                signed.size.to_string(),
            ));
        }
    }
    match own.keys().find(|path| !seen.contains(*path)) {
        Some(path) => Err(mismatch(
            &format!("spec.manifest.files[{path:?}]"),
            "absent",
            "listed",
        )),
        None => Ok(()),
    }
}

pub(crate) fn mismatch(
    field: &str,
    claimed: impl Into<String>,
    signed: impl Into<String>,
) -> VerifyError {
    VerifyError::ManifestMismatch {
        field: field.to_owned(),
        claimed: claimed.into(),
        signed: signed.into(),
    }
}

#[cfg(test)]
mod tests;
