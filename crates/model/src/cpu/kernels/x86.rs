//! Sixteen numbers at once with AVX2 (two registers) and AVX-512 (one).

use std::arch::x86_64::{
    __m256, __m512, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_add_ps,
    _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehl_ps,
    _mm_packs_epi16, _mm_shuffle_ps, _mm_srli_si128, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_add_ps, _mm256_andnot_ps, _mm256_castpd_ps, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_div_ps,
    _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_max_ps, _mm256_mul_ps, _mm256_packs_epi32, _mm256_permute4x64_epi64,
    _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps,
    _mm256_sub_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_castps_pd, _mm512_castps512_ps256,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi8,
    _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_cvtps_epi32, _mm512_div_ps,
    _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_mov_ps, _mm512_max_ps,
    _mm512_mul_ps, _mm512_roundscale_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::lanes::Lanes;

/// Needs AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256, __m256);

/// Needs AVX-512F and what [`Avx2`] needs.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

/// The last three halvings, shared so that both give the same bits.
macro_rules! fold_eight {
    ($eight:expr, $add:ident, $add_one:ident) => {{
        let eight = $eight;
        let four = $add(
            _mm256_castps256_ps128(eight),
            _mm256_extractf128_ps::<1>(eight),
        );
        let two = $add(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32($add_one(two, _mm_shuffle_ps::<1>(two, two)))
    }};
}

impl Lanes for Avx2 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract; the loads are unaligned ones.
        unsafe {
            let half = |at: usize| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            Self(half(0), half(8))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract; the loads are unaligned ones.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract; the load is an unaligned one.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let low = _mm256_cvtepi8_epi32(bytes);
            let high = _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: features and sixteen elements by the trait's contract.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: features and sixteen elements by the trait's contract; the store is an unaligned one.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // Packing works in halves: the quarters of both numbers come out as 0, 2, 1, 3.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_add_ps(self.0, other.0),
                _mm256_add_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_sub_ps(self.0, other.0),
                _mm256_sub_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_mul_ps(self.0, other.0),
                _mm256_mul_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_div_ps(self.0, other.0),
                _mm256_div_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_max_ps(self.0, other.0),
                _mm256_max_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, factor.0, addend.0),
                _mm256_fmadd_ps(self.1, factor.1, addend.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_round_ps::<MODE>(self.0),
                _mm256_round_ps::<MODE>(self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            let one = |n: __m256| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            };
            Self(one(self.0), one(self.1))
        }
    }
    #[inline(always)]
    unsafe fn zero_where_below(self, test: Self, bound: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            Self(
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(test.0, bound.0), self.0),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(test.1, bound.1), self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: features by the trait's contract.
        unsafe { fold_eight!(_mm256_add_ps(self.0, self.1), _mm_add_ps, _mm_add_ss) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: features by the trait's contract.
        unsafe { fold_eight!(_mm256_max_ps(self.0, self.1), _mm_max_ps, _mm_max_ss) }
    }
}

impl Avx512 {
    /// Lanes 0 to 7 and 8 to 15.
    #[inline(always)]
    unsafe fn halves(self) -> (__m256, __m256) {
        // SAFETY: features by the trait's contract.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0)));
            (_mm512_castps512_ps256(self.0), high)
        }
    }
}

impl Lanes for Avx512 {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract.
        unsafe { Self(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract; the load is an unaligned one.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract; the load is an unaligned one.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: features and sixteen elements by the trait's contract; the load is an unaligned one.
        unsafe {
            let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm512_cvtepi32_ps(wide))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: features and sixteen elements by the trait's contract.
        unsafe { _mm512_storeu_ps(to, self.0) };
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: features and sixteen elements by the trait's contract; the store is an unaligned one.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0)));
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: features by the trait's contract.
        unsafe { Self(_mm512_roundscale_ps::<MODE>(self.0)) }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn zero_where_below(self, test: Self, bound: Self) -> Self {
        // SAFETY: features by the trait's contract.
        unsafe {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(test.0, bound.0);
            Self(_mm512_mask_mov_ps(self.0, below, _mm512_setzero_ps()))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: features by the trait's contract.
        unsafe {
            let (low, high) = self.halves();
            fold_eight!(_mm256_add_ps(low, high), _mm_add_ps, _mm_add_ss)
        }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: features by the trait's contract.
        unsafe {
            let (low, high) = self.halves();
            fold_eight!(_mm256_max_ps(low, high), _mm_max_ps, _mm_max_ss)
        }
    }
}
