//! Sixteen numbers at once with NEON: four registers.

use std::arch::aarch64::{
    float32x2_t, float32x4_t, uint16x8_t, vaddq_f32, vaddq_s32, vbicq_u32, vbslq_f32, vcgtq_f32,
    vcltq_f32, vcombine_f32, vcombine_s8, vcombine_s16, vcvtnq_s32_f32, vcvtq_f32_s32, vdivq_f32,
    vdup_n_f32, vdupq_n_f32, vdupq_n_s32, vfmaq_f32, vget_high_f32, vget_high_s8, vget_high_s16,
    vget_high_u16, vget_lane_f32, vget_low_f32, vget_low_s8, vget_low_s16, vget_low_u16, vld1q_f32,
    vld1q_s8, vld1q_u16, vmovl_s8, vmovl_s16, vmovn_s16, vmovn_s32, vmulq_f32,
    vreinterpretq_f32_s32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vrndnq_f32, vshll_n_u16,
    vshlq_n_s32, vst1q_f32, vst1q_s8, vsubq_f32,
};
use std::arch::asm;

use super::lanes::Lanes;

/// Needs what every 64-bit ARM has.
#[derive(Clone, Copy)]
pub(super) struct Neon([float32x4_t; 4]);

impl Neon {
    #[inline(always)]
    fn each(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Self {
        Self(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self(std::array::from_fn(|at| f(self.0[at], other.0[at])))
    }

    /// Halves are put together until one number is left, as the trait wants it.
    #[inline(always)]
    unsafe fn fold(self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> f32 {
        let [a, b, c, d] = self.0;
        let four = f(f(a, c), f(b, d));
        // SAFETY: every 64-bit ARM has these.
        unsafe {
            let wide = |two: float32x2_t| vcombine_f32(two, two);
            let two = f(wide(vget_low_f32(four)), wide(vget_high_f32(four)));
            let (first, second) = (
                vget_lane_f32::<0>(vget_low_f32(two)),
                vget_lane_f32::<1>(vget_low_f32(two)),
            );
            let one = f(wide(vdup_n_f32(first)), wide(vdup_n_f32(second)));
            vget_lane_f32::<0>(vget_low_f32(one))
        }
    }
}

/// The second where the first is not greater, as other machines do it.
#[inline(always)]
fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: every 64-bit ARM has these.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// Four halves of single precision.
#[inline(always)]
unsafe fn halves(bits: uint16x8_t) -> [float32x4_t; 2] {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: every 64-bit ARM has these, and no memory is touched. There is no stable function for a half's type.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {bits:v}.4h",
            "fcvtl2 {high:v}.4s, {bits:v}.8h",
            low = out(vreg) low,
            high = lateout(vreg) high,
            bits = in(vreg) bits,
            // A number that is none may raise a flag of the floating-point status.
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

impl Lanes for Neon {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: every 64-bit ARM has this.
        unsafe { Self([vdupq_n_f32(value); 4]) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen elements by the trait's contract, of any alignment.
        Self(std::array::from_fn(|at| unsafe {
            vld1q_f32(from.add(at * 4))
        }))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: sixteen elements by the trait's contract, of any alignment.
        unsafe {
            let (first, second) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            let wide = |half| vreinterpretq_f32_u32(vshll_n_u16::<16>(half));
            Self([
                wide(vget_low_u16(first)),
                wide(vget_high_u16(first)),
                wide(vget_low_u16(second)),
                wide(vget_high_u16(second)),
            ])
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: sixteen elements by the trait's contract, of any alignment.
        unsafe {
            let [a, b] = halves(vld1q_u16(from));
            let [c, d] = halves(vld1q_u16(from.add(8)));
            Self([a, b, c, d])
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: sixteen elements by the trait's contract, of any alignment.
        unsafe {
            let bytes = vld1q_s8(from);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            let wide = |half| vcvtq_f32_s32(vmovl_s16(half));
            Self([
                wide(vget_low_s16(low)),
                wide(vget_high_s16(low)),
                wide(vget_low_s16(high)),
                wide(vget_high_s16(high)),
            ])
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (at, lanes) in self.0.into_iter().enumerate() {
            // SAFETY: sixteen elements by the trait's contract, of any alignment.
            unsafe { vst1q_f32(to.add(at * 4), lanes) };
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: sixteen elements by the trait's contract, of any alignment.
        unsafe {
            let [a, b, c, d] = self.0.map(|lanes| vmovn_s32(vcvtnq_s32_f32(lanes)));
            let narrow = |low, high| vmovn_s16(vcombine_s16(low, high));
            vst1q_s8(to, vcombine_s8(narrow(a, b), narrow(c, d)));
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: every 64-bit ARM has this.
        self.zip(other, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: every 64-bit ARM has this.
        self.zip(other, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: every 64-bit ARM has this.
        self.zip(other, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: every 64-bit ARM has this.
        self.zip(other, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, greater)
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: every 64-bit ARM has this.
        Self(std::array::from_fn(|at| unsafe {
            vfmaq_f32(addend.0[at], self.0[at], factor.0[at])
        }))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: every 64-bit ARM has this.
        self.each(|lanes| unsafe { vrndnq_f32(lanes) })
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: every 64-bit ARM has these.
        self.each(|n| unsafe {
            let biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }
    #[inline(always)]
    unsafe fn zero_where_below(self, test: Self, bound: Self) -> Self {
        // SAFETY: every 64-bit ARM has these.
        Self(std::array::from_fn(|at| unsafe {
            let below = vcltq_f32(test.0[at], bound.0[at]);
            vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(self.0[at]), below))
        }))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: every 64-bit ARM has these.
        unsafe { self.fold(|a, b| vaddq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: every 64-bit ARM has these.
        unsafe { self.fold(greater) }
    }
}
