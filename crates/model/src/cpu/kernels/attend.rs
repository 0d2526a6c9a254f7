//! Attention of a few queries over one key and value head, through a block table.
//!
//! Positions go by in chunks that begin at multiples of [`CHUNK`]: all scores of a chunk, its maximum, its probabilities and their sum,
//! then the values with the accumulators in registers. Chunks are merged in order (online softmax, arXiv 1805.02867). A query's result
//! depends on its position and on what is cached, not on how tokens came in, on block size, or on how many threads computed the chunks.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lanes::{LANES, Lanes, exp};

/// Widest head the accumulators on the stack hold.
pub(crate) const HEAD_DIM_MAX: usize = 512;
/// Queries that share one pass over the keys.
pub(crate) const QUERIES_MAX: usize = 14;
/// Positions whose probabilities are computed together.
pub(crate) const CHUNK: usize = 256;

/// Storage format of keys and values.
pub(super) trait Cell: Copy {
    /// Whether each position has scales.
    const SCALED: bool = false;

    /// Sixteen elements.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
}

impl Cell for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from) }
    }
}

/// bf16 bits.
impl Cell for u16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_bf16(from) }
    }
}

impl Cell for half::f16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's; the type is 16 bits.
        unsafe { V::load_f16(from.cast()) }
    }
}

/// Multiples of the position's scale.
impl Cell for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_i8(from) }
    }
}

/// One query: a token's one head.
#[derive(Clone, Copy)]
pub(super) struct Query {
    /// (`head_dim`)
    pub q: *const f32,
    /// (`head_dim`) the result, or (2 + `padded_dim`) a chunk's maximum, sum and values, chunk after chunk
    pub out: *mut f32,
    /// Sees positions `first ..= last`.
    pub first: usize,
    pub last: usize,
}

/// The cache of one layer and one head. Blocks in the table are inside the cache.
#[derive(Clone, Copy)]
pub(super) struct AttendArgs<'a, C> {
    /// (blocks, `kv_heads`, `block_tokens` / 16, `head_dim`, 16)
    pub keys: *const C,
    /// (blocks, `kv_heads`, `block_tokens`, `padded_dim`)
    pub values: *const C,
    /// (blocks, `kv_heads`, `block_tokens`) each, where cells are scaled
    pub scales: (*const f32, *const f32),
    /// Entry i holds positions `i * block_tokens ..`.
    pub table: &'a [weir_scheduler::BlockId],
    pub kv_heads: usize,
    pub head: usize,
    pub block_tokens: usize,
    pub head_dim: usize,
    /// `head_dim` up to a multiple of sixteen
    pub padded_dim: usize,
    pub scale: f32,
    /// The only chunks to compute, and then each by itself; `None`: all, merged and divided by their sum.
    pub part: Option<(usize, usize)>,
}

impl<C> AttendArgs<'_, C> {
    /// Index of a position in the arrays that have one number for each.
    #[inline(always)]
    fn place(&self, position: usize) -> usize {
        let block = self.table[position / self.block_tokens].0 as usize;
        (block * self.kv_heads + self.head) * self.block_tokens + position % self.block_tokens
    }
}

/// What is known of up to `Q` queries.
struct Running<const Q: usize> {
    best: [f32; Q],
    sum: [f32; Q],
    /// (queries, `padded_dim`)
    out: [[MaybeUninit<f32>; HEAD_DIM_MAX]; Q],
}

/// Probabilities of one chunk, by query and position; of scaled cells, times the value's scale.
type Probabilities<const Q: usize> = [[MaybeUninit<f32>; CHUNK]; Q];

/// Computes up to [`QUERIES_MAX`] queries.
///
/// # Safety
/// As [`AttendArgs`], [`Query`] and [`Lanes`]; every query's positions are covered by the table and were written.
#[inline(always)]
pub(super) unsafe fn attend<V: Lanes, C: Cell>(args: &AttendArgs<'_, C>, queries: &[Query]) {
    // SAFETY: the caller's.
    unsafe {
        // Not by recursion, which would lose the instructions of the function around it.
        for queries in queries.chunks(if V::WIDE { QUERIES_MAX } else { 4 }) {
            match (V::WIDE, queries.len()) {
                (_, 1) => attend_some::<V, C, 1>(args, queries),
                (_, 2) => attend_some::<V, C, 2>(args, queries),
                (true, 3) => attend_some::<V, C, 3>(args, queries),
                (false, _) | (_, 4) => attend_some::<V, C, 4>(args, queries),
                (true, 5..=7) => attend_some::<V, C, 7>(args, queries),
                (true, 8) => attend_some::<V, C, 8>(args, queries),
                (true, 9..=12) => attend_some::<V, C, 12>(args, queries),
                (true, _) => attend_some::<V, C, QUERIES_MAX>(args, queries),
            }
        }
    }
}

/// `queries` has at least one and at most `Q`; the last one stands in for the missing ones.
#[inline(always)]
unsafe fn attend_some<V: Lanes, C: Cell, const Q: usize>(
    args: &AttendArgs<'_, C>,
    queries: &[Query],
) {
    let all: [Query; Q] = std::array::from_fn(|q| queries[q.min(queries.len() - 1)]);
    let first = all.iter().map(|query| query.first).min().unwrap_or(0);
    let last = all.iter().map(|query| query.last).max().unwrap_or(0);
    let (begin, end) = args.part.unwrap_or((first / CHUNK, last / CHUNK + 1));
    let mut running = fresh::<V, Q>(args.padded_dim);
    let mut p: Probabilities<Q> = [[MaybeUninit::uninit(); CHUNK]; Q];
    // SAFETY: positions up to `last` are covered by the table.
    unsafe {
        for chunk in begin..end {
            let positions =
                (chunk * CHUNK).max(first / LANES * LANES)..((chunk + 1) * CHUNK).min(last + 1);
            let factors = score::<V, C, Q>(args, &all, positions.clone(), &mut p, &mut running);
            gather::<V, C, Q>(args, positions, &p, factors, &mut running);
            if args.part.is_some() {
                for (q, query) in all.iter().enumerate() {
                    let to = query.out.add((chunk - begin) * (args.padded_dim + 2));
                    to.write(running.best[q]);
                    to.add(1).write(running.sum[q]);
                    let from = running.out[q].as_ptr().cast::<f32>();
                    std::ptr::copy_nonoverlapping(from, to.add(2), args.padded_dim);
                }
                running = fresh::<V, Q>(args.padded_dim);
            }
        }
        if args.part.is_none() {
            for (q, query) in all.iter().enumerate() {
                for d in 0..args.head_dim {
                    let value = running.out[q][d].assume_init();
                    query.out.add(d).write(value / running.sum[q]);
                }
            }
        }
    }
}

#[inline(always)]
fn fresh<V: Lanes, const Q: usize>(padded_dim: usize) -> Running<Q> {
    let mut running = Running {
        best: [f32::NEG_INFINITY; Q],
        sum: [0.0; Q],
        out: [[MaybeUninit::uninit(); HEAD_DIM_MAX]; Q],
    };
    for out in &mut running.out {
        out[..padded_dim].fill(MaybeUninit::new(0.0));
    }
    running
}

/// Factors that bring what is known so far, and a chunk, to their common maximum.
#[inline(always)]
unsafe fn factors<V: Lanes>(best: &mut f32, chunk_best: f32) -> (f32, f32) {
    if chunk_best == f32::NEG_INFINITY {
        // The query sees nothing of this chunk.
        return (1.0, 0.0);
    }
    let common = if chunk_best > *best {
        chunk_best
    } else {
        *best
    };
    let mut lanes = [0f32; LANES];
    lanes[0] = *best - common;
    lanes[1] = chunk_best - common;
    *best = common;
    // SAFETY: the caller's.
    unsafe { exp(V::load(lanes.as_ptr())).store(lanes.as_mut_ptr()) };
    (lanes[0], lanes[1])
}

/// Probabilities of a chunk against its own maximum, and the factors by which the chunk is merged.
#[inline(always)]
unsafe fn score<V: Lanes, C: Cell, const Q: usize>(
    args: &AttendArgs<'_, C>,
    all: &[Query; Q],
    positions: Range<usize>,
    p: &mut Probabilities<Q>,
    running: &mut Running<Q>,
) -> [(f32, f32); Q] {
    let mut most = [const { MaybeUninit::<V>::uninit() }; Q];
    // SAFETY: a group of keys is `head_dim` vectors of sixteen; a chunk's groups fit `p`.
    unsafe {
        for most in &mut most {
            most.write(V::splat(f32::NEG_INFINITY));
        }
        for base in positions.clone().step_by(LANES) {
            let place = args.place(base);
            let keys = args.keys.add(place * args.head_dim);
            let mut scores = [V::splat(0.0); Q];
            for d in 0..args.head_dim {
                let key = C::load::<V>(keys.add(d * LANES));
                for q in 0..Q {
                    scores[q] = V::splat(*all[q].q.add(d)).mul_add(key, scores[q]);
                }
            }
            let mut scale = V::splat(args.scale);
            if C::SCALED {
                scale = V::load(args.scales.0.add(place)).mul(scale);
            }
            for (q, query) in all.iter().enumerate() {
                let mut score = scores[q].mul(scale);
                if base < query.first || base + LANES - 1 > query.last {
                    score = hide(score, base, query);
                }
                let to = p[q].as_mut_ptr().add(base % CHUNK).cast::<f32>();
                score.store(to);
                most[q].write(most[q].assume_init().max(score));
            }
        }
        // A loop, not `array::from_fn`: in a closure that is not inlined every vector instruction is a call.
        let mut merged = [(0.0, 0.0); Q];
        for q in 0..Q {
            let best = most[q].assume_init().max_lane();
            let mut sum = V::splat(0.0);
            // A maximum of nothing: every probability is to be zero, not a difference of infinities.
            let against = V::splat(if best == f32::NEG_INFINITY { 0.0 } else { best });
            for base in positions.clone().step_by(LANES) {
                let at = p[q].as_mut_ptr().add(base % CHUNK).cast::<f32>();
                let mut weights = exp(V::load(at).sub(against));
                sum = sum.add(weights);
                if C::SCALED {
                    weights = weights.mul(V::load(args.scales.1.add(args.place(base))));
                }
                weights.store(at);
            }
            let (old, new) = factors::<V>(&mut running.best[q], best);
            running.sum[q] = sum.sum().mul_add(new, running.sum[q] * old);
            merged[q] = (old, new);
        }
        merged
    }
}

/// Minus infinity where the query does not see the position.
#[inline(always)]
unsafe fn hide<V: Lanes>(score: V, base: usize, query: &Query) -> V {
    let mut lanes = [0f32; LANES];
    // SAFETY: the caller's.
    unsafe {
        score.store(lanes.as_mut_ptr());
        for (lane, score) in lanes.iter_mut().enumerate() {
            if base + lane < query.first || base + lane > query.last {
                *score = f32::NEG_INFINITY;
            }
        }
        V::load(lanes.as_ptr())
    }
}

/// Merges the values of a chunk by their probabilities.
#[inline(always)]
unsafe fn gather<V: Lanes, C: Cell, const Q: usize>(
    args: &AttendArgs<'_, C>,
    positions: Range<usize>,
    p: &Probabilities<Q>,
    factors: [(f32, f32); Q],
    running: &mut Running<Q>,
) {
    let mut d = 0;
    // SAFETY: rows of `padded_dim` elements, which is whole vectors. Few queries take more columns at a time, so that there are
    // enough sums under way.
    unsafe {
        while d < args.padded_dim {
            let left = args.padded_dim - d;
            d += match (V::WIDE, Q) {
                (true, 1..=4) if left >= 64 => {
                    columns::<V, C, Q, 4>(args, d, positions.clone(), p, factors, running)
                }
                (true, 5..=8) | (false, 1..=2) if left >= 32 => {
                    columns::<V, C, Q, 2>(args, d, positions.clone(), p, factors, running)
                }
                _ => columns::<V, C, Q, 1>(args, d, positions.clone(), p, factors, running),
            };
        }
    }
}

/// `D` vectors of columns from `d` on.
#[inline(always)]
unsafe fn columns<V: Lanes, C: Cell, const Q: usize, const D: usize>(
    args: &AttendArgs<'_, C>,
    d: usize,
    positions: Range<usize>,
    p: &Probabilities<Q>,
    factors: [(f32, f32); Q],
    running: &mut Running<Q>,
) -> usize {
    // SAFETY: the caller's: columns and positions exist.
    unsafe {
        let mut sums = [[V::splat(0.0); Q]; D];
        let mut base = positions.start;
        while base < positions.end {
            let values = args.values.add(args.place(base) * args.padded_dim + d);
            let count = (positions.end - base).min(LANES);
            for j in 0..count {
                let mut row = [V::splat(0.0); D];
                for part in 0..D {
                    row[part] = C::load::<V>(values.add(j * args.padded_dim + part * LANES));
                }
                for q in 0..Q {
                    let weight = V::splat(p[q][base % CHUNK + j].assume_init());
                    for part in 0..D {
                        sums[part][q] = weight.mul_add(row[part], sums[part][q]);
                    }
                }
            }
            base += LANES;
        }
        for q in 0..Q {
            let (old, new) = factors[q];
            for part in 0..D {
                let out = running.out[q]
                    .as_mut_ptr()
                    .add(d + part * LANES)
                    .cast::<f32>();
                let before = V::load(out).mul(V::splat(old));
                sums[part][q].mul_add(V::splat(new), before).store(out);
            }
        }
    }
    D * LANES
}

/// Merges chunks that were computed each by itself, in order: `parts` is (chunks, 2 + `padded_dim`), and what is known goes to `out`
/// (`head_dim`).
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn merge<V: Lanes>(parts: &[f32], padded_dim: usize, out: &mut [f32]) {
    let mut known = [0f32; HEAD_DIM_MAX];
    let (mut best, mut sum) = (f32::NEG_INFINITY, 0f32);
    // SAFETY: the caller's; `padded_dim` is whole vectors.
    unsafe {
        for part in parts.chunks_exact(padded_dim + 2) {
            let (old, new) = factors::<V>(&mut best, part[0]);
            sum = part[1].mul_add(new, sum * old);
            for d in (0..padded_dim).step_by(LANES) {
                let to = known.as_mut_ptr().add(d);
                let before = V::load(to).mul(V::splat(old));
                let values = V::load(part.as_ptr().add(2 + d));
                values.mul_add(V::splat(new), before).store(to);
            }
        }
    }
    for (out, known) in out.iter_mut().zip(known) {
        *out = known / sum;
    }
}
