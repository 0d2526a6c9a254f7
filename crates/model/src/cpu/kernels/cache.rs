//! Paged keys and values.

use super::lanes::LANES;
use crate::cpu::KvType;
use crate::cpu::pool::Pool;

/// Sizes of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvShape {
    pub layers: usize,
    pub blocks: usize,
    pub block_tokens: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub kind: KvType,
}

impl KvShape {
    /// Numbers in one layer's keys.
    fn key_cells(&self) -> usize {
        self.blocks * self.kv_heads * self.block_tokens * self.head_dim
    }

    /// Numbers in one layer's values.
    fn value_cells(&self) -> usize {
        self.blocks * self.kv_heads * self.block_tokens * self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of everything.
    pub(crate) fn bytes(&self) -> usize {
        self.layers * (self.key_cells() + self.value_cells()) * self.kind.size()
    }
}

/// Where a token of the batch lies in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvPlace {
    pub block: u32,
    /// Position inside the block.
    pub offset: u32,
}

/// Keys and values of all layers. Keys lie so that sixteen positions of one coordinate are one vector, which makes scores
/// without sums across lanes; values lie by position.
pub(crate) struct KvCache {
    shape: KvShape,
    cells: Store,
}

enum Store {
    /// keys (layers, blocks, `kv_heads`, `block_tokens` / 16, `head_dim`, 16),
    /// values (layers, blocks, `kv_heads`, `block_tokens`, `head_dim` up to a multiple of 16)
    F32 { keys: Vec<f32>, values: Vec<f32> },
    /// The same shapes in bf16 bits.
    Bf16 { keys: Vec<u16>, values: Vec<u16> },
}

/// Cached keys and values of one layer.
#[derive(Clone, Copy)]
pub(crate) enum Cells<'a> {
    /// As [`KvCache`] without the layers.
    F32 { keys: &'a [f32], values: &'a [f32] },
    /// As [`KvCache`] without the layers.
    Bf16 { keys: &'a [u16], values: &'a [u16] },
}

impl KvCache {
    /// Zeroed memory, which the system hands out page by page as blocks are first written.
    pub(crate) fn new(shape: KvShape) -> Self {
        assert!(
            shape.block_tokens.is_multiple_of(LANES),
            "blocks are whole groups of positions"
        );
        let (keys, values) = (
            shape.layers * shape.key_cells(),
            shape.layers * shape.value_cells(),
        );
        let cells = match shape.kind {
            KvType::F32 => Store::F32 {
                keys: vec![0.0; keys],
                values: vec![0.0; values],
            },
            KvType::Bf16 => Store::Bf16 {
                keys: vec![0; keys],
                values: vec![0; values],
            },
        };
        Self { shape, cells }
    }

    pub(crate) fn shape(&self) -> &KvShape {
        &self.shape
    }

    pub(crate) fn layer(&self, layer: usize) -> Cells<'_> {
        let (keys_len, values_len) = (self.shape.key_cells(), self.shape.value_cells());
        match &self.cells {
            Store::F32 { keys, values } => Cells::F32 {
                keys: &keys[layer * keys_len..][..keys_len],
                values: &values[layer * values_len..][..values_len],
            },
            Store::Bf16 { keys, values } => Cells::Bf16 {
                keys: &keys[layer * keys_len..][..keys_len],
                values: &values[layer * values_len..][..values_len],
            },
        }
    }

    /// Writes a layer's keys and values of all tokens: `rows` is (tokens, width) with keys (`kv_heads`, `head_dim`) at `key_col` and
    /// values right behind them. Places are all different.
    pub(crate) fn write(
        &mut self,
        pool: &mut Pool,
        layer: usize,
        places: &[KvPlace],
        rows: &[f32],
        columns: Columns,
    ) {
        let shape = self.shape;
        let (keys_len, values_len) = (shape.key_cells(), shape.value_cells());
        match &mut self.cells {
            Store::F32 { keys, values } => {
                let (keys, values) = (
                    &mut keys[layer * keys_len..][..keys_len],
                    &mut values[layer * values_len..][..values_len],
                );
                write(pool, &shape, (keys, values), (places, rows, columns), |x| x);
            }
            Store::Bf16 { keys, values } => {
                let (keys, values) = (
                    &mut keys[layer * keys_len..][..keys_len],
                    &mut values[layer * values_len..][..values_len],
                );
                write(pool, &shape, (keys, values), (places, rows, columns), |x| {
                    half::bf16::from_f32(x).to_bits()
                });
            }
        }
    }
}

/// Where keys and values lie in a row of activations.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub width: usize,
    pub key_col: usize,
}

fn write<C: Copy + Send + Sync>(
    pool: &mut Pool,
    shape: &KvShape,
    (keys, values): (&mut [C], &mut [C]),
    (places, rows, columns): (&[KvPlace], &[f32], Columns),
    convert: impl Fn(f32) -> C + Sync,
) {
    let padded = shape.head_dim.next_multiple_of(LANES);
    let kv_width = shape.kv_heads * shape.head_dim;
    let (keys_out, values_out) = (super::Shared::of(keys), super::Shared::of(values));
    let per_task = places.len().div_ceil(pool.thread_count() * 2).max(8);
    pool.run(places.len().div_ceil(per_task), &|task| {
        for token in task * per_task..((task + 1) * per_task).min(places.len()) {
            let place = places[token];
            let (block, offset) = (place.block as usize, place.offset as usize);
            assert!(
                block < shape.blocks && offset < shape.block_tokens,
                "a place is inside the cache"
            );
            let row = &rows[token * columns.width + columns.key_col..][..2 * kv_width];
            for head in 0..shape.kv_heads {
                let start = (block * shape.kv_heads + head) * shape.block_tokens;
                let key_at = (start + offset / LANES * LANES) * shape.head_dim + offset % LANES;
                let value_at = (start + offset) * padded;
                for d in 0..shape.head_dim {
                    let (key, value) = (
                        row[head * shape.head_dim + d],
                        row[kv_width + head * shape.head_dim + d],
                    );
                    // SAFETY: inside the layer's cells because block, head, offset and coordinate are inside their bounds; no
                    // other token has this place.
                    unsafe {
                        keys_out.get().add(key_at + d * LANES).write(convert(key));
                        values_out.get().add(value_at + d).write(convert(value));
                    }
                }
            }
        }
    });
}
