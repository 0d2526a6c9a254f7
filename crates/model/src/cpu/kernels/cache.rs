//! Paged keys and values.

use half::{bf16, f16};

use super::Kernels;
use super::attend::HEAD_DIM_MAX;
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
    /// Positions of all heads in one layer.
    fn places(&self) -> usize {
        self.blocks * self.kv_heads * self.block_tokens
    }

    /// Numbers in one layer's keys.
    fn key_cells(&self) -> usize {
        self.places() * self.head_dim
    }

    /// Numbers in one layer's values.
    fn value_cells(&self) -> usize {
        self.places() * self.head_dim.next_multiple_of(LANES)
    }

    /// Scales of one layer's keys, and as many of its values.
    fn scales(&self) -> usize {
        match self.kind {
            KvType::Int8 => self.places(),
            KvType::F32 | KvType::Bf16 | KvType::F16 => 0,
        }
    }

    /// Bytes of everything.
    pub(crate) fn bytes(&self) -> usize {
        let cells = (self.key_cells() + self.value_cells()) * self.kind.size();
        self.layers * (cells + 2 * self.scales() * size_of::<f32>())
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
    /// (layers, blocks, `kv_heads`, `block_tokens`) of keys and of values; empty unless cells are scaled
    scales: (Vec<f32>, Vec<f32>),
}

/// keys (layers, blocks, `kv_heads`, `block_tokens` / 16, `head_dim`, 16),
/// values (layers, blocks, `kv_heads`, `block_tokens`, `head_dim` up to a multiple of 16)
struct Pair<C> {
    keys: Vec<C>,
    values: Vec<C>,
}

impl<C: Clone> Pair<C> {
    fn new(shape: &KvShape, zero: C) -> Self {
        Self {
            keys: vec![zero.clone(); shape.layers * shape.key_cells()],
            values: vec![zero; shape.layers * shape.value_cells()],
        }
    }

    fn layer(&self, shape: &KvShape, layer: usize) -> (&[C], &[C]) {
        let (keys, values) = (shape.key_cells(), shape.value_cells());
        (
            &self.keys[layer * keys..][..keys],
            &self.values[layer * values..][..values],
        )
    }

    fn layer_mut(&mut self, shape: &KvShape, layer: usize) -> (&mut [C], &mut [C]) {
        let (keys, values) = (shape.key_cells(), shape.value_cells());
        (
            &mut self.keys[layer * keys..][..keys],
            &mut self.values[layer * values..][..values],
        )
    }
}

enum Store {
    F32(Pair<f32>),
    /// bf16 bits.
    Bf16(Pair<u16>),
    F16(Pair<f16>),
    Int8(Pair<i8>),
}

/// Cached keys and values of one layer, as [`KvCache`] without the layers.
#[derive(Clone, Copy)]
pub(crate) enum Cells<'a> {
    F32(&'a [f32], &'a [f32]),
    Bf16(&'a [u16], &'a [u16]),
    F16(&'a [f16], &'a [f16]),
    /// With the scales of keys and of values.
    Int8(&'a [i8], &'a [i8], &'a [f32], &'a [f32]),
}

impl KvCache {
    /// Zeroed memory, which the system hands out page by page as blocks are first written.
    pub(crate) fn new(shape: KvShape) -> Self {
        assert!(
            shape.block_tokens.is_multiple_of(LANES),
            "blocks are whole groups of positions"
        );
        let cells = match shape.kind {
            KvType::F32 => Store::F32(Pair::new(&shape, 0.0)),
            KvType::Bf16 => Store::Bf16(Pair::new(&shape, 0)),
            KvType::F16 => Store::F16(Pair::new(&shape, f16::ZERO)),
            KvType::Int8 => Store::Int8(Pair::new(&shape, 0)),
        };
        let scales = vec![0.0; shape.layers * shape.scales()];
        Self {
            shape,
            cells,
            scales: (scales.clone(), scales),
        }
    }

    pub(crate) fn shape(&self) -> &KvShape {
        &self.shape
    }

    pub(crate) fn layer(&self, layer: usize) -> Cells<'_> {
        let shape = &self.shape;
        match &self.cells {
            Store::F32(pair) => {
                let (keys, values) = pair.layer(shape, layer);
                Cells::F32(keys, values)
            }
            Store::Bf16(pair) => {
                let (keys, values) = pair.layer(shape, layer);
                Cells::Bf16(keys, values)
            }
            Store::F16(pair) => {
                let (keys, values) = pair.layer(shape, layer);
                Cells::F16(keys, values)
            }
            Store::Int8(pair) => {
                let (keys, values) = pair.layer(shape, layer);
                let count = shape.scales();
                Cells::Int8(
                    keys,
                    values,
                    &self.scales.0[layer * count..][..count],
                    &self.scales.1[layer * count..][..count],
                )
            }
        }
    }

    /// Writes a layer's keys and values of all tokens: `rows` is (tokens, width) with keys (`kv_heads`, `head_dim`) at `key_col` and
    /// values right behind them. Places are all different.
    pub(crate) fn write(
        &mut self,
        (kernels, pool): (&Kernels, &mut Pool),
        layer: usize,
        places: &[KvPlace],
        rows: &[f32],
        columns: Columns,
    ) {
        let shape = self.shape;
        let count = shape.scales();
        let mut scales = (
            &mut self.scales.0[layer * count..][..count],
            &mut self.scales.1[layer * count..][..count],
        );
        let from = (places, rows, columns);
        match &mut self.cells {
            Store::F32(pair) => {
                write(pool, &shape, pair.layer_mut(&shape, layer), from, |x| x);
            }
            Store::Bf16(pair) => {
                write(pool, &shape, pair.layer_mut(&shape, layer), from, |x| {
                    bf16::from_f32(x).to_bits()
                });
            }
            Store::F16(pair) => {
                write(
                    pool,
                    &shape,
                    pair.layer_mut(&shape, layer),
                    from,
                    f16::from_f32,
                );
            }
            Store::Int8(pair) => {
                let cells = pair.layer_mut(&shape, layer);
                write_scaled((kernels, pool), &shape, cells, &mut scales, from);
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

/// Writes what goes to a place: its index, its key and its value.
type Put<'a> = dyn Fn(usize, &[f32], &[f32]) + Sync + 'a;

type From<'a> = (&'a [KvPlace], &'a [f32], Columns);

/// Calls `f` with each token's head, the index of its place, its key and its value; on several threads where there are many.
fn for_heads(pool: &mut Pool, shape: &KvShape, (places, rows, columns): From<'_>, f: &Put<'_>) {
    let kv_width = shape.kv_heads * shape.head_dim;
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
            let (keys, values) = row.split_at(kv_width);
            for head in 0..shape.kv_heads {
                f(
                    (block * shape.kv_heads + head) * shape.block_tokens + offset,
                    &keys[head * shape.head_dim..][..shape.head_dim],
                    &values[head * shape.head_dim..][..shape.head_dim],
                );
            }
        }
    });
}

/// Writes one place's key and value.
///
/// # Safety
/// The place is inside the layer, and nobody else writes or reads it.
#[inline(always)]
unsafe fn put<T: Copy, C: Copy>(
    shape: &KvShape,
    (keys, values): (*mut C, *mut C),
    place: usize,
    (key, value): (&[T], &[T]),
    convert: impl Fn(T) -> C,
) {
    let padded = shape.head_dim.next_multiple_of(LANES);
    // SAFETY: the caller's; coordinates are inside their bounds.
    unsafe {
        let keys = keys.add(place / LANES * LANES * shape.head_dim + place % LANES);
        let values = values.add(place * padded);
        for (d, (&key, &value)) in key.iter().zip(value).enumerate() {
            keys.add(d * LANES).write(convert(key));
            values.add(d).write(convert(value));
        }
    }
}

fn write<C: Copy + Send + Sync>(
    pool: &mut Pool,
    shape: &KvShape,
    (keys, values): (&mut [C], &mut [C]),
    from: From<'_>,
    convert: impl Fn(f32) -> C + Sync,
) {
    let (keys, values) = (super::Shared::of(keys), super::Shared::of(values));
    for_heads(pool, shape, from, &|place, key, value| {
        // SAFETY: inside the layer's cells as checked; no other token has this place.
        unsafe {
            let cells = (keys.get(), values.get());
            put(shape, cells, place, (key, value), &convert);
        }
    });
}

/// Rounds each key and each value to eight bits with a scale of its own.
fn write_scaled(
    (kernels, pool): (&Kernels, &mut Pool),
    shape: &KvShape,
    (keys, values): (&mut [i8], &mut [i8]),
    scales: &mut (&mut [f32], &mut [f32]),
    from: From<'_>,
) {
    let cells = (super::Shared::of(keys), super::Shared::of(values));
    let scales = (super::Shared::of(scales.0), super::Shared::of(scales.1));
    for_heads(pool, shape, from, &|place, key, value| {
        let mut rounded = ([0; HEAD_DIM_MAX], [0; HEAD_DIM_MAX]);
        let rounded = (&mut rounded.0[..key.len()], &mut rounded.1[..key.len()]);
        // SAFETY: inside the layer's cells and scales as checked; no other token has this place.
        unsafe {
            let key_scale = kernels.round_i8(key, rounded.0);
            let value_scale = kernels.round_i8(value, rounded.1);
            scales.0.get().add(place).write(key_scale);
            scales.1.get().add(place).write(value_scale);
            let cells = (cells.0.get(), cells.1.get());
            put(shape, cells, place, (rounded.0, rounded.1), |x| x);
        }
    });
}
