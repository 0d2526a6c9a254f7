//! Attention of a batch, tile by tile.

use weir_scheduler::BlockId;

use super::attend::{AttendArgs, QUERIES_MAX, Query};
use super::cache::Cells;
use super::{Kernels, Shared, lanes};
use crate::cpu::pool::Pool;

/// What attention needs to know of a layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerView<'a> {
    pub cells: Cells<'a>,
    /// All rows' block tables.
    pub tables: &'a [BlockId],
    pub head_count: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Numbers per token in `q`.
    pub q_width: usize,
    pub block_tokens: usize,
    /// Positions a query sees, itself included; `None` is all.
    pub window: Option<usize>,
}

/// Queries that go through the cache together: some tokens of one row, some heads of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// First token in the batch, and its position in the sequence.
    pub first_token: u32,
    pub position: u32,
    pub token_count: u32,
    pub kv_head: u32,
    /// First head inside the group of `kv_head`.
    pub first_head: u32,
    pub head_count: u32,
    /// Where the row's block table begins among all tables.
    pub table: u32,
    /// Where only a chunk of the positions is computed.
    pub split: Option<Split>,
}

/// One chunk of a tile that several tasks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub chunk: u32,
    /// Chunks of each of the tile's queries.
    pub chunks: u32,
    /// Place of the first query's first chunk among all parts; queries lie one behind the other.
    pub first_part: u32,
}

/// A query whose chunks are to be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    pub token: u32,
    pub head: u32,
    pub first_part: u32,
    pub chunks: u32,
}

/// What one pass of attention reads and writes.
pub(crate) struct Attention<'a> {
    pub tiles: &'a [Tile],
    pub merges: &'a [Merge],
    /// (tokens, `q_width`)
    pub q: &'a [f32],
    /// (parts, 2 + `head_dim` up to a multiple of 16)
    pub parts: &'a mut [f32],
    /// (tokens, heads, `head_dim`)
    pub out: &'a mut [f32],
}

impl Kernels {
    /// Attention of one tile of queries.
    ///
    /// # Safety
    /// `out` (tokens, heads, `head_dim`) is good for the tile's tokens and heads, `parts` for its parts, and nobody else touches those.
    unsafe fn attend(
        &self,
        layer: &LayerView<'_>,
        tile: &Tile,
        (q, out, parts): (&[f32], Shared<f32>, Shared<f32>),
    ) {
        let padded_dim = layer.head_dim.next_multiple_of(lanes::LANES);
        // SAFETY: the caller's.
        let (queries, count) = unsafe { queries(layer, tile, (q, out, parts)) };
        let scale = 1.0 / (layer.head_dim as f32).sqrt();
        macro_rules! run {
            ($keys:expr, $values:expr, $scales:expr, $attend:expr) => {{
                let args = AttendArgs {
                    keys: $keys.as_ptr(),
                    values: $values.as_ptr(),
                    scales: $scales,
                    table: &layer.tables[tile.table as usize..],
                    kv_heads: layer.kv_heads,
                    head: tile.kv_head as usize,
                    block_tokens: layer.block_tokens,
                    head_dim: layer.head_dim,
                    padded_dim,
                    scale,
                    part: tile
                        .split
                        .map(|split| (split.chunk as usize, split.chunk as usize + 1)),
                };
                // SAFETY: the table's blocks are inside the cache and cover the positions, checked when the batch came in;
                // the kernels are only made for a machine that has the instructions.
                unsafe { $attend(&args, &queries[..count]) };
            }};
        }
        let none = (std::ptr::null(), std::ptr::null());
        match layer.cells {
            Cells::F32(keys, values) => run!(keys, values, none, self.attend_f32),
            Cells::Bf16(keys, values) => run!(keys, values, none, self.attend_bf16),
            Cells::F16(keys, values) => run!(keys, values, none, self.attend_f16),
            Cells::Int8(keys, values, key_scales, value_scales) => {
                let scales = (key_scales.as_ptr(), value_scales.as_ptr());
                run!(keys, values, scales, self.attend_int8);
            }
        }
    }

    /// Attention of all tiles, which share no (token, head, chunk), and then the merging of chunks.
    pub(crate) fn attend_all(
        &self,
        pool: &mut Pool,
        layer: &LayerView<'_>,
        attention: Attention<'_>,
    ) {
        let Attention {
            tiles,
            merges,
            q,
            parts,
            out,
        } = attention;
        let part_width = 2 + layer.head_dim.next_multiple_of(lanes::LANES);
        let part_count = parts.len() / part_width;
        let tokens = out.len() / (layer.head_count * layer.head_dim);
        let shared = (q, Shared::of(&mut *out), Shared::of(&mut *parts));
        pool.run(tiles.len(), &|index| {
            let tile = &tiles[index];
            let queries = (tile.token_count * tile.head_count) as usize;
            assert!(
                (tile.first_token + tile.token_count) as usize <= tokens,
                "a tile's tokens are in the batch"
            );
            assert!(queries <= QUERIES_MAX, "a tile fits the kernel");
            assert!(
                tile.split.is_none_or(|split| split.chunk < split.chunks
                    && split.first_part as usize + queries * split.chunks as usize <= part_count),
                "a tile's parts are there"
            );
            // SAFETY: inside `out` and `parts` as just checked; tiles are disjoint by this function's contract.
            unsafe { self.attend(layer, tile, shared) };
        });
        for merge in merges {
            let (first, chunks) = (merge.first_part as usize, merge.chunks as usize);
            let query = merge.token as usize * layer.head_count + merge.head as usize;
            // SAFETY: the table is only made for a machine that has the instructions.
            unsafe {
                (self.merge_parts)(
                    &parts[first * part_width..][..chunks * part_width],
                    part_width - 2,
                    &mut out[query * layer.head_dim..][..layer.head_dim],
                );
            }
        }
    }
}

/// The queries of a tile, and how many they are.
///
/// # Safety
/// As [`Kernels::attend`].
unsafe fn queries(
    layer: &LayerView<'_>,
    tile: &Tile,
    (q, out, parts): (&[f32], Shared<f32>, Shared<f32>),
) -> ([Query; QUERIES_MAX], usize) {
    let padded_dim = layer.head_dim.next_multiple_of(lanes::LANES);
    let group = layer.head_count / layer.kv_heads;
    let empty = Query {
        q: std::ptr::null(),
        out: std::ptr::null_mut(),
        first: 0,
        last: 0,
    };
    let mut queries = [empty; QUERIES_MAX];
    let mut count = 0;
    for token in tile.first_token..tile.first_token + tile.token_count {
        let last = (tile.position + token - tile.first_token) as usize;
        let first = layer
            .window
            .map_or(0, |window| (last + 1).saturating_sub(window));
        for head in tile.first_head..tile.first_head + tile.head_count {
            let head = (tile.kv_head as usize) * group + head as usize;
            let from = token as usize * layer.q_width + head * layer.head_dim;
            // SAFETY: the caller's for `out` and `parts`; the slice checks `q`.
            let out = unsafe {
                match tile.split {
                    None => out
                        .get()
                        .add((token as usize * layer.head_count + head) * layer.head_dim),
                    Some(split) => {
                        let part = split.first_part as usize
                            + count * split.chunks as usize
                            + split.chunk as usize;
                        parts.get().add(part * (2 + padded_dim))
                    }
                }
            };
            queries[count] = Query {
                q: q[from..][..layer.head_dim].as_ptr(),
                out,
                first,
                last,
            };
            count += 1;
        }
    }
    (queries, count)
}
