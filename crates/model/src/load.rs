//! The front door: from a model's files to a backend.

use crate::config::{CONFIG_FILE, ConfigError, ModelConfig};
use crate::cpu::{CpuBackend, CpuError, CpuOptions, CpuThreads, Level, WeightFormat, with_packer};
use crate::files::{FileError, FileSource};
use crate::gguf::{GgufFiles, GgufFilesError};
use crate::network::Network;
use crate::weights::{TensorFiles, WeightsError};

/// A model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or unreadable.
    #[error("cannot read the model's files")]
    File(#[source] FileError),
    /// The GGUF file is unusable.
    #[error("cannot read the model")]
    Gguf(#[source] GgufFilesError),
    /// The configuration is unusable.
    #[error("model is not supported")]
    Config(#[source] ConfigError),
    /// The weights cannot be mapped.
    #[error("cannot load the weights")]
    Weights(#[source] WeightsError),
    /// The backend cannot be made.
    #[error("cannot make the CPU backend")]
    Cpu(#[source] CpuError),
}

impl LoadError {
    /// One word for conditions, metrics and events.
    pub fn category(&self) -> &'static str {
        match self {
            Self::File(_) => "FileUnreadable",
            Self::Config(_) | Self::Gguf(_) | Self::Cpu(CpuError::HeadDim { .. }) => {
                "UnsupportedModel"
            }
            Self::Weights(_) | Self::Cpu(CpuError::Weights(_)) => "WeightsInvalid",
            Self::Cpu(CpuError::Option { .. }) => "EngineOptionInvalid",
            Self::Cpu(CpuError::Thread(_)) => "ThreadsUnavailable",
            Self::Cpu(CpuError::Memory(_)) => "MemoryUnavailable",
        }
    }
}

/// Loads a model onto the CPU. The weights are mapped from the descriptors in `files`; no path is opened again.
///
/// # Errors
/// A file is missing or broken, something is unsupported, or an option is out of bounds.
pub fn load_cpu(files: &dyn FileSource, options: &CpuOptions) -> Result<CpuBackend, LoadError> {
    let threads = CpuThreads::new(options.threads).map_err(LoadError::Cpu)?;
    load_cpu_on(files, options, threads)
}

/// Loads a model onto threads that other models of this process share; see [`load_cpu`].
///
/// # Errors
/// As [`load_cpu`].
pub fn load_cpu_on(
    files: &dyn FileSource,
    options: &CpuOptions,
    threads: CpuThreads,
) -> Result<CpuBackend, LoadError> {
    let (config, tensors) = open(files)?;
    CpuBackend::new(tensors, &config, options, threads).map_err(LoadError::Cpu)
}

/// A model's network, for a backend that takes its weights elsewhere: they stay mapped, or are quantized by the CPU.
///
/// # Errors
/// A file is missing or broken, or something is unsupported.
pub fn load_network(
    files: &dyn FileSource,
    format: WeightFormat,
) -> Result<(ModelConfig, Network), LoadError> {
    let (config, tensors) = open(files)?;
    let network = with_packer(Level::Amx, |packer| {
        Network::load(tensors, &config, format, packer)
    });
    let network = network
        .and_then(|loaded| loaded)
        .map_err(|error| match error {
            CpuError::Weights(source) => LoadError::Weights(source),
            other => LoadError::Cpu(other),
        })?;
    Ok((config, network))
}

/// The shape of a model's network, for whoever needs no weights.
///
/// # Errors
/// A file is missing or broken, or something is unsupported.
pub fn network_config(files: &dyn FileSource) -> Result<ModelConfig, LoadError> {
    let files = GgufFiles::without_text(files).map_err(LoadError::Gguf)?;
    ModelConfig::parse(&files.require(CONFIG_FILE).map_err(LoadError::File)?)
        .map_err(LoadError::Config)
}

fn open(files: &dyn FileSource) -> Result<(ModelConfig, TensorFiles), LoadError> {
    let files = GgufFiles::without_text(files).map_err(LoadError::Gguf)?;
    let config = network_config(&files)?;
    let tensors = TensorFiles::open(&files).map_err(LoadError::Weights)?;
    Ok((config, tensors))
}
