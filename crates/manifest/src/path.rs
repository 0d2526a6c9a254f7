//! Names of files inside an artifact, proven unable to leave it.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest path in bytes: more than any published model uses, and less than `PATH_MAX`.
pub const MAX_PATH_BYTES: usize = 1024;
/// Deepest path in components.
pub const MAX_PATH_DEPTH: usize = 16;
/// Longest component in bytes: what Linux file systems allow.
const MAX_COMPONENT_BYTES: usize = 255;

/// A relative path in one canonical spelling: components joined by `/`, none of them empty, `.` or `..`, no control character, no
/// backslash. Joining it to a directory, without following links, cannot leave that directory.
///
/// Ordered by components, as the Python implementation of the format orders them: `a/b` comes before `a.b`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FilePath(String);

/// Why a text is not a [`FilePath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} {fault}")]
pub struct ParsePathError {
    /// The text, shortened.
    pub path: String,
    /// What is wrong with it.
    pub fault: &'static str,
}

impl FilePath {
    /// The path as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Is this path `other` or below it?
    pub fn is_within(&self, other: &Self) -> bool {
        self.0
            .strip_prefix(other.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn fault(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("is empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Some("is longer than 1024 bytes");
    }
    if path.starts_with('/') {
        return Some("is absolute; paths are relative to the artifact");
    }
    // A backslash separates components for other readers of the same format.
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return Some("contains a control character or a backslash");
    }
    if path.split('/').count() > MAX_PATH_DEPTH {
        return Some("has more than 16 components");
    }
    path.split('/').find_map(|component| match component {
        "" => Some("has an empty component"),
        "." => Some("has a component \".\""),
        ".." => Some("has a component \"..\" and would leave the artifact"),
        long if long.len() > MAX_COMPONENT_BYTES => Some("has a component longer than 255 bytes"),
        _ => None,
    })
}

impl FromStr for FilePath {
    type Err = ParsePathError;

    fn from_str(path: &str) -> Result<Self, Self::Err> {
        match fault(path) {
            None => Ok(Self(path.to_owned())),
            Some(fault) => Err(ParsePathError {
                path: path.chars().take(120).collect(),
                fault,
            }),
        }
    }
}

impl Ord for FilePath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.components().cmp(other.components())
    }
}

impl PartialOrd for FilePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for FilePath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> Self {
        path.0
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(256);
        let longer = "a/".repeat(600);
        let deep = ["a"; 17].join("/");
        for bad in [
            "",
            "/",
            "/etc/passwd",
            ".",
            "..",
            "../x",
            "a/../b",
            "a/..",
            "./a",
            "a/.",
            "a//b",
            "a/",
            "a\\b",
            "..\\x",
            "C:\\x",
            "a\0b",
            "a\nb",
            "a\u{85}b",
            &long,
            &longer,
            &deep,
        ] {
            assert!(bad.parse::<FilePath>().is_err(), "{bad:?}");
        }
        for good in [
            "a",
            "a.b",
            "...",
            "..a",
            "sub/dir/model-00001-of-00002.safetensors",
            "modèle.json",
            " a ",
            ".gitattributes",
        ] {
            assert!(good.parse::<FilePath>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn order_is_by_components() {
        let mut paths: Vec<FilePath> = ["a.b", "a/b", "a", "B", "a-b/c"]
            .iter()
            .map(|p| p.parse().unwrap())
            .collect();
        paths.sort();
        assert_eq!(
            paths.iter().map(FilePath::as_str).collect::<Vec<_>>(),
            ["B", "a", "a/b", "a-b/c", "a.b"]
        );
    }

    #[test]
    fn within_means_below_and_not_beside() {
        let path = |p: &str| p.parse::<FilePath>().unwrap();
        assert!(path(".git/config").is_within(&path(".git")));
        assert!(path(".git").is_within(&path(".git")));
        assert!(!path(".gitattributes").is_within(&path(".git")));
    }

    proptest! {
        #[test]
        fn no_accepted_name_escapes(path in "[a./\\\\\u{0}-\u{1f} é-]{0,24}") {
            if let Ok(path) = path.parse::<FilePath>() {
                let mut depth = 0_i32;
                for component in std::path::Path::new(path.as_str()).components() {
                    match component {
                        std::path::Component::Normal(_) => depth += 1,
                        other => prop_assert!(false, "{other:?} in {path:?}"),
                    }
                }
                prop_assert!(depth > 0);
            }
        }
    }
}
