//! What the backend may use, and what follows for its limits.

use weir_model::backend::{BackendLimits, check_sizes};
use weir_model::config::ModelConfig;

use crate::CudaError;
use crate::kernels::CacheType;

/// Most numbers of a head that the kernels hold.
const HEAD_DIM_MAX: usize = 256;

/// Most blocks of a grid beside its first direction: rows of a step are counted there.
const GRID_MAX: u32 = 65_535;

/// What the backend may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Memory for cached keys and values; `None` is most of what the device has left beside weights and what a step needs.
    pub kv_bytes: Option<u64>,
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

/// Bytes of a block in all layers.
pub(crate) fn block_bytes(config: &ModelConfig, options: &CudaOptions) -> u64 {
    let (cells, scale) = cell_bytes(options.cache, config.head_dim);
    let positions = u64::from(options.block_tokens) * config.layer_count as u64;
    2 * positions * config.kv_head_count as u64 * (cells + scale)
}

/// What fits into so many bytes of keys and values.
///
/// # Errors
/// An option is out of bounds, or the kernels do not hold the model.
pub(crate) fn limits(
    config: &ModelConfig,
    options: &CudaOptions,
    kv_bytes: u64,
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
    let refuse = |option, value, why: String| CudaError::Option { option, value, why };
    check_sizes(
        options.block_tokens,
        options.max_running,
        options.max_batch_tokens,
    )
    .map_err(|bad| refuse(bad.option, bad.value, bad.why.to_owned()))?;
    if options.max_batch_tokens > GRID_MAX {
        let why = format!(
            "must be at most {GRID_MAX} on a GPU, which starts no more blocks of threads side by side"
        );
        return Err(refuse(
            "max_batch_tokens",
            options.max_batch_tokens.into(),
            why,
        ));
    }
    let block_bytes = block_bytes(config, options);
    let blocks = kv_bytes / block_bytes;
    // A place in a layer is a 32-bit number in the kernels.
    if blocks == 0 || blocks * u64::from(options.block_tokens) >= 1 << 31 {
        let why = format!(
            "must hold at least one block of {block_bytes} bytes and fewer than 2^31 positions"
        );
        return Err(refuse("kv_bytes", kv_bytes, why));
    }
    Ok(BackendLimits {
        blocks: u32::try_from(blocks).expect("bounded above"),
        block_tokens: options.block_tokens,
        max_running: options.max_running,
        max_batch_tokens: options.max_batch_tokens,
        context_tokens: config.context_at_most(options.context_tokens),
        kv_bytes: blocks * block_bytes,
        // A step that is started before the one before was read cannot guess what follows.
        max_drafts: 0,
        scores_prompts: false,
    })
}
