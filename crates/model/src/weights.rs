//! Tensors from safetensors or GGUF files, mapped in place.
//!
//! A file is mapped from the descriptor it came with and its header is checked against the file's size before anything else is
//! believed. The mapping is shared with the file: whoever can write to the artifact can change what serves, so the artifact must
//! lie where only the verifier's side can write.

mod error;
mod gguf;
mod parts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::files::FileSource;
use crate::gguf::{BlockType, ENDING, only};

pub use error::WeightsError;

/// Name of the only weights file of an unsharded model.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Name of the file that says which tensor is in which shard.
pub const WEIGHTS_INDEX_FILE: &str = "model.safetensors.index.json";

/// Number format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// `bfloat16`
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
    /// Blocks of a GGUF file; quantized our way before anything is multiplied with them.
    Blocks(BlockType),
}

impl WeightType {
    /// Bytes of so many elements, whole blocks of them.
    pub fn bytes_of(self, elements: usize) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2 * elements,
            Self::F32 => 4 * elements,
            Self::Blocks(block) => elements / block.elements() * block.bytes(),
        }
    }
}

/// A matrix that lies in a mapped file. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Matrix {
    map: Arc<Mmap>,
    start: usize,
    /// Format of the elements.
    pub dtype: WeightType,
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs; a row's elements are adjacent.
    pub cols: usize,
}

impl Matrix {
    /// (rows, cols) elements, not necessarily aligned.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.start..][..self.dtype.bytes_of(self.rows * self.cols)]
    }

    /// Writes one row as f32 into `out` (cols).
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.rows && out.len() == self.cols,
            "row {row} of {} into {}",
            self.rows,
            out.len()
        );
        let size = self.dtype.bytes_of(self.cols);
        let bytes = &self.bytes()[row * size..][..size];
        let halves = bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        match self.dtype {
            WeightType::Bf16 => out
                .iter_mut()
                .zip(halves)
                .for_each(|(x, pair)| *x = half::bf16::from_le_bytes(pair).to_f32()),
            WeightType::F16 => out
                .iter_mut()
                .zip(halves)
                .for_each(|(x, pair)| *x = half::f16::from_le_bytes(pair).to_f32()),
            WeightType::Blocks(block) => block.read(bytes, out),
            WeightType::F32 => {
                let words = bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                out.iter_mut().zip(words).for_each(|(x, word)| *x = word);
            }
        }
    }

    /// All elements as f32, for vectors.
    pub fn to_vec(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
            self.read_row(row, out);
        }
        out
    }
}

struct Place {
    shard: usize,
    dtype: Dtype,
    /// How the bytes are to be read, where no type of safetensors says.
    block: Option<BlockType>,
    /// Rows of a head, where a head's rows are interleaved.
    head_dim: Option<usize>,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// Every tensor of a model's files. The network takes what it needs; what is left over is an error.
pub struct TensorFiles {
    shards: Vec<(String, Arc<Mmap>)>,
    tensors: BTreeMap<String, Place>,
    taken: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` names, or the only GGUF file.
    ///
    /// # Errors
    /// A file is missing, cannot be mapped or is broken.
    pub fn open(files: &dyn FileSource) -> Result<Self, WeightsError> {
        let names = files.names();
        let has = |name: &str| names.iter().any(|have| have == name);
        let mut all = Self::empty();
        if has(WEIGHTS_INDEX_FILE) {
            let bytes = files
                .require(WEIGHTS_INDEX_FILE)
                .map_err(WeightsError::File)?;
            let index: Index =
                serde_json::from_slice(&bytes).map_err(|error| WeightsError::Index {
                    what: error.to_string(),
                })?;
            for shard in index.weight_map.values().collect::<BTreeSet<_>>() {
                all.add(files, shard)?;
            }
            all.check_against(&index)?;
        } else if has(WEIGHTS_FILE) {
            all.add(files, WEIGHTS_FILE)?;
        } else if let Some(file) = only(&names).map_err(WeightsError::Gguf)? {
            all.add_gguf(files, file)?;
        } else {
            return Err(WeightsError::Absent);
        }
        Ok(all)
    }

    /// Maps one safetensors file.
    ///
    /// # Errors
    /// It is missing, cannot be mapped or is broken.
    pub(crate) fn open_one(files: &dyn FileSource, name: &str) -> Result<Self, WeightsError> {
        let mut all = Self::empty();
        all.add(files, name)?;
        Ok(all)
    }

    fn empty() -> Self {
        Self {
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            taken: BTreeSet::new(),
        }
    }

    /// From one file's bytes, told apart by its name, for tests of hostile files.
    pub(crate) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, WeightsError> {
        let failed = |source| WeightsError::Map {
            file: name.to_owned(),
            source,
        };
        let mut map = MmapMut::map_anon(bytes.len().max(1)).map_err(failed)?;
        map[..bytes.len()].copy_from_slice(bytes);
        let map = Arc::new(map.make_read_only().map_err(failed)?);
        let mut all = Self::empty();
        if name.ends_with(ENDING) {
            all.add_gguf_map(name, map)?;
        } else {
            all.add_map(name, map)?;
        }
        Ok(all)
    }

    /// Takes a matrix or, with one dimension, a vector as one row.
    ///
    /// # Errors
    /// It is missing, has another shape, or a type no kernel reads.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Matrix, WeightsError> {
        let Some(place) = self.tensors.get(name) else {
            return Err(WeightsError::Missing {
                name: name.to_owned(),
                shape: shape.to_vec(),
            });
        };
        let (file, map) = &self.shards[place.shard];
        if place.shape != shape {
            let (have, want) = (place.shape.clone(), shape.to_vec());
            return Err(WeightsError::Shape {
                name: name.to_owned(),
                file: file.clone(),
                shape: have,
                want,
            });
        }
        let dtype = match (place.block, place.dtype) {
            (Some(block), _) => WeightType::Blocks(block),
            (None, Dtype::BF16) => WeightType::Bf16,
            (None, Dtype::F16) => WeightType::F16,
            (None, Dtype::F32) => WeightType::F32,
            (None, other) => {
                let dtype = format!("{other:?}");
                return Err(WeightsError::Type {
                    name: name.to_owned(),
                    file: file.clone(),
                    dtype,
                });
            }
        };
        let cols = *shape
            .last()
            .expect("tensors of the network have a dimension");
        let (map, start) = match place.head_dim {
            None => (Arc::clone(map), place.start),
            Some(head_dim) => {
                let bytes = &map[place.start..place.end];
                let ordered = gguf::in_order(bytes, (shape[0], head_dim));
                let failed = |source| WeightsError::Memory {
                    name: name.to_owned(),
                    source,
                };
                (ordered.map_err(failed)?, 0)
            }
        };
        let matrix = Matrix {
            map,
            start,
            dtype,
            rows: shape.iter().product::<usize>() / cols,
            cols,
        };
        self.taken.insert(name.to_owned());
        Ok(matrix)
    }

    /// Every tensor must have been taken, but for those `ignored` accepts.
    ///
    /// # Errors
    /// Some are left.
    pub fn finish(self, ignored: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let mut left = self
            .tensors
            .iter()
            .filter(|(name, _)| !self.taken.contains(*name) && !ignored(name));
        match left.next() {
            None => Ok(()),
            Some((name, place)) => {
                let file = self.shards[place.shard].0.clone();
                Err(WeightsError::Extra {
                    name: name.clone(),
                    file,
                    more: left.count(),
                })
            }
        }
    }

    fn add(&mut self, files: &dyn FileSource, name: &str) -> Result<(), WeightsError> {
        self.add_map(name, map_file(files, name)?)
    }

    fn add_map(&mut self, name: &str, map: Arc<Mmap>) -> Result<(), WeightsError> {
        let header = |source| WeightsError::Header {
            file: name.to_owned(),
            source,
        };
        let (header_size, metadata) = SafeTensors::read_metadata(&map).map_err(header)?;
        // The library has checked that tensors lie one behind the other and fill the file exactly.
        let data = header_size + size_of::<u64>();
        for (tensor, info) in metadata.tensors() {
            let start = data + info.data_offsets.0;
            let place = Place {
                shard: self.shards.len(),
                dtype: info.dtype,
                block: None,
                head_dim: None,
                shape: info.shape.clone(),
                start,
                end: data + info.data_offsets.1,
            };
            assert!(
                data + info.data_offsets.1 <= map.len(),
                "tensor \"{tensor}\" ends inside its file"
            );
            if let Some(other) = self.tensors.insert(tensor.clone(), place) {
                let first = self.shards[other.shard].0.clone();
                return Err(WeightsError::Twice {
                    name: tensor,
                    first,
                    second: name.to_owned(),
                });
            }
        }
        self.shards.push((name.to_owned(), map));
        Ok(())
    }

    fn check_against(&self, index: &Index) -> Result<(), WeightsError> {
        for (name, shard) in &index.weight_map {
            let found = self
                .tensors
                .get(name)
                .map(|place| &self.shards[place.shard].0);
            if found != Some(shard) {
                let what = format!(
                    "says that tensor \"{name}\" is in \"{shard}\", which does not hold it"
                );
                return Err(WeightsError::Index { what });
            }
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "mapping a file is unsafe")]
pub(crate) fn map_file(files: &dyn FileSource, name: &str) -> Result<Arc<Mmap>, WeightsError> {
    let file = files.file(name).map_err(WeightsError::File)?;
    let failed = |source| WeightsError::Map {
        file: name.to_owned(),
        source,
    };
    // SAFETY: the map is only read. Were the file changed meanwhile, the numbers read would change and no more is assumed of
    // them; were it cut, the process would get SIGBUS. The module's documentation asks for artifacts nobody writes to.
    let map = unsafe { Mmap::map(file) }.map_err(failed)?;
    map.advise(memmap2::Advice::WillNeed).map_err(failed)?;
    Ok(Arc::new(map))
}
