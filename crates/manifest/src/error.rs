//! Why an artifact was refused.

use std::io;
use std::path::PathBuf;

/// Why an artifact may not be served. Every variant names the file, key or field; [`VerifyError::reason`] is the one word used as
/// condition reason and metric label, [`VerifyError::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// There is no signature file.
    #[error("there is no signature at {path:?}")]
    SignatureMissing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The bundle cannot be read as a Sigstore bundle with one DSSE envelope.
    #[error("the signature bundle is malformed: {cause}")]
    SignatureMalformed {
        /// What is wrong, and where.
        cause: String,
    },
    /// The bundle, statement or hash is of a kind that is not supported.
    #[error("the signature uses {what}, which is not supported")]
    SignatureUnsupported {
        /// The kind.
        what: String,
    },
    /// The signature does not fit the key and the payload.
    #[error("the signature was not made by {signer:?} over this content")]
    SignatureInvalid {
        /// Key id, or subject of the certificate.
        signer: String,
    },
    /// No key of the trust policy made this signature.
    #[error("the trust policy has no key with the fingerprint {fingerprint}")]
    KeyUnknown {
        /// The hint of the bundle.
        fingerprint: String,
    },
    /// The key is revoked.
    #[error("the key {id:?} is revoked")]
    KeyRevoked {
        /// Id in the trust policy.
        id: String,
    },
    /// The key's time is over.
    #[error("the key {id:?} was valid until {not_after}")]
    KeyExpired {
        /// Id in the trust policy.
        id: String,
        /// End of its validity.
        not_after: jiff::Timestamp,
    },
    /// The key's time has not begun.
    #[error("the key {id:?} is valid from {not_before} on")]
    KeyNotYetValid {
        /// Id in the trust policy.
        id: String,
        /// Begin of its validity.
        not_before: jiff::Timestamp,
    },
    /// The key may not sign this model.
    #[error("the key {id:?} may not sign the model {model:?}")]
    KeyNotPermitted {
        /// Id in the trust policy.
        id: String,
        /// The model.
        model: String,
    },
    /// A certificate breaks a rule.
    #[error("the certificate {subject:?} cannot be used: {cause}")]
    CertificateInvalid {
        /// Subject of the certificate.
        subject: String,
        /// The rule.
        cause: String,
    },
    /// A certificate is outside of its validity.
    #[error("the certificate {subject:?} is valid from {not_before} to {not_after}, not at {at}")]
    CertificateExpired {
        /// Subject of the certificate.
        subject: String,
        /// Begin of its validity.
        not_before: jiff::Timestamp,
        /// End of its validity.
        not_after: jiff::Timestamp,
        /// The time asked for.
        at: jiff::Timestamp,
    },
    /// No path of certificates leads to a root of the trust policy.
    #[error("no chain leads from the certificate {subject:?} to a root of the trust policy")]
    CertificateUntrusted {
        /// Subject of the leaf.
        subject: String,
    },
    /// The certificate is revoked by fingerprint.
    #[error("the certificate {subject:?} with the fingerprint {fingerprint} is revoked")]
    CertificateRevoked {
        /// Subject of the certificate.
        subject: String,
        /// SHA-256 of its DER form.
        fingerprint: String,
    },
    /// The chain is good, but no root entry allows this signer.
    #[error("the identity {identity:?} is not permitted under the root {root:?}")]
    IdentityNotPermitted {
        /// What the certificate says it is.
        identity: String,
        /// Id of the root in the trust policy.
        root: String,
    },
    /// The signed statement contradicts itself or the format.
    #[error("the signed statement is invalid: {cause}")]
    StatementInvalid {
        /// What is wrong.
        cause: String,
    },
    /// A name could leave the artifact, or has more than one spelling.
    #[error("the path {path:?} {fault}")]
    PathInvalid {
        /// The name, shortened.
        path: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A signed file is not there.
    #[error("the file {path:?} is signed, but it is missing")]
    FileMissing {
        /// The file.
        path: String,
    },
    /// A file is there that the signature does not cover.
    #[error("the file {path:?} is not covered by the signature")]
    FileUnlisted {
        /// The file.
        path: String,
    },
    /// A symbolic link.
    #[error("{path:?} is a symbolic link")]
    FileSymlink {
        /// The link.
        path: String,
    },
    /// A socket, device, pipe or directory where a file should be.
    #[error("{path:?} is not a regular file")]
    FileNotRegular {
        /// The entry.
        path: String,
    },
    /// The content is not what was signed.
    #[error("the file {path:?} was changed after signing: it has {actual}, signed is {expected}")]
    FileTampered {
        /// The file.
        path: String,
        /// What was signed.
        expected: String,
        /// What is there.
        actual: String,
    },
    /// The file changed while it was read.
    #[error("the file {path:?} changed while it was verified")]
    FileChanged {
        /// The file.
        path: String,
    },
    /// More entries than an artifact may have.
    #[error("the artifact has more than {limit} files")]
    TooManyFiles {
        /// The limit.
        limit: usize,
    },
    /// `weir-manifest.json` is not among the signed files.
    #[error("the artifact has no signed weir-manifest.json")]
    ManifestMissing,
    /// `weir-manifest.json` cannot be read.
    #[error("weir-manifest.json is invalid: {cause}")]
    ManifestInvalid {
        /// What is wrong.
        cause: String,
    },
    /// The object says something else than the signed manifest.
    #[error("{field} is {claimed} in the object, but {signed} in the signed artifact")]
    ManifestMismatch {
        /// The field, as a path in the object.
        field: String,
        /// What the object says.
        claimed: String,
        /// What was signed.
        signed: String,
    },
    /// The system refused to read.
    #[error("cannot read {path:?}")]
    FileUnreadable {
        /// File or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The system refused the sealed copy.
    #[error("cannot copy {path:?} into sealed memory")]
    CopyFailed {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl VerifyError {
    /// Whether it is about what lies on the disk, and not about who signed.
    pub fn is_of_a_file(&self) -> bool {
        self.reason().starts_with("File")
    }

    /// One `PascalCase` word: the reason of the condition `Verified`, and the label of metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::SignatureMissing { .. } => "SignatureMissing",
            Self::SignatureMalformed { .. } => "SignatureMalformed",
            Self::SignatureUnsupported { .. } => "SignatureUnsupported",
            Self::SignatureInvalid { .. } => "SignatureInvalid",
            Self::KeyUnknown { .. } => "KeyUnknown",
            Self::KeyRevoked { .. } => "KeyRevoked",
            Self::KeyExpired { .. } => "KeyExpired",
            Self::KeyNotYetValid { .. } => "KeyNotYetValid",
            Self::KeyNotPermitted { .. } => "KeyNotPermitted",
            Self::CertificateInvalid { .. } => "CertificateInvalid",
            Self::CertificateExpired { .. } => "CertificateExpired",
            Self::CertificateUntrusted { .. } => "CertificateUntrusted",
            Self::CertificateRevoked { .. } => "CertificateRevoked",
            Self::IdentityNotPermitted { .. } => "IdentityNotPermitted",
            Self::StatementInvalid { .. } => "StatementInvalid",
            Self::PathInvalid { .. } => "PathInvalid",
            Self::FileMissing { .. } => "FileMissing",
            Self::FileUnlisted { .. } => "FileUnlisted",
            Self::FileSymlink { .. } => "FileSymlink",
            Self::FileNotRegular { .. } => "FileNotRegular",
            Self::FileTampered { .. } => "FileTampered",
            Self::FileChanged { .. } => "FileChanged",
            Self::TooManyFiles { .. } => "TooManyFiles",
            Self::ManifestMissing => "ManifestMissing",
            Self::ManifestInvalid { .. } => "ManifestInvalid",
            Self::ManifestMismatch { .. } => "ManifestMismatch",
            Self::FileUnreadable { .. } => "FileUnreadable",
            Self::CopyFailed { .. } => "CopyFailed",
        }
    }

    /// What a person can do about it.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::SignatureMissing { .. } => {
                "sign the artifact with `weir sign`, or name the bundle in spec.signature"
            }
            Self::SignatureMalformed { .. } | Self::StatementInvalid { .. } => {
                "restore the bundle, or sign the artifact again"
            }
            Self::SignatureUnsupported { .. } => {
                "sign with `weir sign`, or with model_signing's methods key or certificate (P-256 or P-384, files, SHA-256)"
            }
            Self::SignatureInvalid { .. } => {
                "restore the bundle that belongs to this artifact, or sign the artifact again"
            }
            Self::KeyUnknown { .. } => {
                "add the signer's public key to the trust policy, or sign with a key that is in it"
            }
            Self::KeyRevoked { .. } | Self::KeyExpired { .. } | Self::CertificateRevoked { .. } => {
                "sign the artifact again with a valid key"
            }
            Self::KeyNotYetValid { .. } => "wait, or correct notBefore or the clock",
            Self::KeyNotPermitted { .. } => {
                "sign with a key whose `models` match, or extend `models` of this key"
            }
            Self::CertificateInvalid { .. } => {
                "have the certificate issued for signing by a proper authority"
            }
            Self::CertificateExpired { .. } => {
                "sign again with a valid certificate, or set `expired: Allowed` on the root to judge by the time of issue"
            }
            Self::CertificateUntrusted { .. } => {
                "add the root to the trust policy, or the missing intermediates to the bundle"
            }
            Self::IdentityNotPermitted { .. } => {
                "sign with a permitted identity, or extend `identities` of this root"
            }
            Self::PathInvalid { .. } => "rename the file and sign the artifact again",
            Self::FileMissing { .. } | Self::FileTampered { .. } => {
                "fetch the artifact again, or sign the new content as a new version"
            }
            Self::FileUnlisted { .. } => "remove the file, or sign the artifact again with it",
            Self::FileSymlink { .. } | Self::FileNotRegular { .. } => {
                "replace it by a regular file; links are never followed"
            }
            Self::FileChanged { .. } => "stop what writes into the artifact and load it again",
            Self::TooManyFiles { .. } => "remove what does not belong to the model",
            Self::ManifestMissing => {
                "sign the artifact with `weir sign`, which writes weir-manifest.json"
            }
            Self::ManifestInvalid { .. } => {
                "sign the artifact again with `weir sign`, and do not edit weir-manifest.json"
            }
            Self::ManifestMismatch { .. } => {
                "make the object say what was signed (`weir sign --emit-manifest` prints it), or sign again"
            }
            Self::FileUnreadable { .. } => "check that the artifact is mounted and readable",
            Self::CopyFailed { .. } => {
                "give the process more memory, or load from a read-only volume in place"
            }
        }
    }

    /// May the same artifact verify on the next try, without anybody changing it?
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::FileUnreadable { .. }
                | Self::CopyFailed { .. }
                | Self::FileChanged { .. }
                | Self::KeyNotYetValid { .. }
        )
    }

    /// Fault, causes and remedy in one line, for a condition's message.
    pub fn condition_message(&self) -> String {
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        format!("{message}; {}", self.remedy())
    }
}

impl From<crate::path::ParsePathError> for VerifyError {
    fn from(error: crate::path::ParsePathError) -> Self {
        Self::PathInvalid {
            path: error.path,
            fault: error.fault.to_owned(),
        }
    }
}
