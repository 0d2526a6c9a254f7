//! Why an adapter cannot be used.

use super::{ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE};
use crate::files::FileError;
use crate::weights::WeightsError;

/// An adapter cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A file cannot be had.
    #[error("cannot open the adapter's files")]
    File(#[source] FileError),
    /// There are no weights that can be read.
    #[error(
        "the adapter has no \"{ADAPTER_WEIGHTS_FILE}\"; where it has an \"adapter_model.bin\", load it with peft and save it again, which writes safetensors"
    )]
    NoWeights,
    /// The configuration is broken, or asks for what is not done.
    #[error("\"{ADAPTER_CONFIG_FILE}\": {what}")]
    Config {
        /// The field, what is wrong with it, and what would be right.
        what: String,
    },
    /// The weights are broken, or of another network.
    #[error("the adapter's weights cannot be used")]
    Weights(#[source] WeightsError),
    /// A tensor has no place in the base, or numbers that nothing can be computed with.
    #[error("tensor \"{name}\" in \"{ADAPTER_WEIGHTS_FILE}\" {why}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Nothing would be added to anything.
    #[error("\"{ADAPTER_WEIGHTS_FILE}\" has no tensors")]
    Empty,
    /// The device does not do it.
    #[error("{device} cannot apply adapters; give the worker --device cpu")]
    Device {
        /// Which.
        device: String,
    },
    /// A bound of the engine.
    #[error("the engine has {most} adapters, which is the most it holds; remove one")]
    TooMany {
        /// The bound.
        most: usize,
    },
}

impl AdapterError {
    /// One word for conditions, metrics and events.
    pub fn category(&self) -> &'static str {
        match self {
            Self::File(_) => "FileUnreadable",
            Self::Device { .. } => "AdaptersUnsupported",
            Self::TooMany { .. } => "TooManyAdapters",
            Self::NoWeights
            | Self::Config { .. }
            | Self::Weights(_)
            | Self::Tensor { .. }
            | Self::Empty => "AdapterInvalid",
        }
    }
}
