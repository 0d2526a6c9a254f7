//! Why weights cannot be used.

use super::{WEIGHTS_FILE, WEIGHTS_INDEX_FILE};
use crate::files::FileError;
use crate::gguf::GgufError;

/// Weights cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be had.
    #[error("cannot open the model's weights")]
    File(#[source] FileError),
    /// There are neither weights nor an index.
    #[error(
        "model has neither \"{WEIGHTS_FILE}\" nor \"{WEIGHTS_INDEX_FILE}\" nor a GGUF file; other formats are not supported"
    )]
    Absent,
    /// The GGUF file is unusable.
    #[error("cannot use the GGUF file")]
    Gguf(#[source] GgufError),
    /// Rows cannot be put in order.
    #[error("cannot get memory for the rows of \"{name}\"")]
    Memory {
        /// The tensor.
        name: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The index is unusable.
    #[error("\"{WEIGHTS_INDEX_FILE}\": {what}")]
    Index {
        /// What is wrong.
        what: String,
    },
    /// A file cannot be mapped.
    #[error("cannot map \"{file}\" into memory")]
    Map {
        /// The file.
        file: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A header is broken or does not fit its file.
    #[error("\"{file}\" is not a whole safetensors file")]
    Header {
        /// The file.
        file: String,
        /// The cause.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// Two shards hold a tensor.
    #[error("tensor \"{name}\" is in \"{first}\" and in \"{second}\"")]
    Twice {
        /// The tensor.
        name: String,
        /// A shard.
        first: String,
        /// Another.
        second: String,
    },
    /// The network needs a tensor that is not there.
    #[error("tensor \"{name}\" is missing; the configuration asks for shape {shape:?}")]
    Missing {
        /// The tensor.
        name: String,
        /// The shape it should have.
        shape: Vec<usize>,
    },
    /// A tensor has another shape than the configuration says.
    #[error(
        "tensor \"{name}\" in \"{file}\" has shape {shape:?}, but the configuration asks for {want:?}"
    )]
    Shape {
        /// The tensor.
        name: String,
        /// Its file.
        file: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape it should have.
        want: Vec<usize>,
    },
    /// A tensor has a type no kernel reads.
    #[error("tensor \"{name}\" in \"{file}\" has type {dtype}; supported are BF16, F16 and F32")]
    Type {
        /// The tensor.
        name: String,
        /// Its file.
        file: String,
        /// Its type.
        dtype: String,
    },
    /// The parts of a quantized matrix do not lie as they must.
    #[error(
        "tensor \"{name}\" must be in \"{file}\", where its integers are, and at an even place"
    )]
    Split {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
    },
    /// Files hold tensors the network has no place for.
    #[error(
        "tensor \"{name}\" in \"{file}\" and {more} more have no place in the network; the configuration is of another model"
    )]
    Extra {
        /// One of them.
        name: String,
        /// Its file.
        file: String,
        /// How many others.
        more: usize,
    },
}
