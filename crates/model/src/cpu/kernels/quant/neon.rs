//! Quantized products with NEON: four bytes of each of four outputs in a register, by the dot product of bytes where the machine has
//! it (`sdot`), else by products of pairs.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, vandq_u8, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32,
    vdupq_n_u8, vfmaq_f32, vget_high_s8, vget_low_s8, vld1_u16, vld1q_s8, vld1q_u8, vmull_s8,
    vmulq_f32, vpadalq_s16, vpaddq_s32, vreinterpretq_f32_u32, vreinterpretq_s8_s32,
    vreinterpretq_s8_u8, vshll_n_u16, vshrq_n_u8, vst1q_f32,
};
use std::arch::asm;
use std::ops::Range;

use super::args::{QuantArgs, TILE};
use crate::quant::{GROUP, GROUP_BYTES_4, GROUP_BYTES_8, PANEL};

/// Registers of a panel: four outputs in each.
const PARTS: usize = PANEL / 4;

/// Whether bytes can be multiplied and added four at a time.
pub(in crate::cpu::kernels) fn has_dot() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// Sums of products of bytes, for four outputs.
trait Dots: Copy {
    fn zero() -> Self;

    /// Adds four products for each output.
    ///
    /// # Safety
    /// The machine has what it needs.
    unsafe fn add(&mut self, weights: int8x16_t, x: int8x16_t);

    /// What was added, by output.
    unsafe fn sums(self) -> int32x4_t;
}

/// With `sdot`.
#[derive(Clone, Copy)]
struct Dot(int32x4_t);

impl Dots for Dot {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: every 64-bit ARM has this.
        Self(unsafe { vdupq_n_s32(0) })
    }
    #[inline(always)]
    unsafe fn add(&mut self, weights: int8x16_t, x: int8x16_t) {
        // SAFETY: the machine has it by the caller; no memory is touched. The function for it is not stable.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
                sum = inout(vreg) self.0,
                w = in(vreg) weights,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    }
    #[inline(always)]
    unsafe fn sums(self) -> int32x4_t {
        self.0
    }
}

/// Without: sums of two neighbours, of two outputs in each register.
#[derive(Clone, Copy)]
struct Pairs([int32x4_t; 2]);

impl Dots for Pairs {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: every 64-bit ARM has this.
        Self([unsafe { vdupq_n_s32(0) }; 2])
    }
    #[inline(always)]
    unsafe fn add(&mut self, weights: int8x16_t, x: int8x16_t) {
        // SAFETY: every 64-bit ARM has these. A product is at most 128 * 127, which 16 bits hold.
        unsafe {
            let low = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
            let high = vmull_s8(vget_high_s8(weights), vget_high_s8(x));
            self.0 = [vpadalq_s16(self.0[0], low), vpadalq_s16(self.0[1], high)];
        }
    }
    #[inline(always)]
    unsafe fn sums(self) -> int32x4_t {
        // SAFETY: every 64-bit ARM has this.
        unsafe { vpaddq_s32(self.0[0], self.0[1]) }
    }
}

/// How weights are packed.
trait Packing {
    const BYTES: usize;
    const HAS_MIN: bool;

    /// Integer products of one group for `T` tokens.
    ///
    /// # Safety
    /// As [`Dots::add`]; `w` is a group's weights and each of `x` a group's 64 integers.
    unsafe fn dots<D: Dots, const T: usize>(w: *const u8, x: [*const i8; T]) -> [[D; PARTS]; T];
}

struct Eight;
struct Four;

/// Four integers, four times.
#[inline(always)]
unsafe fn quad(x: *const i8) -> int8x16_t {
    // SAFETY: the caller's: four bytes.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned())) }
}

impl Packing for Eight {
    const BYTES: usize = GROUP_BYTES_8;
    const HAS_MIN: bool = false;

    #[inline(always)]
    unsafe fn dots<D: Dots, const T: usize>(w: *const u8, x: [*const i8; T]) -> [[D; PARTS]; T] {
        let mut sums = [[D::zero(); PARTS]; T];
        // SAFETY: the caller's.
        unsafe {
            for at in 0..GROUP / 4 {
                let x: [int8x16_t; T] = std::array::from_fn(|t| quad(x[t].add(at * 4)));
                for part in 0..PARTS {
                    let weights = vld1q_s8(w.add(at * 64 + part * 16).cast());
                    for t in 0..T {
                        sums[t][part].add(weights, x[t]);
                    }
                }
            }
        }
        sums
    }
}

impl Packing for Four {
    const BYTES: usize = GROUP_BYTES_4;
    const HAS_MIN: bool = true;

    #[inline(always)]
    unsafe fn dots<D: Dots, const T: usize>(w: *const u8, x: [*const i8; T]) -> [[D; PARTS]; T] {
        let mut sums = [[D::zero(); PARTS]; T];
        // SAFETY: the caller's.
        unsafe {
            let nibble = vdupq_n_u8(15);
            for at in 0..GROUP / 8 {
                let first: [int8x16_t; T] = std::array::from_fn(|t| quad(x[t].add(at * 4)));
                let second: [int8x16_t; T] =
                    std::array::from_fn(|t| quad(x[t].add(GROUP / 2 + at * 4)));
                for part in 0..PARTS {
                    let both = vld1q_u8(w.add(at * 64 + part * 16));
                    let low = vreinterpretq_s8_u8(vandq_u8(both, nibble));
                    let high = vreinterpretq_s8_u8(vshrq_n_u8::<4>(both));
                    for t in 0..T {
                        sums[t][part].add(low, first[t]);
                        sums[t][part].add(high, second[t]);
                    }
                }
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn bf16(from: *const u16) -> float32x4_t {
    // SAFETY: the caller's: four numbers.
    unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))) }
}

/// # Safety
/// As [`QuantArgs`]; the machine has the dot product.
pub(in crate::cpu::kernels) unsafe fn int8_dot(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Eight, Dot>(args, panels) };
}

/// # Safety
/// As [`int8_dot`].
pub(in crate::cpu::kernels) unsafe fn int4_dot(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Four, Dot>(args, panels) };
}

/// # Safety
/// As [`QuantArgs`].
pub(in crate::cpu::kernels) unsafe fn int8(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Eight, Pairs>(args, panels) };
}

/// # Safety
/// As [`QuantArgs`].
pub(in crate::cpu::kernels) unsafe fn int4(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe { all::<Four, Pairs>(args, panels) };
}

#[inline(always)]
unsafe fn all<P: Packing, D: Dots>(args: &QuantArgs, panels: Range<usize>) {
    for panel in panels {
        let mut token = 0;
        while token < args.tokens {
            // SAFETY: the caller's.
            token += unsafe {
                match args.tokens - token {
                    4.. => some::<P, D, 4>(args, token, panel),
                    2..4 => some::<P, D, 2>(args, token, panel),
                    _ => some::<P, D, 1>(args, token, panel),
                }
            };
        }
    }
}

/// `T` tokens of one panel.
#[inline(always)]
unsafe fn some<P: Packing, D: Dots, const T: usize>(
    args: &QuantArgs,
    token: usize,
    panel: usize,
) -> usize {
    // SAFETY: the caller's: the tokens and the panel exist.
    unsafe {
        let xs: [*const i8; T] = std::array::from_fn(|t| args.token(token + t));
        let places: [usize; T] = std::array::from_fn(|t| args.place(token + t));
        let mut values = [[vdupq_n_f32(0.0); PARTS]; T];
        for group in 0..args.groups {
            let index = panel * args.groups + group;
            let x = std::array::from_fn(|t| xs[t].add(group * TILE * GROUP));
            let dots = P::dots::<D, T>(args.weights.add(index * P::BYTES), x);
            for part in 0..PARTS {
                let scale = bf16(args.weight_scales.add(index * PANEL + part * 4));
                for t in 0..T {
                    let place = places[t] + group * TILE;
                    let x_scale = args.scales.add(place).read();
                    let by = vmulq_f32(scale, vdupq_n_f32(x_scale));
                    let dot = vcvtq_f32_s32(dots[t][part].sums());
                    values[t][part] = vfmaq_f32(values[t][part], dot, by);
                    if P::HAS_MIN {
                        let x_sum = args.sums.add(place).read() as f32 * x_scale;
                        let min = bf16(args.weight_mins.add(index * PANEL + part * 4));
                        values[t][part] = vfmaq_f32(values[t][part], vdupq_n_f32(x_sum), min);
                    }
                }
            }
        }
        for t in 0..T {
            let mut lanes = [0f32; PANEL];
            for part in 0..PARTS {
                vst1q_f32(lanes.as_mut_ptr().add(part * 4), values[t][part]);
            }
            args.put(token + t, panel, &lanes);
        }
    }
    T
}
