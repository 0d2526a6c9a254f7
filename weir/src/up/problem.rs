//! What is wrong with what a person wrote, and where.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// One fault in the manifests: place, cause and remedy in one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file (or directory).
    pub file: PathBuf,
    /// Line of the file, from 1: where the fault is, or where its document begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Kind and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The field, in dotted form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    /// A fault of a whole file.
    pub fn in_file(file: &Path, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            object: None,
            path: None,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(object) = &self.object {
            write!(f, ": {object}")?;
        }
        if let Some(path) = &self.path {
            write!(f, ": {path}")?;
        }
        write!(f, ": {}", self.message)
    }
}
