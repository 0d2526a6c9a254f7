//! What a pass writes, and how its attention is cut into tiles.

use weir_scheduler::{DRAFTS_MAX, Row};

use super::kernels::{CHUNK, KvPlace, Merge, QUERIES_MAX, QuantRows, Split, Tile};
use crate::backend::BackendLimits;
use crate::config::ModelConfig;

/// Rows whose logits are computed together: bounds the memory of logits, and is a multiple of the rows a weight is read for.
pub(super) const LOGIT_ROWS_MAX: usize = 32;

/// Rows whose attention is split into chunks, so that a few long sequences keep all threads busy.
const SPLIT_ROWS_MAX: usize = 8;
/// Most chunks of all queries that are computed apart.
const PARTS_MAX: usize = 1 << 15;

/// Everything a pass writes, allocated once for the largest batch.
pub(super) struct Buffers {
    /// (tokens, hidden) the residual stream
    pub(super) x: Vec<f32>,
    /// (tokens, hidden) normalised
    pub(super) normed: Vec<f32>,
    /// (tokens, queries | keys | values)
    pub(super) qkv: Vec<f32>,
    /// (tokens, heads, `head_dim`)
    pub(super) attended: Vec<f32>,
    /// (tokens, gate | up)
    pub(super) gate_up: Vec<f32>,
    /// (tokens, cosines | sines) of `head_dim` / 2 angles
    pub(super) rotations: Vec<f32>,
    pub(super) places: Vec<KvPlace>,
    pub(super) tiles: Vec<Tile>,
    pub(super) merges: Vec<Merge>,
    /// (parts, 2 + `head_dim` up to a multiple of 16) attention of chunks that are computed apart
    pub(super) parts: Vec<f32>,
    /// Activations of a product with quantized weights.
    pub(super) rounded: QuantRows,
    /// (logit rows, hidden)
    pub(super) last: Vec<f32>,
    /// (logit rows, vocabulary)
    pub(super) logits: Vec<f32>,
    /// (`head_dim` / 2)
    pub(super) frequencies: Vec<f32>,
}

impl Buffers {
    pub(super) fn new(config: &ModelConfig, limits: &BackendLimits) -> Self {
        let (max_tokens, max_rows) = (
            limits.max_batch_tokens as usize,
            limits.max_running as usize,
        );
        let chunks = (limits.context_tokens as usize).div_ceil(CHUNK);
        let parts = (SPLIT_ROWS_MAX * config.head_count * chunks).min(PARTS_MAX);
        // Rows with guesses are sampled at several places.
        let rows = (max_rows * (1 + DRAFTS_MAX))
            .min(LOGIT_ROWS_MAX)
            .min(max_tokens);
        let heads = config.head_count * config.head_dim;
        Self {
            x: vec![0.0; max_tokens * config.hidden_size],
            normed: vec![0.0; max_tokens * config.hidden_size],
            qkv: vec![0.0; max_tokens * (heads + 2 * config.kv_width())],
            attended: vec![0.0; max_tokens * heads],
            gate_up: vec![0.0; max_tokens * 2 * config.intermediate_size],
            rotations: vec![0.0; max_tokens * config.head_dim],
            places: Vec::with_capacity(max_tokens),
            tiles: Vec::with_capacity(
                max_tokens * config.kv_head_count * config.group_size().div_ceil(QUERIES_MAX)
                    + parts,
            ),
            merges: Vec::with_capacity(parts),
            parts: vec![0.0; parts * (2 + config.head_dim.next_multiple_of(16))],
            rounded: QuantRows::new(
                max_tokens.max(rows),
                config.hidden_size.max(heads).max(config.intermediate_size),
            ),
            last: vec![0.0; rows * config.hidden_size],
            logits: vec![0.0; rows * config.vocab_size],
            frequencies: config.rope.inverse_frequencies(config.head_dim),
        }
    }
}

impl Buffers {
    /// Tiles of one row.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "counts are bounded by the batch's u32 fields"
    )]
    pub(super) fn add_tiles(&mut self, row: &Row, config: &ModelConfig, rows: usize) {
        let group = config.group_size() as u32;
        let heads = group.min(QUERIES_MAX as u32);
        let tokens = QUERIES_MAX as u32 / heads;
        let chunks = (row.start + row.token_count).div_ceil(CHUNK as u32);
        // Whether it is split changes nothing in the results.
        let is_split = row.token_count == 1 && chunks > 1 && rows <= SPLIT_ROWS_MAX;
        // The last tokens see the most positions: what takes longest begins first.
        for at in (0..row.token_count).step_by(tokens as usize).rev() {
            for kv_head in 0..config.kv_head_count as u32 {
                for first_head in (0..group).step_by(heads as usize) {
                    let tile = Tile {
                        first_token: row.token_offset + at,
                        position: row.start + at,
                        token_count: tokens.min(row.token_count - at),
                        kv_head,
                        first_head,
                        head_count: heads.min(group - first_head),
                        table: row.block_offset,
                        split: None,
                    };
                    if !(is_split && self.split(tile, group, chunks, config.head_dim)) {
                        self.tiles.push(tile);
                    }
                }
            }
        }
    }

    /// Adds a tile of one token chunk by chunk; false where there is no room for the parts.
    fn split(&mut self, mut tile: Tile, group: u32, chunks: u32, head_dim: usize) -> bool {
        let end = |merge: &Merge| merge.first_part + merge.chunks;
        let first_part = self.merges.last().map_or(0, end);
        let parts = (first_part + tile.head_count * chunks) as usize;
        if parts * (2 + head_dim.next_multiple_of(16)) > self.parts.len() {
            return false;
        }
        for chunk in 0..chunks {
            tile.split = Some(Split {
                chunk,
                chunks,
                first_part,
            });
            self.tiles.push(tile);
        }
        for at in 0..tile.head_count {
            self.merges.push(Merge {
                token: tile.first_token,
                head: tile.kv_head * group + tile.first_head + at,
                first_part: first_part + at * chunks,
                chunks,
            });
        }
        true
    }
}
