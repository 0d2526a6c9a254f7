//! The arithmetic, behind one table of functions that is chosen once per process.
//!
//! Kernels are written once over [`lanes::Lanes`] and compiled for each level; all levels give the same bits. Activations stay
//! f32 throughout: the bf16 dot product of newer machines would round them and make results depend on the machine.
#![expect(
    unsafe_code,
    reason = "vector instructions work on raw pointers and need a check of the machine"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_ptr_alignment,
    clippy::cast_sign_loss,
    clippy::inline_always,
    clippy::needless_range_loop,
    clippy::similar_names,
    reason = "kernels: numbers are in range by construction, inlining is what specialises them, loops mirror registers"
)]

#[cfg(target_arch = "aarch64")]
mod arm;
mod attend;
mod cache;
mod gemm;
mod lanes;
mod level;
mod low_rank;
mod product;
mod quant;
mod rows;
#[cfg(test)]
mod tests;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use attend::{AttendArgs, Query};
pub(crate) use attend::{CHUNK, HEAD_DIM_MAX, QUERIES_MAX};
pub(crate) use cache::{Columns, KvCache, KvPlace, KvShape};
use gemm::GemmArgs;
pub use level::Level;
pub(crate) use low_rank::{LowRankTask, Spaces};
pub(crate) use product::{Activations, Product};
pub(crate) use quant::{Packer, QuantRows, with_packer};
use quant::{QuantFn, RowPlace};
pub(crate) use tiles::{Attention, LayerView, Merge, Split, Tile};

use crate::quant::PanelMut;

type GemmFn = unsafe fn(&GemmArgs, Range<usize>);
type AttendFn<C> = unsafe fn(&AttendArgs<'_, C>, &[Query]);

/// A table of kernels.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    level: Level,
    gemm_f32: GemmFn,
    gemm_bf16: GemmFn,
    gemm_f16: GemmFn,
    attend_f32: AttendFn<f32>,
    attend_bf16: AttendFn<u16>,
    attend_f16: AttendFn<half::f16>,
    attend_int8: AttendFn<i8>,
    merge_parts: unsafe fn(&[f32], usize, &mut [f32]),
    rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    silu_mul: unsafe fn(&mut [f32], &[f32]),
    exp_sum: unsafe fn(&[f32], f32, f32) -> f64,
    exp_all: unsafe fn(&mut [f32], f32, f32),
    best: unsafe fn(&[f32]) -> Option<usize>,
    round_i8: unsafe fn(&[f32], &mut [i8]) -> f32,
    round_row: unsafe fn(&[f32], &RowPlace),
    pack_int8: unsafe fn(&[f32], usize, &mut PanelMut<'_>),
    pack_int4: unsafe fn(&[f32], usize, &mut PanelMut<'_>),
    quant_int8: QuantFn,
    quant_int4: QuantFn,
}

/// Compiles every kernel for one level.
macro_rules! compile {
    ($module:ident, $lanes:ty, $level:expr, ($int8:path, $int4:path) $(, $features:literal)?) => {
        mod $module {
            use super::{
                AttendArgs, GemmArgs, Kernels, Level, PanelMut, Query, Range, RowPlace, attend, gemm,
                quant, rows,
            };

            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn gemm_f32(args: &GemmArgs, rows: Range<usize>) {
                // SAFETY: the caller's.
                unsafe { gemm::gemm::<$lanes, gemm::F32>(args, rows) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn gemm_bf16(args: &GemmArgs, rows: Range<usize>) {
                // SAFETY: the caller's.
                unsafe { gemm::gemm::<$lanes, gemm::Bf16>(args, rows) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn gemm_f16(args: &GemmArgs, rows: Range<usize>) {
                // SAFETY: the caller's.
                unsafe { gemm::gemm::<$lanes, gemm::F16>(args, rows) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn attend_f32(args: &AttendArgs<'_, f32>, queries: &[Query]) {
                // SAFETY: the caller's.
                unsafe { attend::attend::<$lanes, f32>(args, queries) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn attend_bf16(args: &AttendArgs<'_, u16>, queries: &[Query]) {
                // SAFETY: the caller's.
                unsafe { attend::attend::<$lanes, u16>(args, queries) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn attend_f16(args: &AttendArgs<'_, half::f16>, queries: &[Query]) {
                // SAFETY: the caller's.
                unsafe { attend::attend::<$lanes, half::f16>(args, queries) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn attend_int8(args: &AttendArgs<'_, i8>, queries: &[Query]) {
                // SAFETY: the caller's.
                unsafe { attend::attend::<$lanes, i8>(args, queries) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn merge_parts(parts: &[f32], padded_dim: usize, out: &mut [f32]) {
                // SAFETY: the caller's.
                unsafe { attend::merge::<$lanes>(parts, padded_dim, out) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
                // SAFETY: the caller's.
                unsafe { rows::rms_norm::<$lanes>(x, weight, eps) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn silu_mul(gate: &mut [f32], up: &[f32]) {
                // SAFETY: the caller's.
                unsafe { rows::silu_mul::<$lanes>(gate, up) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn exp_sum(x: &[f32], best: f32, scale: f32) -> f64 {
                // SAFETY: the caller's.
                unsafe { rows::exp_sum::<$lanes>(x, best, scale) }
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn exp_all(x: &mut [f32], best: f32, scale: f32) {
                // SAFETY: the caller's.
                unsafe { rows::exp_all::<$lanes>(x, best, scale) };
            }

            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn best(x: &[f32]) -> Option<usize> {
                // SAFETY: the caller's.
                unsafe { rows::best::<$lanes>(x) }
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn round_i8(x: &[f32], out: &mut [i8]) -> f32 {
                // SAFETY: the caller's.
                unsafe { rows::round_i8::<$lanes>(x, out) }
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn round_row(x: &[f32], to: &RowPlace) {
                // SAFETY: the caller's.
                unsafe { quant::pack::round_row::<$lanes>(x, to) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn pack_int8(weights: &[f32], row: usize, to: &mut PanelMut<'_>) {
                // SAFETY: the caller's.
                unsafe { quant::pack::pack_int8::<$lanes>(weights, row, to) };
            }
            /// # Safety
            /// As the kernel's.
            $(#[target_feature(enable = $features)])?
            unsafe fn pack_int4(weights: &[f32], row: usize, to: &mut PanelMut<'_>) {
                // SAFETY: the caller's.
                unsafe { quant::pack::pack_int4::<$lanes>(weights, row, to) };
            }

            pub(super) const KERNELS: Kernels = Kernels {
                level: $level,
                gemm_f32,
                gemm_bf16,
                gemm_f16,
                attend_f32,
                attend_bf16,
                attend_f16,
                attend_int8,
                merge_parts,
                rms_norm,
                silu_mul,
                exp_sum,
                exp_all,
                best,
                round_i8,
                round_row,
                pack_int8,
                pack_int4,
                quant_int8: $int8,
                quant_int4: $int4,
            };
        }
    };
}

compile!(
    plain,
    super::lanes::Plain,
    Level::Plain,
    (quant::plain::int8, quant::plain::int4)
);
#[cfg(target_arch = "aarch64")]
compile!(
    neon,
    super::arm::Neon,
    Level::Neon,
    (quant::neon::int8, quant::neon::int4)
);
#[cfg(target_arch = "x86_64")]
compile!(
    avx2,
    super::x86::Avx2,
    Level::Avx2,
    (quant::avx2::int8, quant::avx2::int4),
    "avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
compile!(
    avx512,
    super::x86::Avx512,
    Level::Avx512,
    (quant::avx2::int8, quant::avx2::int4),
    "avx512f,avx2,fma,f16c"
);

/// Memory that tasks write in disjoint parts.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: whoever hands it to threads gives each of them a part of its own.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn of(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// The beginning. A method, so that closures capture the whole and not the bare pointer.
    fn get(&self) -> *mut T {
        self.0
    }
}

impl Kernels {
    /// The best table up to a level that this machine can run.
    pub(crate) fn at_most(level: Level) -> Self {
        match level.min(Level::detect()) {
            #[cfg(target_arch = "aarch64")]
            Level::Neon if quant::neon::has_dot() => Self {
                quant_int8: quant::neon::int8_dot,
                quant_int4: quant::neon::int4_dot,
                ..neon::KERNELS
            },
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::Amx => Self {
                level: Level::Amx,
                quant_int8: quant::amx::int8,
                quant_int4: quant::amx::int4,
                ..avx512::KERNELS
            },
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if quant::vnni::has() => Self {
                quant_int8: quant::vnni::int8,
                quant_int4: quant::vnni::int4,
                ..avx512::KERNELS
            },
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::KERNELS,
            _ => plain::KERNELS,
        }
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// See [`rows::rms_norm`].
    pub(crate) fn rms_norm(&self, x: &mut [f32], weight: &[f32], eps: f32) {
        assert_eq!(x.len(), weight.len(), "a weight per number");
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.rms_norm)(x, weight, eps) };
    }

    /// `silu(gate) * up` into `gate`.
    pub(crate) fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "as many of both");
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.silu_mul)(gate, up) };
    }

    /// Sum of `exp((x - best) * scale)`.
    pub(crate) fn exp_sum(&self, x: &[f32], best: f32, scale: f32) -> f64 {
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.exp_sum)(x, best, scale) }
    }

    /// See [`rows::round_i8`].
    pub(crate) fn round_i8(&self, x: &[f32], out: &mut [i8]) -> f32 {
        assert_eq!(x.len(), out.len(), "as many of both");
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.round_i8)(x, out) }
    }

    /// See [`rows::best`].
    pub(crate) fn best(&self, x: &[f32]) -> Option<usize> {
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.best)(x) }
    }

    /// Replaces `x` by `exp((x - best) * scale)`.
    pub(crate) fn exp_all(&self, x: &mut [f32], best: f32, scale: f32) {
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.exp_all)(x, best, scale) };
    }
}

/// Calls `f` with each row of `data` (rows, width), on several threads where that is worth it.
pub(crate) fn for_rows(
    pool: &mut super::pool::Pool,
    data: &mut [f32],
    width: usize,
    f: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    /// Numbers below which waking a thread costs more than the work.
    const WORTH_IT: usize = 8 << 10;
    let rows = data.len() / width;
    let per_task = rows
        .div_ceil(pool.thread_count() * 4)
        .max((WORTH_IT / width).max(1));
    let shared = Shared::of(data);
    pool.run(rows.div_ceil(per_task), &|task| {
        for row in task * per_task..((task + 1) * per_task).min(rows) {
            // SAFETY: the row is inside `data`, and only this task has it.
            f(row, unsafe {
                std::slice::from_raw_parts_mut(shared.get().add(row * width), width)
            });
        }
    });
}
