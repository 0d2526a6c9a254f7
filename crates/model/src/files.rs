//! Where a model's files come from: descriptors a verifier already opened, a plain directory, or bytes in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Largest small file (config, tokenizer, template, shard index) that is read into memory: the largest public tokenizer.json
/// files are near 35 MB.
const SMALL_FILE_BYTES_MAX: u64 = 128 << 20;

/// Why a file could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The model has no such file.
    #[error("file \"{name}\" is missing from the model; add it to the artifact")]
    Missing {
        /// Name inside the artifact.
        name: String,
    },
    /// Reading failed.
    #[error("cannot read file \"{name}\" of the model")]
    Read {
        /// Name inside the artifact.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is larger than any real one.
    #[error("file \"{name}\" has {size} bytes, more than the {max} such a file may have")]
    TooLarge {
        /// Name inside the artifact.
        name: String,
        /// Its size.
        size: u64,
        /// The bound.
        max: u64,
    },
    /// The source holds only small files.
    #[error("file \"{name}\" was given as bytes, but weights are mapped from an open file")]
    NotMappable {
        /// Name inside the artifact.
        name: String,
    },
}

/// Files of one model by their names inside the artifact, with `/` between folders.
pub trait FileSource {
    /// All names.
    fn names(&self) -> Vec<String>;

    /// The whole of a small file, or `None` if there is no such file.
    ///
    /// # Errors
    /// It exists but cannot be read, or is too large.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError>;

    /// An open file for mapping.
    ///
    /// # Errors
    /// There is none, or the source holds bytes only.
    fn file(&self, name: &str) -> Result<&File, FileError>;

    /// The whole of a small file that must exist.
    ///
    /// # Errors
    /// It is missing or cannot be read.
    fn require(&self, name: &str) -> Result<Vec<u8>, FileError> {
        self.read(name)?.ok_or_else(|| FileError::Missing {
            name: name.to_owned(),
        })
    }
}

/// Open files. What was verified through a descriptor is what is read and mapped through it: no path is opened again.
#[derive(Debug, Default)]
pub struct OpenFiles {
    files: BTreeMap<String, File>,
}

impl OpenFiles {
    /// From descriptors that someone else opened and verified.
    pub fn new(files: impl IntoIterator<Item = (String, File)>) -> Self {
        Self {
            files: files.into_iter().collect(),
        }
    }

    /// Every regular file directly inside a directory, for unverified use: examples and tests.
    ///
    /// # Errors
    /// The directory or one of its files cannot be opened.
    pub fn from_dir(dir: &Path) -> Result<Self, FileError> {
        let read = |source| FileError::Read {
            name: dir.display().to_string(),
            source,
        };
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(dir).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if path.is_file() {
                let file = File::open(&path).map_err(|source| FileError::Read {
                    name: name.to_owned(),
                    source,
                })?;
                files.insert(name.to_owned(), file);
            }
        }
        Ok(Self { files })
    }
}

impl FileSource for OpenFiles {
    fn names(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let Some(file) = self.files.get(name) else {
            return Ok(None);
        };
        let read = |source| FileError::Read {
            name: name.to_owned(),
            source,
        };
        let size = file.metadata().map_err(read)?.len();
        if size > SMALL_FILE_BYTES_MAX {
            return Err(FileError::TooLarge {
                name: name.to_owned(),
                size,
                max: SMALL_FILE_BYTES_MAX,
            });
        }
        let mut bytes = vec![0; usize::try_from(size).expect("bounded above")];
        // Positioned, so that the descriptor's own offset, which the verifier may share, does not matter.
        file.read_exact_at(&mut bytes, 0).map_err(read)?;
        Ok(Some(bytes))
    }

    fn file(&self, name: &str) -> Result<&File, FileError> {
        self.files.get(name).ok_or_else(|| FileError::Missing {
            name: name.to_owned(),
        })
    }
}

/// Small files in memory: enough for the text side of a model, as the gateway uses it.
#[derive(Clone, Debug, Default)]
pub struct FileBytes {
    files: BTreeMap<String, Vec<u8>>,
}

impl FileBytes {
    /// From names and contents.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        Self {
            files: files.into_iter().collect(),
        }
    }
}

impl FileSource for FileBytes {
    fn names(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.files.get(name).cloned())
    }

    fn file(&self, name: &str) -> Result<&File, FileError> {
        Err(FileError::NotMappable {
            name: name.to_owned(),
        })
    }
}
