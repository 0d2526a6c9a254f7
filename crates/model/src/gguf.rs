//! Models in GGUF, the single file of `llama.cpp`: header, metadata and places of tensors, all of it checked before it is believed.
//!
//! The file says what it holds; nothing of it is trusted. Every count and length is bounded by the file's size before memory is taken
//! for it, and every tensor must lie inside the file and apart from the others. See [`files`] for how such a file becomes a model.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

pub(crate) mod blocks;
mod config;
mod files;
mod names;
mod reader;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::collections::BTreeMap;

pub use blocks::BlockType;
pub(crate) use files::{ENDING, only};
pub use files::{GgufFiles, GgufFilesError};
pub(crate) use names::{interleaved, named};
use reader::Reader;
pub use reader::Value;

/// Bytes at the front of every file.
const MAGIC: [u8; 4] = *b"GGUF";
/// Where data begins, unless the file says otherwise: at a multiple of this.
const ALIGNMENT: u64 = 32;
/// Dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Bytes of a name of a key or a tensor.
const NAME_BYTES_MAX: usize = 1024;

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// It is not a GGUF file of a version that is read.
    #[error("\"{file}\" {what}")]
    Format {
        /// The file.
        file: String,
        /// What it is instead, and what would be right.
        what: String,
    },
    /// It is broken at a place.
    #[error("\"{file}\" is broken at byte {at}, in {place}: {what}; fetch it again")]
    Broken {
        /// The file.
        file: String,
        /// Offset in the file.
        at: usize,
        /// Of what the place is part.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// It asks for something that is not implemented.
    #[error("\"{file}\": key \"{key}\" {why}")]
    Key {
        /// The file.
        file: String,
        /// Key of its metadata.
        key: String,
        /// What is wrong and what would be right.
        why: String,
    },
    /// A tensor cannot be used.
    #[error("\"{file}\": tensor \"{name}\" {why}")]
    Tensor {
        /// The file.
        file: String,
        /// Its name in the file.
        name: String,
        /// What is wrong and what would be right.
        why: String,
    },
}

/// A tensor's place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// Rows first, as everywhere here; the file has them the other way round.
    pub shape: Vec<usize>,
    /// How its numbers are written.
    pub block: BlockType,
    /// First byte in the file, and one past the last.
    pub bytes: std::ops::Range<usize>,
}

/// What a file's header says.
#[derive(Clone, Debug)]
pub struct Gguf {
    file: String,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorPlace>,
}

impl Gguf {
    /// Reads the header of a whole file.
    ///
    /// # Errors
    /// The file is not of this format, is cut or lies about itself; the error says where.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader::new(file, bytes);
        check_version(&mut reader)?;
        let tensor_count = reader.u64("the count of tensors")?;
        let key_count = reader.u64("the count of keys")?;
        // A key takes at least 13 bytes and a tensor 33, so more of them than bytes is a lie that must not take memory.
        reader.check_count(tensor_count, 33, "the count of tensors")?;
        reader.check_count(key_count, 13, "the count of keys")?;
        let mut metadata = BTreeMap::new();
        for _ in 0..key_count {
            let key = reader.name("a key")?;
            let place = format!("key \"{key}\"");
            let value = reader.value(&place)?;
            if metadata.insert(key, value).is_some() {
                return Err(reader.broken(&place, "it is there twice".to_owned()));
            }
        }
        let mut gguf = Self {
            file: file.to_owned(),
            metadata,
            tensors: BTreeMap::new(),
        };
        let alignment = gguf.alignment()?;
        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(TensorInfo::read(&mut reader)?);
        }
        let data = reader.offset().next_multiple_of(alignment);
        for info in infos {
            let (name, place) = info.locate(&gguf.file, (data, alignment), bytes.len())?;
            if gguf.tensors.insert(name.clone(), place).is_some() {
                return Err(gguf.tensor_error(&name, "is there twice".to_owned()));
            }
        }
        gguf.check_apart()?;
        Ok(gguf)
    }

    /// The file's name.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// A value of the metadata.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Every tensor by its name in the file.
    pub fn tensors(&self) -> &BTreeMap<String, TensorPlace> {
        &self.tensors
    }

    fn alignment(&self) -> Result<usize, GgufError> {
        let key = "general.alignment";
        let alignment = match self.get(key) {
            None => Some(ALIGNMENT),
            Some(value) => value.unsigned(),
        };
        alignment
            .filter(|size| size.is_power_of_two() && (8..=1 << 16).contains(size))
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(|| self.key_error(key, "must be a power of two from 8 to 65536".to_owned()))
    }

    /// Two tensors must not share bytes: whoever writes that means something else than we read.
    fn check_apart(&self) -> Result<(), GgufError> {
        let mut places: Vec<_> = self.tensors.iter().collect();
        places.sort_by_key(|(_, place)| place.bytes.start);
        for pair in places.windows(2) {
            if pair[0].1.bytes.end > pair[1].1.bytes.start {
                let why = format!("overlaps tensor \"{}\"; fetch the file again", pair[1].0);
                return Err(self.tensor_error(pair[0].0, why));
            }
        }
        Ok(())
    }

    pub(crate) fn key_error(&self, key: &str, why: String) -> GgufError {
        GgufError::Key {
            file: self.file.clone(),
            key: key.to_owned(),
            why,
        }
    }

    pub(crate) fn tensor_error(&self, name: &str, why: String) -> GgufError {
        GgufError::Tensor {
            file: self.file.clone(),
            name: name.to_owned(),
            why,
        }
    }
}

fn check_version(reader: &mut Reader<'_>) -> Result<(), GgufError> {
    let magic = reader.bytes(4, "the magic number")?;
    if magic != MAGIC {
        return Err(reader.format("is not a GGUF file: it does not begin with \"GGUF\"".to_owned()));
    }
    match reader.u32("the version")? {
        2 | 3 => Ok(()),
        1 => Err(reader.format(
            "is GGUF version 1, which nobody writes any more; convert the model again".to_owned(),
        )),
        version if version.swap_bytes() < 16 => Err(reader.format(
            "is a big-endian GGUF file; convert the model for a little-endian machine".to_owned(),
        )),
        version => Err(reader.format(format!("is GGUF version {version}; 2 and 3 are read"))),
    }
}

/// A tensor as the header lists it.
struct TensorInfo {
    name: String,
    /// Columns first.
    dimensions: Vec<usize>,
    kind: u32,
    offset: u64,
}

impl TensorInfo {
    fn read(reader: &mut Reader<'_>) -> Result<Self, GgufError> {
        let name = reader.name("a tensor's name")?;
        let place = format!("tensor \"{name}\"");
        let count = reader.u32(&place)?;
        if !(1..=DIMENSIONS_MAX).contains(&count) {
            return Err(reader.broken(&place, format!("{count} dimensions are not 1 to 4")));
        }
        let mut dimensions = Vec::new();
        for _ in 0..count {
            let size = reader.u64(&place)?;
            match usize::try_from(size) {
                Ok(size) if (1..=1 << 32).contains(&size) => dimensions.push(size),
                _ => {
                    return Err(reader.broken(&place, format!("a dimension of {size}")));
                }
            }
        }
        Ok(Self {
            kind: reader.u32(&place)?,
            offset: reader.u64(&place)?,
            name,
            dimensions,
        })
    }

    /// Where it lies in a file of `size` bytes whose tensors begin at `data`.
    fn locate(
        mut self,
        file: &str,
        (data, alignment): (usize, usize),
        size: usize,
    ) -> Result<(String, TensorPlace), GgufError> {
        let refuse = |why: String| GgufError::Tensor {
            file: file.to_owned(),
            name: self.name.clone(),
            why,
        };
        let block = BlockType::of(self.kind).ok_or_else(|| {
            refuse(format!(
                "has type {}, which is not read; convert the model to one of {}",
                self.kind,
                BlockType::names()
            ))
        })?;
        let cols = self.dimensions[0];
        if !cols.is_multiple_of(block.elements()) {
            return Err(refuse(format!(
                "has rows of {cols} elements, which {} blocks of {} do not fill",
                block.name(),
                block.elements()
            )));
        }
        let length = self
            .dimensions
            .iter()
            .try_fold(1_usize, |all, size| all.checked_mul(*size))
            .and_then(|elements| (elements / block.elements()).checked_mul(block.bytes()));
        let start = usize::try_from(self.offset).ok();
        let range = start
            .filter(|start| start.is_multiple_of(alignment))
            .and_then(|start| data.checked_add(start))
            .and_then(|start| Some(start..start.checked_add(length?)?))
            .filter(|range| range.end <= size);
        let Some(bytes) = range else {
            return Err(refuse(format!(
                "of shape {:?} at offset {} does not lie in the file's {size} bytes; fetch the file again",
                self.dimensions, self.offset
            )));
        };
        self.dimensions.reverse();
        let place = TensorPlace {
            shape: self.dimensions,
            block,
            bytes,
        };
        Ok((self.name, place))
    }
}
