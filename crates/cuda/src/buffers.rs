//! Memory that a pass writes, and the cache of keys and values.

use weir_model::backend::BackendLimits;
use weir_model::config::ModelConfig;

use crate::device::{Address, Device, DeviceError};
use crate::kernels::CacheType;
use crate::options::cell_bytes;

/// Heads that share a key and that one block of decode attention holds.
pub(crate) const PART_HEADS: usize = 16;
/// Rows from which quantized weights are written out for the library's product.
pub(crate) const WRITE_OUT_ROWS: usize = 256;
/// Most shares that a sequence's positions are split into.
const SPLITS_MAX: usize = 32;

/// Keys and values of one layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerCache {
    pub keys: Address,
    pub values: Address,
    pub key_scales: Address,
    pub value_scales: Address,
}

/// Memory that a pass writes, made once for the largest batch.
pub(crate) struct Buffers {
    /// (tokens, hidden) f32 the residual stream
    pub x: Address,
    /// (tokens, hidden) f32 what is added to it next
    pub delta: Address,
    /// (tokens, hidden) activations
    pub normed: Address,
    /// (tokens, queries | keys | values) f32
    pub qkv: Address,
    /// (tokens, heads, `head_dim`) activations: queries, then what attention made of them
    pub q: Address,
    pub attended: Address,
    /// (tokens, gate | up) activations, and (tokens, intermediate) of what they make
    pub gate_up: Address,
    pub inner: Address,
    /// (rows, heads, splits, `head_dim` + 2) f32
    pub parts: Address,
    /// (sampling rows, hidden) activations
    pub last: Address,
    /// (outputs, inputs) of the largest layer's matrix, activations; only for quantized weights
    pub written_out: Address,
    /// (slots) u32 tokens that were sampled last
    pub last_tokens: Address,
    /// (positions, `head_dim` / 2, cosine | sine) f32
    pub angles: Address,
    pub caches: Vec<LayerCache>,
}

impl Buffers {
    pub(crate) fn new(
        device: &mut impl Device,
        config: &ModelConfig,
        limits: &BackendLimits,
        (cache, is_quantized): (CacheType, bool),
    ) -> Result<Self, DeviceError> {
        let rows = limits.max_running as usize;
        let tokens = rows.max(limits.max_batch_tokens as usize);
        let heads = config.head_count * config.head_dim;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let multiprocessors = device.properties().multiprocessors as usize;
        let split_rows = (1..=rows).map(|rows| rows * splits(config, multiprocessors, rows));
        let parts = split_rows.max().unwrap_or(1) * config.head_count * (config.head_dim + 2);
        let largest = (heads + 2 * config.kv_width()).max(2 * inner).max(hidden);
        let written_out = if is_quantized && tokens >= WRITE_OUT_ROWS {
            largest * hidden.max(inner).max(heads)
        } else {
            0
        };
        let mut room = |count: usize, size: usize| {
            device.allocate("what a step computes", (count.max(1) * size) as u64)
        };
        let buffers = Self {
            x: room(tokens * hidden, 4)?,
            delta: room(tokens * hidden, 4)?,
            normed: room(tokens * hidden, 2)?,
            qkv: room(tokens * (heads + 2 * config.kv_width()), 4)?,
            q: room(tokens * heads, 2)?,
            attended: room(tokens * heads, 2)?,
            gate_up: room(tokens * 2 * inner, 2)?,
            inner: room(tokens * inner, 2)?,
            parts: room(parts, 4)?,
            last: room(rows * hidden, 2)?,
            written_out: room(written_out, 2)?,
            last_tokens: room(rows, 4)?,
            angles: room(limits.context_tokens as usize * config.head_dim, 4)?,
            caches: Vec::new(),
        };
        let (cells, scale) = cell_bytes(cache, config.head_dim);
        let places =
            u64::from(limits.blocks) * u64::from(limits.block_tokens) * config.kv_head_count as u64;
        let mut room = |bytes: u64| match bytes {
            0 => Ok(Address::NONE),
            bytes => device.allocate("keys and values", bytes),
        };
        let mut caches = Vec::new();
        for _ in 0..config.layer_count {
            caches.push(LayerCache {
                keys: room(places * cells)?,
                values: room(places * cells)?,
                key_scales: room(places * scale)?,
                value_scales: room(places * scale)?,
            });
        }
        Ok(Self { caches, ..buffers })
    }

    /// Writes what does not change from step to step.
    pub(crate) fn fill(
        &self,
        device: &mut impl Device,
        config: &ModelConfig,
        context_tokens: u32,
    ) -> Result<(), DeviceError> {
        device.write(self.angles, &angles(config, context_tokens))
    }
}

/// Cosines and sines of all positions: the angle in f32 as the reference has it, its functions in f64 so that they are exact for it.
#[expect(clippy::cast_possible_truncation, reason = "angles are f32")]
fn angles(config: &ModelConfig, context_tokens: u32) -> Vec<u8> {
    let frequencies = config.rope.inverse_frequencies(config.head_dim);
    let mut bytes = Vec::with_capacity(context_tokens as usize * config.head_dim * 4);
    for position in 0..context_tokens {
        for frequency in &frequencies {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            bytes.extend((cos as f32).to_le_bytes());
            bytes.extend((sin as f32).to_le_bytes());
        }
    }
    bytes
}

/// Shares that the positions of each sequence are split into, so that twice as many blocks of threads run as there are multiprocessors.
pub(crate) fn splits(config: &ModelConfig, multiprocessors: usize, rows: usize) -> usize {
    let blocks = rows * config.kv_head_count * config.group_size().div_ceil(PART_HEADS);
    (2 * multiprocessors).div_ceil(blocks).clamp(1, SPLITS_MAX)
}
