//! What the backend may use, and what follows for its limits.

use super::CpuError;
use super::kernels::{KvShape, Level};
use crate::backend::{BackendLimits, check_sizes};
use crate::config::ModelConfig;
use crate::quant::QuantKind;

/// Storage format of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    F32,
    /// Half the memory, rounded to 8 bits of mantissa.
    Bf16,
    /// Half the memory, rounded to 11 bits of mantissa; beyond 65,504 infinite.
    F16,
    /// A quarter of the memory: integers with a scale for each position and head.
    Int8,
}

impl KvType {
    /// Bytes per number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// What becomes of the weights when they are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightFormat {
    /// They stay mapped as they are.
    #[default]
    Stored,
    /// Matrices are quantized, where the artifact has not done that.
    Quantized(QuantKind),
}

/// What the backend may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included; 0 is one per core.
    pub threads: usize,
    /// Memory for cached keys and values.
    pub kv_bytes: u64,
    /// Their format.
    pub kv_type: KvType,
    /// Positions per block; a multiple of 16.
    pub block_tokens: u32,
    /// Sequences at a time.
    pub max_running: u32,
    /// Tokens per step.
    pub max_batch_tokens: u32,
    /// Positions per sequence; 0 is what the model was trained for, which is also the upper bound.
    pub context_tokens: u32,
    /// What becomes of the weights.
    pub weights: WeightFormat,
    /// Best instructions to use.
    pub level: Level,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            kv_bytes: 256 << 20,
            kv_type: KvType::F32,
            block_tokens: 16,
            max_running: 32,
            max_batch_tokens: 512,
            context_tokens: 0,
            weights: WeightFormat::Stored,
            level: Level::Amx,
        }
    }
}

pub(super) fn kv_shape(config: &ModelConfig, options: &CpuOptions, blocks: usize) -> KvShape {
    KvShape {
        layers: config.layer_count,
        blocks,
        block_tokens: options.block_tokens as usize,
        kv_heads: config.kv_head_count,
        head_dim: config.head_dim,
        kind: options.kv_type,
    }
}

/// Bytes of a block's keys and values in all layers.
pub(crate) fn kv_block_bytes(config: &ModelConfig, options: &CpuOptions) -> u64 {
    kv_shape(config, options, 1).bytes() as u64
}

pub(super) fn limits(
    config: &ModelConfig,
    options: &CpuOptions,
) -> Result<BackendLimits, CpuError> {
    let refuse = |option, value, why: String| CpuError::Option { option, value, why };
    check_sizes(
        options.block_tokens,
        options.max_running,
        options.max_batch_tokens,
    )
    .map_err(|bad| refuse(bad.option, bad.value, bad.why.to_owned()))?;
    let block_bytes = kv_block_bytes(config, options);
    let blocks = options.kv_bytes / block_bytes;
    if blocks == 0 || blocks > u64::from(u32::MAX) {
        let why =
            format!("must hold at least one block of {block_bytes} bytes and fewer than 2^32");
        return Err(refuse("kv_bytes", options.kv_bytes, why));
    }
    Ok(BackendLimits {
        blocks: u32::try_from(blocks).expect("bounded above"),
        block_tokens: options.block_tokens,
        max_running: options.max_running,
        max_batch_tokens: options.max_batch_tokens,
        context_tokens: config.context_at_most(options.context_tokens),
        kv_bytes: blocks * block_bytes,
        max_drafts: u32::MAX,
        scores_prompts: true,
    })
}
