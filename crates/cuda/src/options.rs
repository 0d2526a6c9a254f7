//! What the backend may use, and what follows for its limits.

use weir_model::backend::BackendLimits;
use weir_model::config::ModelConfig;

use crate::CudaError;
use crate::kernels::CacheType;

/// Most numbers of a head that the kernels hold.
const HEAD_DIM_MAX: usize = 256;

/// What the backend may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Memory for cached keys and values.
    pub kv_bytes: u64,
    /// How they are stored.
    pub cache: CacheType,
    /// Positions per block; a multiple of 16.
    pub block_tokens: u32,
    /// Sequences at a time.
    pub max_running: u32,
    /// Tokens per step.
    pub max_batch_tokens: u32,
    /// Positions per sequence; 0 is what the model was trained for, which is also the upper bound.
    pub context_tokens: u32,
}

/// Bytes of the cells of a head at one position, and of their scale.
pub(crate) fn cell_bytes(cache: CacheType, head_dim: usize) -> (u64, u64) {
    match cache {
        CacheType::Act => (2 * head_dim as u64, 0),
        CacheType::Fp8 => (head_dim as u64, 4),
    }
}

/// What fits.
///
/// # Errors
/// An option is out of bounds, or the kernels do not hold the model.
pub(crate) fn limits(
    config: &ModelConfig,
    options: &CudaOptions,
) -> Result<BackendLimits, CudaError> {
    if config.head_dim > HEAD_DIM_MAX || !config.head_dim.is_multiple_of(8) {
        return Err(CudaError::Unsupported {
            what: "head_dim",
            value: config.head_dim,
            why: "must be a multiple of 8 up to 256",
        });
    }
    for (what, value) in [
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
    ] {
        if !value.is_multiple_of(4) {
            let why = "must be a multiple of 4";
            return Err(CudaError::Unsupported { what, value, why });
        }
    }
    for (option, value, is_right, why) in [
        (
            "block_tokens",
            options.block_tokens,
            options.block_tokens > 0
                && options.block_tokens.is_multiple_of(16)
                && options.block_tokens <= 1024,
            "must be a multiple of 16 up to 1024",
        ),
        (
            "max_running",
            options.max_running,
            (1..=4096).contains(&options.max_running),
            "must be from 1 to 4096",
        ),
        (
            "max_batch_tokens",
            options.max_batch_tokens,
            (1..=1 << 16).contains(&options.max_batch_tokens),
            "must be from 1 to 65536",
        ),
    ] {
        if !is_right {
            let (value, why) = (u64::from(value), why.to_owned());
            return Err(CudaError::Option { option, value, why });
        }
    }
    let (cells, scale) = cell_bytes(options.cache, config.head_dim);
    let positions = u64::from(options.block_tokens) * config.layer_count as u64;
    let block_bytes = 2 * positions * config.kv_head_count as u64 * (cells + scale);
    let blocks = options.kv_bytes / block_bytes;
    // A place in a layer is a 32-bit number in the kernels.
    if blocks == 0 || blocks * u64::from(options.block_tokens) >= 1 << 31 {
        return Err(CudaError::Option {
            option: "kv_bytes",
            value: options.kv_bytes,
            why: format!(
                "must hold at least one block of {block_bytes} bytes and fewer than 2^31 positions"
            ),
        });
    }
    let context_tokens = match options.context_tokens {
        0 => config.context_tokens,
        tokens => tokens.min(config.context_tokens),
    };
    Ok(BackendLimits {
        blocks: u32::try_from(blocks).expect("bounded above"),
        block_tokens: options.block_tokens,
        max_running: options.max_running,
        max_batch_tokens: options.max_batch_tokens,
        context_tokens,
        kv_bytes: blocks * block_bytes,
        // A step that is started before the one before was read cannot guess what follows.
        max_drafts: 0,
    })
}
