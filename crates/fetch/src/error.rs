//! What can go wrong on the way: place, cause and remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Why a file is not here.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URI says no place.
    #[error("the artifact's URI {uri:?} {fault}")]
    Uri {
        /// The URI, without what may be secret.
        uri: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The clients cannot be made.
    #[error("cannot make a client for {place}: {cause}")]
    Client {
        /// For which place.
        place: String,
        /// The cause.
        cause: String,
    },
    /// Nobody answers, or the connection was cut.
    #[error("cannot read {place}: {cause}")]
    Unreachable {
        /// Which file.
        place: String,
        /// The cause.
        cause: String,
    },
    /// The server has no time.
    #[error("{place} is not served now: {cause}")]
    Busy {
        /// Which file.
        place: String,
        /// What the server said.
        cause: String,
    },
    /// The credentials do not do.
    #[error("{place} may not be read: {cause}")]
    Denied {
        /// Which file.
        place: String,
        /// What the server said.
        cause: String,
    },
    /// It is not there.
    #[error("{place} does not exist: {cause}")]
    Missing {
        /// Which file.
        place: String,
        /// What the server said.
        cause: String,
    },
    /// The server does not do what it was asked.
    #[error("{place} cannot be fetched: {cause}")]
    Refused {
        /// Which file.
        place: String,
        /// What the server said.
        cause: String,
    },
    /// Another file lies there, as its length shows.
    #[error("{place} has {found} bytes, and the signed manifest says {expected}")]
    WrongLength {
        /// Which file.
        place: String,
        /// What the manifest says.
        expected: u64,
        /// What the server says or sends.
        found: u64,
    },
    /// Another file lies there, as its content shows.
    #[error(
        "{place} has the digest {found}, and the signed manifest says {expected}; what came was thrown away"
    )]
    WrongContent {
        /// Which file.
        place: String,
        /// What the manifest says.
        expected: String,
        /// What came.
        found: String,
    },
    /// The signature that lies there is not one of the version.
    #[error("the signature {place} is refused: {cause}")]
    Signature {
        /// Which file.
        place: String,
        /// Why.
        cause: String,
    },
    /// The disk has no room.
    #[error("the volume of {} has {available} bytes left, and {needed} are needed", path.display())]
    NoSpace {
        /// The cache.
        path: PathBuf,
        /// What is still to come.
        needed: u64,
        /// What there is.
        available: u64,
    },
    /// The cache may not grow.
    #[error("the cache {} may hold {limit} bytes: {held} are of versions in use, and {needed} are needed", path.display())]
    CacheFull {
        /// The cache.
        path: PathBuf,
        /// Its limit.
        limit: u64,
        /// What cannot go.
        held: u64,
        /// What is still to come.
        needed: u64,
    },
    /// The cache cannot be used.
    #[error("cannot {doing} {}", path.display())]
    Cache {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An archive is not one of this cache's.
    #[error("{} is no export of a model cache: {cause}", path.display())]
    Archive {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

impl FetchError {
    /// One word, for conditions and labels.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Uri { .. } => "ArtifactUriInvalid",
            Self::Client { .. } => "FetchUnconfigured",
            Self::Unreachable { .. } | Self::Busy { .. } => "ArtifactUnreachable",
            Self::Denied { .. } => "ArtifactDenied",
            Self::Missing { .. } => "ArtifactMissing",
            Self::Refused { .. } => "ArtifactRefused",
            Self::WrongLength { .. } | Self::WrongContent { .. } => "ArtifactMismatch",
            Self::Signature { .. } => "SignatureInvalid",
            Self::NoSpace { .. } | Self::CacheFull { .. } => "CacheFull",
            Self::Cache { .. } => "CacheUnusable",
            Self::Archive { .. } => "ArchiveInvalid",
        }
    }

    /// Whether the same question may be answered otherwise in a moment.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy { .. })
    }

    /// What to do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Uri { .. } => "correct spec.manifest.artifact.uri",
            Self::Client { .. } => {
                "correct the credentials and certificates in environment and files (docs/models.md)"
            }
            Self::Unreachable { .. } => {
                "check name, network and certificates of the place; it is tried again from where it ended"
            }
            Self::Busy { .. } => "it is tried again; ask the place's operators if it stays so",
            Self::Denied { .. } => {
                "give this process credentials that may read it, by environment or file (docs/models.md)"
            }
            Self::Missing { .. } => {
                "check spec.manifest.artifact.uri, and that every file of the version was uploaded"
            }
            Self::Refused { .. } => {
                "upload the files so that they can be read one by one (docs/models.md)"
            }
            Self::WrongLength { .. } | Self::WrongContent { .. } => {
                "upload the files that were signed, or sign what is there as a new version"
            }
            Self::Signature { .. } => "upload the signature that `weir sign` made with the version",
            Self::NoSpace { .. } => "free space, or name a larger volume for the cache",
            Self::CacheFull { .. } => "allow the cache more, or retire versions",
            Self::Cache { .. } => {
                "check that the cache's folder is on one local volume that this process may write to"
            }
            Self::Archive { .. } => "make it with `weir fetch --export`",
        }
    }

    /// Fault, causes and remedy in one line.
    pub fn message(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        format!("{text}; {}", self.remedy())
    }

    /// Names the operation and the file of an I/O error; a full disk is named as such.
    pub(crate) fn cache(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            if source.kind() == io::ErrorKind::StorageFull {
                return Self::NoSpace {
                    path,
                    needed: 1,
                    available: 0,
                };
            }
            Self::Cache {
                doing,
                path,
                source,
            }
        }
    }
}

/// Bytes of a library's or a server's words that are passed on.
const WORDS: usize = 1000;
/// What the TLS library says of a certificate of nobody that this process knows.
const UNTRUSTED: &str = "UnknownIssuer";
/// What to do then.
const AUTHORITIES: &str = "no authority that this process trusts has signed the certificate: name a file of authorities in SSL_CERT_FILE, or install the system's (the package ca-certificates)";

/// An error with what caused it, in one line, as anybody may read it: addresses without their queries, which may be signatures, and no more
/// of a server's answer than says what is wrong.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Many libraries repeat the cause in their own text.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    let text = words(&text);
    if text.contains(UNTRUSTED) {
        format!("{text}; {AUTHORITIES}")
    } else {
        text
    }
}

/// A text as far as it is passed on.
pub(crate) fn words(text: &str) -> String {
    let mut text = without_queries(text.trim());
    if text.len() > WORDS {
        text.truncate(text.floor_char_boundary(WORDS));
        text.push('…');
    }
    text
}

/// Text whose addresses end before their queries.
fn without_queries(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || "\"'`<>()[]{}".contains(c);
    let mut left = text;
    let mut told = String::with_capacity(text.len());
    while let Some(scheme) = left.find("://") {
        let (before, address) = left.split_at(scheme + 3);
        let (address, rest) = address.split_at(address.find(is_end).unwrap_or(address.len()));
        told.push_str(before);
        match address.split_once('?') {
            Some((place, _)) => told.extend([place, "?…"]),
            None => told.push_str(address),
        }
        left = rest;
    }
    told + left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_nobody_known_is_said_with_its_remedy() {
        let cause = rustls::CertificateError::UnknownIssuer;
        let error = io::Error::other(rustls::Error::InvalidCertificate(cause));
        assert!(chain(&error).contains("SSL_CERT_FILE"), "{}", chain(&error));
    }

    #[test]
    fn signatures_of_addresses_and_long_answers_are_not_passed_on() {
        let error = |text: &str| chain(&io::Error::other(text.to_owned()));
        assert_eq!(
            error("url https://s.example/a/b?X-Amz-Signature=abc&d=e, body (http://x?q) \"z://y\""),
            "url https://s.example/a/b?… body (http://x?…) \"z://y\""
        );
        assert_eq!(error("no address? none"), "no address? none");
        let long = error(&"ä".repeat(4000));
        assert!(long.len() <= WORDS + 3 && long.ends_with('…'), "{long}");
    }
}
