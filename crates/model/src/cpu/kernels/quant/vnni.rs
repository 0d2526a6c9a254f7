//! Quantized products with AVX-512 VNNI: a panel's sixteen outputs are the lanes, four inputs at a time.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_add_ps,
    _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi16,
    _mm512_sub_epi32, _mm512_xor_si512,
};
use std::ops::Range;

use super::args::{QuantArgs, TILE};
use crate::quant::{GROUP, GROUP_BYTES_4, GROUP_BYTES_8, PANEL};

/// Bytes read ahead of the weights in use: what one core needs in flight to use the memory's rate.
const AHEAD: usize = 4 << 10;

/// Whether the machine has the instructions.
pub(in crate::cpu::kernels) fn has() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

/// How weights are packed.
pub(super) trait Packing {
    const BYTES: usize;
    const HAS_MIN: bool;

    /// Integer products of one group for `T` tokens, weights as unsigned bytes.
    ///
    /// # Safety
    /// The machine has AVX-512 VNNI; `w` is a group's weights and each of `x` a group's 64 integers.
    unsafe fn dots<const T: usize>(w: *const u8, x: [*const i8; T]) -> [__m512i; T];
}

/// Eight bits with a sign.
pub(super) struct Eight;
/// Four bits above the group's minimum.
pub(super) struct Four;

impl Packing for Eight {
    const BYTES: usize = GROUP_BYTES_8;
    const HAS_MIN: bool = false;

    #[inline(always)]
    unsafe fn dots<const T: usize>(w: *const u8, x: [*const i8; T]) -> [__m512i; T] {
        // SAFETY: the caller's.
        unsafe {
            let bias = _mm512_set1_epi8(-128);
            let mut sums = [_mm512_setzero_si512(); T];
            for quad in 0..GROUP / 4 {
                let from = w.add(quad * 64);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                let weights = _mm512_xor_si512(_mm512_loadu_si512(from.cast()), bias);
                for t in 0..T {
                    let x = x[t].add(quad * 4).cast::<i32>().read_unaligned();
                    sums[t] = _mm512_dpbusd_epi32(sums[t], weights, _mm512_set1_epi32(x));
                }
            }
            sums
        }
    }
}

impl Packing for Four {
    const BYTES: usize = GROUP_BYTES_4;
    const HAS_MIN: bool = true;

    #[inline(always)]
    unsafe fn dots<const T: usize>(w: *const u8, x: [*const i8; T]) -> [__m512i; T] {
        // SAFETY: the caller's.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            let mut sums = [_mm512_setzero_si512(); T];
            for quad in 0..GROUP / 8 {
                let from = w.add(quad * 64);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                let both = _mm512_loadu_si512(from.cast());
                let low = _mm512_and_si512(both, nibble);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
                for t in 0..T {
                    let x = x[t].add(quad * 4);
                    let first = x.cast::<i32>().read_unaligned();
                    let second = x.add(GROUP / 2).cast::<i32>().read_unaligned();
                    sums[t] = _mm512_dpbusd_epi32(sums[t], low, _mm512_set1_epi32(first));
                    sums[t] = _mm512_dpbusd_epi32(sums[t], high, _mm512_set1_epi32(second));
                }
            }
            sums
        }
    }
}

/// Sixteen bf16 numbers.
///
/// # Safety
/// The machine has AVX-512F and sixteen numbers are there.
#[inline(always)]
pub(super) unsafe fn bf16(from: *const u16) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
}

/// Writes a token's results of one panel; as [`QuantArgs::put`].
///
/// # Safety
/// As [`QuantArgs::put`], and the machine has AVX-512F.
#[inline(always)]
pub(super) unsafe fn put(args: &QuantArgs, token: usize, panel: usize, mut value: __m512) {
    let row = panel * PANEL;
    let mask: u16 = match args.rows - row {
        PANEL.. => u16::MAX,
        rows => (1 << rows) - 1,
    };
    // SAFETY: the caller's; lanes past the last row are masked.
    unsafe {
        let out = args.out.add(token * args.out_stride + row);
        if !args.bias.is_null() {
            value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, args.bias.add(row)));
        }
        if args.accumulate {
            value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
        }
        _mm512_mask_storeu_ps(out, mask, value);
    }
}

/// # Safety
/// As [`QuantArgs`]; the machine has AVX-512F, BW and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(in crate::cpu::kernels) unsafe fn int8(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Eight>(args, panels) };
}

/// # Safety
/// As [`int8`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(in crate::cpu::kernels) unsafe fn int4(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Four>(args, panels) };
}

#[inline(always)]
unsafe fn all<P: Packing>(args: &QuantArgs, panels: Range<usize>) {
    for panel in panels {
        let mut token = 0;
        while token < args.tokens {
            // SAFETY: the caller's.
            token += unsafe {
                match args.tokens - token {
                    8.. => some::<P, 8>(args, token, panel),
                    4.. => some::<P, 4>(args, token, panel),
                    2.. => some::<P, 2>(args, token, panel),
                    _ => some::<P, 1>(args, token, panel),
                }
            };
        }
    }
}

/// `T` tokens of one panel.
#[inline(always)]
unsafe fn some<P: Packing, const T: usize>(args: &QuantArgs, token: usize, panel: usize) -> usize {
    // SAFETY: the caller's: the tokens and the panel exist.
    unsafe {
        let xs: [*const i8; T] = std::array::from_fn(|t| args.token(token + t));
        let places: [usize; T] = std::array::from_fn(|t| args.place(token + t));
        let mut values = [_mm512_setzero_ps(); T];
        for group in 0..args.groups {
            let index = panel * args.groups + group;
            let x = std::array::from_fn(|t| xs[t].add(group * TILE * GROUP));
            let dots = P::dots::<T>(args.weights.add(index * P::BYTES), x);
            let scale = bf16(args.weight_scales.add(index * PANEL));
            for t in 0..T {
                let place = places[t] + group * TILE;
                let x_scale = args.scales.add(place).read();
                let sum = args.sums.add(place).read();
                let by = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale));
                let dot = if P::HAS_MIN {
                    dots[t]
                } else {
                    _mm512_sub_epi32(dots[t], _mm512_set1_epi32(sum * 128))
                };
                values[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), by, values[t]);
                if P::HAS_MIN {
                    let x_sum = _mm512_set1_ps(sum as f32 * x_scale);
                    let min = bf16(args.weight_mins.add(index * PANEL));
                    values[t] = _mm512_fmadd_ps(x_sum, min, values[t]);
                }
            }
        }
        for t in 0..T {
            put(args, token + t, panel, values[t]);
        }
    }
    T
}
