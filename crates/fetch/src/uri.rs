//! Where the files of an artifact lie, read from its URI. Pure.

use std::fmt::{self, Write as _};

use weir_manifest::FilePath;

use crate::FetchError;

/// Schemes that are fetched; `file:` and `pvc://` are on this machine already.
const REMOTE: [&str; 5] = ["https://", "s3://", "gs://", "az://", "oci://"];

/// Whether an artifact's URI names another machine.
pub fn is_remote(uri: &str) -> bool {
    REMOTE.iter().any(|scheme| uri.starts_with(scheme))
}

/// A place that holds an artifact's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    uri: String,
    place: Place,
}

/// What kind of place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Files below a URL; the host with its port apart, since it decides whether TLS is used and which credentials are sent.
    Web {
        /// Host and port.
        host: String,
        /// Without the scheme and without a slash at the end.
        base: String,
    },
    /// Objects under a prefix.
    Bucket {
        /// Whose.
        cloud: Cloud,
        /// The bucket, or the container.
        name: String,
        /// Without slashes at its ends; may be empty.
        prefix: String,
    },
    /// Layers of an artifact in a registry.
    Registry {
        /// As container tools write it.
        reference: String,
    },
}

/// Whose bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cloud {
    /// S3 and what speaks like it.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Location {
    /// Reads a URI.
    ///
    /// # Errors
    /// The scheme is none that is fetched, or something is missing or does not belong there.
    pub fn parse(uri: &str) -> Result<Self, FetchError> {
        let fault = |fault| FetchError::Uri {
            uri: shortened(uri),
            fault,
        };
        if uri.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(fault("contains white space"));
        }
        let Some((scheme, rest)) = uri.split_once("://") else {
            return Err(fault(
                "has no scheme; write https://, s3://, gs://, az:// or oci://",
            ));
        };
        // Of a registry's reference the @ parts the digest.
        let authority = rest.split('/').next().unwrap_or_default();
        if scheme != "oci" && authority.contains('@') {
            return Err(fault(
                "contains credentials: give them by environment or file, never in an object",
            ));
        }
        if rest.contains(['?', '#']) {
            return Err(fault(
                "has a query or a fragment: name the folder of the files, and give credentials by environment or file",
            ));
        }
        if rest.split('/').any(|part| part == "..") {
            return Err(fault("contains \"..\""));
        }
        let (first, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_matches('/');
        if first.is_empty() {
            return Err(fault("names no host or bucket"));
        }
        let bucket = |cloud| Place::Bucket {
            cloud,
            name: first.to_owned(),
            prefix: path.to_owned(),
        };
        let place = match scheme {
            "https" => Place::Web {
                host: first.to_owned(),
                base: rest.trim_end_matches('/').to_owned(),
            },
            "s3" => bucket(Cloud::S3),
            "gs" => bucket(Cloud::Google),
            "az" => bucket(Cloud::Azure),
            "oci" if path.is_empty() => {
                return Err(fault(
                    "names no repository; write oci://REGISTRY/REPOSITORY:TAG or …@sha256:DIGEST",
                ));
            }
            "oci" => Place::Registry {
                reference: rest.to_owned(),
            },
            _ => {
                return Err(fault(
                    "has a scheme that is not fetched; write https://, s3://, gs://, az:// or oci://",
                ));
            }
        };
        Ok(Self {
            uri: uri.trim_end_matches('/').to_owned(),
            place,
        })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// How a file of the artifact is named to people.
    pub fn shown(&self, path: &FilePath) -> String {
        match self.place {
            Place::Registry { .. } => format!("{} ({path})", self.uri),
            _ => format!("{}/{path}", self.uri),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri)
    }
}

/// A path as it is written in a URL: what could be taken for something else is encoded.
pub(crate) fn encoded(path: &FilePath) -> String {
    let mut text = String::new();
    for byte in path.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The name of an object under a prefix.
pub(crate) fn joined(prefix: &str, path: &FilePath) -> String {
    if prefix.is_empty() {
        path.to_string()
    } else {
        format!("{prefix}/{path}")
    }
}

fn shortened(uri: &str) -> String {
    // Credentials that do not belong in it must not end in a log either.
    let without = uri.split(['?', '#']).next().unwrap_or_default();
    let shown = match without.split_once("://") {
        Some((scheme, rest)) if scheme != "oci" => {
            let after = rest.rsplit_once('@').map_or(rest, |(_, after)| after);
            format!("{scheme}://{after}")
        }
        _ => without.to_owned(),
    };
    shown.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_says_where_its_files_lie() {
        let bucket = |cloud, name: &str, prefix: &str| Place::Bucket {
            cloud,
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        };
        for (uri, place, shown) in [
            (
                "https://host:8443/models/tiny/",
                Place::Web {
                    host: "host:8443".to_owned(),
                    base: "host:8443/models/tiny".to_owned(),
                },
                "https://host:8443/models/tiny/a/b c",
            ),
            (
                "s3://models/tiny/2",
                bucket(Cloud::S3, "models", "tiny/2"),
                "s3://models/tiny/2/a/b c",
            ),
            (
                "gs://models",
                bucket(Cloud::Google, "models", ""),
                "gs://models/a/b c",
            ),
            (
                "az://models/x",
                bucket(Cloud::Azure, "models", "x"),
                "az://models/x/a/b c",
            ),
            (
                "oci://registry.example:5000/team/tiny:2",
                Place::Registry {
                    reference: "registry.example:5000/team/tiny:2".to_owned(),
                },
                "oci://registry.example:5000/team/tiny:2 (a/b c)",
            ),
        ] {
            assert!(is_remote(uri), "{uri}");
            let location = Location::parse(uri).unwrap();
            assert_eq!(location.place(), &place);
            assert_eq!(location.shown(&"a/b c".parse().unwrap()), shown);
        }
    }

    #[test]
    fn what_does_not_belong_in_a_uri_is_refused_and_never_shown() {
        for (uri, word) in [
            ("https://user:secret@host/x", "credentials"),
            ("https://host/x?sig=secret", "query"),
            ("s3://key:secret@bucket/x", "credentials"),
            ("https://host/../x", "\"..\""),
            ("https:///x", "no host"),
            ("ftp://host/x", "scheme"),
            ("host/x", "scheme"),
            ("oci://registry", "repository"),
            ("https://host/a b", "white space"),
        ] {
            let error = Location::parse(uri).unwrap_err().to_string();
            assert!(error.contains(word), "{uri}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        for uri in ["file:/models", "pvc://claim/x", "http://host/x"] {
            assert!(!is_remote(uri), "{uri}");
        }
    }

    #[test]
    fn a_path_in_a_url_cannot_end_the_path() {
        let path = "sub/ä b?c#d%e".parse().unwrap();
        assert_eq!(encoded(&path), "sub/%C3%A4%20b%3Fc%23d%25e");
    }
}
