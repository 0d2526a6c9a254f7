//! A model's files with a GGUF file among them: what is not beside it is made from its metadata.

use std::collections::BTreeMap;
use std::fs::File;

use super::{Gguf, GgufError};
use crate::config::CONFIG_FILE;
use crate::files::{FileError, FileSource};
use crate::template::TOKENIZER_CONFIG_FILE;
use crate::tokenizer::TOKENIZER_FILE;
use crate::weights::map_file;

/// Ending of such files.
pub(crate) const ENDING: &str = ".gguf";

/// Files of a model; `config.json`, `tokenizer.json` and `tokenizer_config.json` are made from the GGUF file where they are absent.
pub struct GgufFiles<'a> {
    files: &'a dyn FileSource,
    made: BTreeMap<String, Vec<u8>>,
}

/// Made files cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum GgufFilesError {
    /// The file cannot be had.
    #[error("cannot open the GGUF file")]
    File(#[source] crate::weights::WeightsError),
    /// It cannot be used.
    #[error("cannot use the GGUF file")]
    Gguf(#[source] GgufError),
}

impl<'a> GgufFiles<'a> {
    /// With everything that is absent and that the file can give. Without such a file, or with all of it beside, the files are as they
    /// are.
    ///
    /// # Errors
    /// There are several such files, or the one there is cannot be used.
    pub fn over(files: &'a dyn FileSource) -> Result<Self, GgufFilesError> {
        Self::make(files, true)
    }

    /// As [`GgufFiles::over`], without the tokenizer: weights do not need it.
    ///
    /// # Errors
    /// As [`GgufFiles::over`].
    pub(crate) fn without_text(files: &'a dyn FileSource) -> Result<Self, GgufFilesError> {
        Self::make(files, false)
    }

    fn make(files: &'a dyn FileSource, with_text: bool) -> Result<Self, GgufFilesError> {
        let mut made = BTreeMap::new();
        let names = files.names();
        let has = |name: &str| names.iter().any(|have| have == name);
        let name = only(&names).map_err(GgufFilesError::Gguf)?;
        let needs_text = with_text && !has(TOKENIZER_FILE);
        if let Some(name) = name.filter(|_| !has(CONFIG_FILE) || needs_text) {
            let map = map_file(files, name).map_err(GgufFilesError::File)?;
            let gguf = Gguf::parse(name, &map).map_err(GgufFilesError::Gguf)?;
            if !has(CONFIG_FILE) {
                let config = gguf.config_json(&map).map_err(GgufFilesError::Gguf)?;
                made.insert(CONFIG_FILE.to_owned(), config);
            }
            if needs_text {
                let tokenizer = gguf.tokenizer_json().map_err(GgufFilesError::Gguf)?;
                made.insert(TOKENIZER_FILE.to_owned(), tokenizer);
                if !has(TOKENIZER_CONFIG_FILE) {
                    let config = gguf.tokenizer_config_json();
                    made.insert(TOKENIZER_CONFIG_FILE.to_owned(), config);
                }
            }
        }
        Ok(Self { files, made })
    }

    /// What was made: names and contents.
    pub fn made(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.made
    }
}

/// The one GGUF file among names, if there is one.
pub(crate) fn only(names: &[String]) -> Result<Option<&str>, GgufError> {
    let mut found = names.iter().filter(|name| name.ends_with(ENDING));
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(name), None) => Ok(Some(name)),
        (Some(first), Some(second)) => Err(GgufError::Format {
            file: first.clone(),
            what: format!(
                "is not the only GGUF file: there is \"{second}\" too; leave one, and merge parts with llama-gguf-split --merge"
            ),
        }),
    }
}

impl FileSource for GgufFiles<'_> {
    fn names(&self) -> Vec<String> {
        let mut names = self.files.names();
        names.extend(self.made.keys().cloned());
        names
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        match self.made.get(name) {
            Some(bytes) => Ok(Some(bytes.clone())),
            None => self.files.read(name),
        }
    }

    fn file(&self, name: &str) -> Result<&File, FileError> {
        self.files.file(name)
    }
}
