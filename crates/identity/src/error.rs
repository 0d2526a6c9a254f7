//! What can be wrong with an identity.

use std::path::PathBuf;

/// An identity that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error(
        "cannot read {path:?}; the folder of --workload-identity must have tls.crt, tls.key and ca.crt"
    )]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A part is not what it should be.
    #[error("{part} has no usable PEM {what}")]
    Pem {
        /// Which.
        part: &'static str,
        /// What should be in it.
        what: &'static str,
        /// Why not.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A certificate is damaged.
    #[error("a certificate in {part} cannot be read: {reason}")]
    Certificate {
        /// In which part.
        part: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Key and certificate do not belong together, or are of no known kind.
    #[error("the certificate in tls.crt cannot be used with the key in tls.key")]
    Pair(#[source] rustls::Error),
    /// There was never anything usable.
    #[error("there is no certificate yet: {0}")]
    None(String),
}
