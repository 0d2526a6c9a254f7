//! What a model version is, who signed it, and who may: canonical manifests, digests, signatures, trust, and keys of tenants.
//!
//! This crate must not know Kubernetes, HTTP, an async runtime, the network, or the clock: the time is an argument. Files are read in two
//! modules only (`directory`, `content`); everything about signatures and trust is a function from bytes to a verdict.
//!
//! Read [`ArtifactManifest`] first, then [`TrustPolicy`], then [`open_verified`].
//!
//! # Format
//! Signatures are in the `OpenSSF` Model Signing format v1.0: a Sigstore bundle (v0.3 JSON) with one DSSE envelope over an in-toto statement
//! (v1) that lists every file with its SHA-256. The Python package `model-signing` verifies what is signed here, and the reverse; its
//! methods `key` and `certificate` are supported with P-256 and P-384. Ed25519 is Weir's addition for bare keys and certificates: the
//! package has only elliptic curves of the NIST and fails on it. Not supported, and refused by name: the package's P-521 keys, its keyless
//! method (it needs a transparency log), sharded hashing, BLAKE hashes, and statements of releases before 1.0.
//!
//! # Why not the crate `sigstore-verify`
//! It was read at 0.15.1. It verifies that one artifact (bytes or digest) is a subject of the statement, while here the files are in the
//! predicate; its certificate policy is Fulcio's (trusted root document, signed timestamps, code-signing usage), so private authorities do
//! not fit; it reads the clock; and it brings a second generation of the cryptography crates. What is left to do here is small: the
//! envelope's encoding, and RFC 5280's rules for short chains.
//!
//! # What is served is what was verified
//! Every file is opened once, without following links, and hashed through that open file. By default the bytes that were hashed are copied
//! in the same pass into memory that the kernel seals against writing; what is mapped is this copy. See [`Placement`] for volumes that
//! nobody writes to. Size and times are compared before and after, so that a file changed meanwhile is refused.

mod api_key;
mod artifact;
mod bundle;
mod canonical;
mod chain;
mod content;
mod describe;
mod digest;
mod directory;
mod error;
mod glob;
mod keys;
mod open;
mod path;
mod references;
mod sign;
mod signature;
mod statement;
mod trust;

pub use api_key::{
    ApiKeyHash, ApiKeyIndex, ParseApiKeyHashError, RandomError, generate_api_key, public_id,
};
pub use artifact::{ArtifactManifest, FileEntry, MANIFEST_FILE, VersionClaim};
pub use bundle::MAX_BUNDLE_BYTES;
pub use canonical::{CanonicalError, from_canonical, to_canonical};
pub use content::{Placement, Progress};
pub use describe::{BaseVersion, VersionIdentity};
pub use digest::{Digest, ParseDigestError};
pub use error::VerifyError;
pub use keys::{Algorithm, KeyError, PublicKey, SigningKey};
pub use open::{
    SIGNATURE_FILE, SignatureSource, VerifiedArtifact, VerifiedDirectory, VerifiedFile,
    VerifyRequest, check_claim, open_signed, open_verified, verify_directory,
};
pub use path::{FilePath, MAX_PATH_BYTES, MAX_PATH_DEPTH, ParsePathError};
pub use references::{Reference, ReferencesError};
pub use sign::{SignError, SignRequest, SignedVersion, sign_directory};
pub use signature::{
    SignedStatement, Signer, check_signature, sign_with_certificates, sign_with_key,
};
pub use statement::{MAX_FILES, Statement};
pub use trust::{
    ExpiredCertificates, PolicyError, TrustPolicy, TrustPolicySpec, TrustedKeySpec, TrustedRootSpec,
};
