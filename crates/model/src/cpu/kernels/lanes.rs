//! Sixteen numbers at once, on whatever the machine has.
//!
//! Every implementation does the same operations in the same order (fused multiply-add, one fixed tree for sums), so all of
//! them give the same bits: a seed means the same text on every machine, and the plain one is the test oracle of the others.

/// Lanes in a vector.
pub(super) const LANES: usize = 16;

/// Sixteen f32.
///
/// # Safety
/// All functions: the machine has what the implementation needs, and pointers are good for sixteen elements (of any alignment).
pub(super) trait Lanes: Copy {
    /// Whether one vector is one register, so that tiles may hold many.
    const WIDE: bool;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Writes integers from -127 to 127 as bytes; what is no such number becomes any byte.
    unsafe fn store_i8(self, to: *mut i8);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// `self * factor + addend` with one rounding.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `2^self` for integers from -126 to 127.
    unsafe fn pow2(self) -> Self;
    /// Zero in lanes where `test` is below `bound`.
    unsafe fn zero_where_below(self, test: Self, bound: Self) -> Self;
    /// Halves are added until one number is left: lane i + lane i+8, then +4, +2, +1.
    unsafe fn sum(self) -> f32;
    unsafe fn max_lane(self) -> f32;
}

/// `exp` within 2 units in the last place for arguments up to 88; exactly 0 below -87. Cephes' `expf`: reduce by multiples of
/// ln 2, then a polynomial.
#[inline(always)]
pub(super) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: the caller guarantees the machine's features; no memory is touched.
    unsafe {
        let clamped = x.max(V::splat(-87.0));
        let n = clamped.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(V::splat(-0.693_359_4), clamped);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_1e-4);
        for coefficient in [
            1.398_2e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = p.mul_add(r, V::splat(coefficient));
        }
        let p = p.mul_add(r.mul(r), r).add(V::splat(1.0));
        p.mul(n.pow2()).zero_where_below(x, V::splat(-87.0))
    }
}

/// Any machine. Slow where the compiler has no fused multiply-add to use.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = f(lanes[lane], lanes[lane + half]);
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// As the machine's instruction does it: the second where the first is not greater.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

impl Lanes for Plain {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen elements by the trait's contract.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: sixteen elements by the trait's contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: sixteen elements by the trait's contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|bits| half::f16::from_bits(bits).to_f32_const()))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: sixteen elements by the trait's contract.
        Self(unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen elements by the trait's contract.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        let bytes = self.0.map(|x| x as i8);
        // SAFETY: sixteen elements by the trait's contract.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(bytes) };
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, greater)
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            self.0[lane].mul_add(factor.0[lane], addend.0[lane])
        }))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        Self(
            self.0
                .map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23)),
        )
    }
    #[inline(always)]
    unsafe fn zero_where_below(self, test: Self, bound: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            if test.0[lane] < bound.0[lane] {
                0.0
            } else {
                self.0[lane]
            }
        }))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        self.fold(greater)
    }
}
