//! Attention of a few queries over one key and value head, through a block table.
//!
//! Positions go by in groups of sixteen that begin at multiples of sixteen, with a running maximum and sum (online softmax,
//! arXiv 1805.02867), so a query's result depends on its position and on what is cached, not on chunk, batch or block size.

use super::lanes::{LANES, Lanes, exp};

/// Widest head the accumulators on the stack hold.
pub(crate) const HEAD_DIM_MAX: usize = 512;
/// Queries that share one pass over the keys.
pub(crate) const QUERIES_MAX: usize = 8;

/// Storage format of keys and values.
pub(super) trait Cell: Copy {
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

/// One query: a token's one head.
#[derive(Clone, Copy)]
pub(super) struct Query {
    /// (`head_dim`)
    pub q: *const f32,
    /// (`head_dim`)
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
    /// Entry i holds positions `i * block_tokens ..`.
    pub table: &'a [weir_scheduler::BlockId],
    pub kv_heads: usize,
    pub head: usize,
    pub block_tokens: usize,
    pub head_dim: usize,
    /// `head_dim` up to a multiple of sixteen
    pub padded_dim: usize,
    pub scale: f32,
}

/// State of up to `Q` queries.
struct Running<const Q: usize> {
    best: [f32; Q],
    sum: [f32; Q],
    /// (queries, `padded_dim`)
    out: [[f32; HEAD_DIM_MAX]; Q],
    /// (queries, 16) probabilities of the current group
    p: [[f32; LANES]; Q],
}

/// Computes up to [`QUERIES_MAX`] queries.
///
/// # Safety
/// As [`AttendArgs`], [`Query`] and [`Lanes`]; every query's positions are covered by the table and were written.
#[inline(always)]
pub(super) unsafe fn attend<V: Lanes, C: Cell>(args: &AttendArgs<'_, C>, queries: &[Query]) {
    // SAFETY: the caller's.
    unsafe {
        match (V::WIDE, queries.len()) {
            (_, 1) => attend_some::<V, C, 1>(args, queries),
            (_, 2) => attend_some::<V, C, 2>(args, queries),
            (_, 3 | 4) => attend_some::<V, C, 4>(args, queries),
            (true, _) => attend_some::<V, C, 8>(args, queries),
            (false, _) => {
                let (left, right) = queries.split_at(4);
                attend_some::<V, C, 4>(args, left);
                attend::<V, C>(args, right);
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
    let mut running = Running::<Q> {
        best: [f32::NEG_INFINITY; Q],
        sum: [0.0; Q],
        out: [[0.0; HEAD_DIM_MAX]; Q],
        p: [[0.0; LANES]; Q],
    };
    let first = all.iter().map(|query| query.first).min().unwrap_or(0);
    let last = all.iter().map(|query| query.last).max().unwrap_or(0);
    let mut base = first / LANES * LANES;
    // SAFETY: positions up to `last` are covered by the table.
    unsafe {
        while base <= last {
            let block = args.table[base / args.block_tokens].0 as usize;
            let offset = base % args.block_tokens;
            let place = block * args.kv_heads + args.head;
            let keys = args
                .keys
                .add((place * args.block_tokens + offset) * args.head_dim);
            let values = args
                .values
                .add((place * args.block_tokens + offset) * args.padded_dim);
            score::<V, C, Q>(args, &all, keys, base, &mut running);
            gather::<V, C, Q>(args, values, (last + 1 - base).min(LANES), &mut running);
            base += LANES;
        }
        for (q, query) in all.iter().enumerate() {
            for d in 0..args.head_dim {
                query.out.add(d).write(running.out[q][d] / running.sum[q]);
            }
        }
    }
}

/// Scores of sixteen positions against every query, and their probabilities against the running maximum.
#[inline(always)]
unsafe fn score<V: Lanes, C: Cell, const Q: usize>(
    args: &AttendArgs<'_, C>,
    all: &[Query; Q],
    keys: *const C,
    base: usize,
    running: &mut Running<Q>,
) {
    // SAFETY: a group of keys is `head_dim` vectors of sixteen.
    unsafe {
        let mut scores = [V::splat(0.0); Q];
        for d in 0..args.head_dim {
            let key = C::load::<V>(keys.add(d * LANES));
            for q in 0..Q {
                scores[q] = V::splat(*all[q].q.add(d)).mul_add(key, scores[q]);
            }
        }
        for (q, query) in all.iter().enumerate() {
            let mut scores = scores[q].mul(V::splat(args.scale));
            if base < query.first || base + LANES - 1 > query.last {
                let mut lanes = [0f32; LANES];
                scores.store(lanes.as_mut_ptr());
                for (lane, score) in lanes.iter_mut().enumerate() {
                    if base + lane < query.first || base + lane > query.last {
                        *score = f32::NEG_INFINITY;
                    }
                }
                scores = V::load(lanes.as_ptr());
            }
            let best = scores.max_lane();
            if best == f32::NEG_INFINITY {
                // This group is another query's.
                running.p[q] = [0.0; LANES];
                continue;
            }
            if best > running.best[q] {
                if running.best[q] > f32::NEG_INFINITY {
                    rescale::<V>(
                        &mut running.out[q][..args.padded_dim],
                        &mut running.sum[q],
                        running.best[q] - best,
                    );
                }
                running.best[q] = best;
            }
            let p = exp(scores.sub(V::splat(running.best[q])));
            running.sum[q] += p.sum();
            p.store(running.p[q].as_mut_ptr());
        }
    }
}

/// Multiplies what was gathered so far by `exp(by)`.
#[inline(always)]
unsafe fn rescale<V: Lanes>(out: &mut [f32], sum: &mut f32, by: f32) {
    let mut lanes = [0f32; LANES];
    // SAFETY: `out` is whole vectors.
    unsafe {
        let factor = exp(V::splat(by));
        factor.store(lanes.as_mut_ptr());
        *sum *= lanes[0];
        for chunk in out.chunks_exact_mut(LANES) {
            V::load(chunk.as_ptr())
                .mul(factor)
                .store(chunk.as_mut_ptr());
        }
    }
}

/// Adds the values of up to sixteen positions by their probabilities.
#[inline(always)]
unsafe fn gather<V: Lanes, C: Cell, const Q: usize>(
    args: &AttendArgs<'_, C>,
    values: *const C,
    count: usize,
    running: &mut Running<Q>,
) {
    let mut d = 0;
    // SAFETY: `count` rows of `padded_dim` elements, which is whole vectors.
    unsafe {
        while d < args.padded_dim {
            let mut out = [V::splat(0.0); Q];
            for q in 0..Q {
                out[q] = V::load(running.out[q].as_ptr().add(d));
            }
            for j in 0..count {
                let value = C::load::<V>(values.add(j * args.padded_dim + d));
                for q in 0..Q {
                    out[q] = V::splat(running.p[q][j]).mul_add(value, out[q]);
                }
            }
            for q in 0..Q {
                out[q].store(running.out[q].as_mut_ptr().add(d));
            }
            d += LANES;
        }
    }
}
