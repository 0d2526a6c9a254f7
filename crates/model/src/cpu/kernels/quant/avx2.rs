//! Quantized products with AVX2: as with VNNI, in two halves and without its instruction.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32,
    _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_sign_epi8, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_storeu_ps,
};
use std::ops::Range;

use super::args::{QuantArgs, TILE};
use crate::quant::{GROUP, GROUP_BYTES_4, GROUP_BYTES_8, PANEL};

/// How weights are packed.
trait Packing {
    const BYTES: usize;
    const HAS_MIN: bool;

    /// Integer products of one group for `T` tokens, outputs 0 to 7 and 8 to 15.
    ///
    /// # Safety
    /// The machine has AVX2; `w` is a group's weights and each of `x` a group's 64 integers.
    unsafe fn dots<const T: usize>(w: *const u8, x: [*const i8; T]) -> [[__m256i; 2]; T];
}

struct Eight;
struct Four;

impl Packing for Eight {
    const BYTES: usize = GROUP_BYTES_8;
    const HAS_MIN: bool = false;

    #[inline(always)]
    unsafe fn dots<const T: usize>(w: *const u8, x: [*const i8; T]) -> [[__m256i; 2]; T] {
        // SAFETY: the caller's.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sums = [[_mm256_setzero_si256(); 2]; T];
            for quad in 0..GROUP / 4 {
                for half in 0..2 {
                    let weights = _mm256_loadu_si256(w.add(quad * 64 + half * 32).cast());
                    let size = _mm256_abs_epi8(weights);
                    for t in 0..T {
                        let x = x[t].add(quad * 4).cast::<i32>().read_unaligned();
                        // |w| * (x with w's sign): two products are below 2^15 because both sides are at most 128 and 127.
                        let signed = _mm256_sign_epi8(_mm256_set1_epi32(x), weights);
                        let pairs = _mm256_maddubs_epi16(size, signed);
                        sums[t][half] =
                            _mm256_add_epi32(sums[t][half], _mm256_madd_epi16(pairs, ones));
                    }
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
    unsafe fn dots<const T: usize>(w: *const u8, x: [*const i8; T]) -> [[__m256i; 2]; T] {
        // SAFETY: the caller's.
        unsafe {
            let (nibble, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
            let mut sums = [[_mm256_setzero_si256(); 2]; T];
            for quad in 0..GROUP / 8 {
                for half in 0..2 {
                    let both = _mm256_loadu_si256(w.add(quad * 64 + half * 32).cast());
                    let low = _mm256_and_si256(both, nibble);
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
                    for t in 0..T {
                        let x = x[t].add(quad * 4);
                        let first = x.cast::<i32>().read_unaligned();
                        let second = x.add(GROUP / 2).cast::<i32>().read_unaligned();
                        // Four products of at most 15 * 127: far below 2^15.
                        let pairs = _mm256_add_epi16(
                            _mm256_maddubs_epi16(low, _mm256_set1_epi32(first)),
                            _mm256_maddubs_epi16(high, _mm256_set1_epi32(second)),
                        );
                        sums[t][half] =
                            _mm256_add_epi32(sums[t][half], _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            sums
        }
    }
}

#[inline(always)]
unsafe fn bf16(from: *const u16) -> __m256 {
    // SAFETY: the caller's: eight numbers.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

/// # Safety
/// As [`QuantArgs`]; the machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu::kernels) unsafe fn int8(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Eight>(args, panels) };
}

/// # Safety
/// As [`int8`].
#[target_feature(enable = "avx2,fma")]
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
        let mut values = [[_mm256_setzero_ps(); 2]; T];
        for group in 0..args.groups {
            let index = panel * args.groups + group;
            let x = std::array::from_fn(|t| xs[t].add(group * TILE * GROUP));
            let dots = P::dots::<T>(args.weights.add(index * P::BYTES), x);
            for half in 0..2 {
                let scale = bf16(args.weight_scales.add(index * PANEL + half * 8));
                for t in 0..T {
                    let place = places[t] + group * TILE;
                    let x_scale = args.scales.add(place).read();
                    let by = _mm256_mul_ps(scale, _mm256_set1_ps(x_scale));
                    let dot = _mm256_cvtepi32_ps(dots[t][half]);
                    values[t][half] = _mm256_fmadd_ps(dot, by, values[t][half]);
                    if P::HAS_MIN {
                        let x_sum = args.sums.add(place).read() as f32 * x_scale;
                        let min = bf16(args.weight_mins.add(index * PANEL + half * 8));
                        let x_sum = _mm256_set1_ps(x_sum);
                        values[t][half] = _mm256_fmadd_ps(x_sum, min, values[t][half]);
                    }
                }
            }
        }
        for t in 0..T {
            let mut lanes = [0f32; PANEL];
            _mm256_storeu_ps(lanes.as_mut_ptr(), values[t][0]);
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), values[t][1]);
            args.put(token + t, panel, &lanes);
        }
    }
    T
}
