//! Activations times weights: out (tokens, rows) = x (tokens, cols) · weights (rows, cols) transposed.
//!
//! One vector accumulates one output, over the columns in order, whatever the tile around it: an output does not depend on how
//! many tokens are computed together or where the rows are cut, which is what makes results independent of the batch.

use std::ops::Range;

use super::lanes::{LANES, Lanes};

/// What to compute. Pointers are good for the shapes given; `out` rows of this call belong to it alone.
#[derive(Clone, Copy)]
pub(super) struct GemmArgs {
    /// (tokens, cols) f32, `x_stride` apart
    pub x: *const f32,
    pub x_stride: usize,
    /// (rows, cols), unaligned
    pub weights: *const u8,
    pub cols: usize,
    /// (rows) or null
    pub bias: *const f32,
    /// (tokens, rows) f32, `out_stride` apart
    pub out: *mut f32,
    pub out_stride: usize,
    pub tokens: usize,
    /// Adds to `out` instead of replacing it.
    pub accumulate: bool,
}

/// Format of weights in memory.
pub(super) trait Format {
    /// Bytes per element.
    const SIZE: usize;
    /// Sixteen elements.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn load<V: Lanes>(from: *const u8) -> V;
}

pub(super) struct F32;
pub(super) struct Bf16;
pub(super) struct F16;

impl Format for F32 {
    const SIZE: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from.cast()) }
    }
}

impl Format for Bf16 {
    const SIZE: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_bf16(from.cast()) }
    }
}

impl Format for F16 {
    const SIZE: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_f16(from.cast()) }
    }
}

/// Outputs of the rows in `rows` for all tokens. Weights of the range should fit the second-level cache: they are read from
/// memory once and then again for every eight tokens.
///
/// # Safety
/// As [`GemmArgs`] and [`Lanes`].
#[inline(always)]
pub(super) unsafe fn gemm<V: Lanes, F: Format>(args: &GemmArgs, rows: Range<usize>) {
    let mut token = 0;
    // SAFETY: the caller's; tiles stay inside tokens and rows.
    unsafe {
        while token < args.tokens {
            let left = args.tokens - token;
            // Tiles are as large as accumulators, weights and activations fit the registers (32 wide ones or 16 halves).
            let taken = match (V::WIDE, left) {
                (true, 8..) => strip::<V, F, 8, 3>(args, token, rows.clone()),
                (true, 4..) => strip::<V, F, 4, 4>(args, token, rows.clone()),
                (false, 4..) => strip::<V, F, 4, 1>(args, token, rows.clone()),
                (true, 2..) => strip::<V, F, 2, 6>(args, token, rows.clone()),
                (false, 2..) => strip::<V, F, 2, 2>(args, token, rows.clone()),
                (true, _) => strip::<V, F, 1, 8>(args, token, rows.clone()),
                (false, _) => strip::<V, F, 1, 4>(args, token, rows.clone()),
            };
            token += taken;
        }
    }
}

/// `T` tokens, all rows, `R` at a time.
#[inline(always)]
unsafe fn strip<V: Lanes, F: Format, const T: usize, const R: usize>(
    args: &GemmArgs,
    token: usize,
    rows: Range<usize>,
) -> usize {
    let mut row = rows.start;
    // SAFETY: the caller's; `token + T` tokens and the rows exist.
    unsafe {
        while row + R <= rows.end {
            tile::<V, F, T, R>(args, token, row);
            row += R;
        }
        while row < rows.end {
            tile::<V, F, T, 1>(args, token, row);
            row += 1;
        }
    }
    T
}

#[inline(always)]
unsafe fn tile<V: Lanes, F: Format, const T: usize, const R: usize>(
    args: &GemmArgs,
    token: usize,
    row: usize,
) {
    // SAFETY: the caller's: T tokens from `token` and R rows from `row` exist, each with `cols` elements.
    unsafe {
        let xs: [*const f32; T] = std::array::from_fn(|t| args.x.add((token + t) * args.x_stride));
        let row_bytes = args.cols * F::SIZE;
        let ws: [*const u8; R] = std::array::from_fn(|r| args.weights.add((row + r) * row_bytes));
        let mut sums = [[V::splat(0.0); R]; T];
        let whole = args.cols / LANES * LANES;
        let mut col = 0;
        while col < whole {
            sums = step::<V, F, T, R>(
                sums,
                xs.map(|x| x.add(col)),
                ws.map(|w| w.add(col * F::SIZE)),
            );
            col += LANES;
        }
        if whole < args.cols {
            // The last columns go through buffers filled up with zeros.
            let count = args.cols - whole;
            let mut x_tails = [[0f32; LANES]; T];
            let mut w_tails = [[0u8; LANES * 4]; R];
            for t in 0..T {
                std::ptr::copy_nonoverlapping(xs[t].add(whole), x_tails[t].as_mut_ptr(), count);
            }
            for r in 0..R {
                let from = ws[r].add(whole * F::SIZE);
                std::ptr::copy_nonoverlapping(from, w_tails[r].as_mut_ptr(), count * F::SIZE);
            }
            let xs = std::array::from_fn(|t| x_tails[t].as_ptr());
            let ws = std::array::from_fn(|r| w_tails[r].as_ptr());
            sums = step::<V, F, T, R>(sums, xs, ws);
        }
        for t in 0..T {
            let out = args.out.add((token + t) * args.out_stride + row);
            for r in 0..R {
                let mut value = sums[t][r].sum();
                if !args.bias.is_null() {
                    value += args.bias.add(row + r).read();
                }
                let out = out.add(r);
                *out = if args.accumulate { *out + value } else { value };
            }
        }
    }
}

/// Sixteen columns of a tile. Sums go in and out by value: a reference would keep them in memory.
#[inline(always)]
unsafe fn step<V: Lanes, F: Format, const T: usize, const R: usize>(
    mut sums: [[V; R]; T],
    xs: [*const f32; T],
    ws: [*const u8; R],
) -> [[V; R]; T] {
    // SAFETY: the caller's: sixteen elements at each pointer.
    unsafe {
        let mut w = [V::splat(0.0); R];
        for r in 0..R {
            w[r] = F::load::<V>(ws[r]);
        }
        for t in 0..T {
            let x = V::load(xs[t]);
            for r in 0..R {
                sums[t][r] = x.mul_add(w[r], sums[t][r]);
            }
        }
        sums
    }
}
