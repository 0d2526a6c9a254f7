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
    clippy::cast_sign_loss,
    clippy::inline_always,
    clippy::needless_range_loop,
    clippy::similar_names,
    reason = "kernels: numbers are in range by construction, inlining is what specialises them, loops mirror registers"
)]

mod attend;
mod cache;
mod gemm;
mod lanes;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use attend::{AttendArgs, Query};
pub(crate) use attend::{HEAD_DIM_MAX, QUERIES_MAX};
use cache::Cells;
pub(crate) use cache::{Columns, KvCache, KvPlace, KvShape};
use gemm::GemmArgs;
use weir_scheduler::BlockId;

use crate::weights::{Matrix, WeightType};

/// Instructions a table of kernels uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Any machine.
    Plain,
    /// x86 with AVX2, FMA and F16C.
    Avx2,
    /// x86 with AVX-512F as well.
    Avx512,
}

impl Level {
    /// The best this machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 && is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Plain
    }
}

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
    rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    silu_mul: unsafe fn(&mut [f32], &[f32]),
    exp_sum: unsafe fn(&[f32], f32, f32) -> f64,
    exp_all: unsafe fn(&mut [f32], f32, f32),
}

/// Compiles every kernel for one level.
macro_rules! compile {
    ($module:ident, $lanes:ty, $level:expr $(, $features:literal)?) => {
        mod $module {
            use super::{AttendArgs, GemmArgs, Kernels, Level, Query, Range, attend, gemm, rows};

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

            pub(super) const KERNELS: Kernels = Kernels {
                level: $level,
                gemm_f32,
                gemm_bf16,
                gemm_f16,
                attend_f32,
                attend_bf16,
                rms_norm,
                silu_mul,
                exp_sum,
                exp_all,
            };
        }
    };
}

compile!(plain, super::lanes::Plain, Level::Plain);
#[cfg(target_arch = "x86_64")]
compile!(avx2, super::x86::Avx2, Level::Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
compile!(
    avx512,
    super::x86::Avx512,
    Level::Avx512,
    "avx512f,avx2,fma,f16c"
);

/// Rows of activations and where they go, for one matrix product.
pub(crate) struct Product<'a> {
    /// (rows, cols)
    pub weights: &'a Matrix,
    /// (rows)
    pub bias: Option<&'a [f32]>,
    /// (tokens, rows) begins at this column of the output's rows
    pub out_col: usize,
}

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

/// Activations in and out of one or more matrix products.
pub(crate) struct Activations<'a> {
    /// (tokens, `x_width`); products read the first `cols` of each row
    pub x: &'a [f32],
    /// Numbers per row of `x`.
    pub x_width: usize,
    /// (tokens, `out_width`)
    pub out: &'a mut [f32],
    /// Numbers per row of `out`.
    pub out_width: usize,
    pub tokens: usize,
    /// Adds to `out` instead of replacing it.
    pub accumulate: bool,
}

/// Bytes of weights in one task: they stay in the second-level cache while all tokens go by.
const TASK_BYTES: usize = 256 << 10;

impl Kernels {
    /// The best table up to a level that this machine can run.
    pub(crate) fn at_most(level: Level) -> Self {
        match level.min(Level::detect()) {
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

    /// Products of the same activations with several matrices, as one job.
    pub(crate) fn multiply(
        &self,
        pool: &mut super::pool::Pool,
        products: &[Product<'_>],
        act: Activations<'_>,
    ) {
        let Activations {
            x,
            x_width,
            out,
            out_width,
            tokens,
            accumulate,
        } = act;
        let mut plans: [Option<Plan<'_>>; 4] = [const { None }; 4];
        assert!(
            products.len() <= plans.len(),
            "at most four products in a job"
        );
        let mut tasks = 0;
        for (plan, product) in plans.iter_mut().zip(products) {
            let Matrix { rows, cols, .. } = *product.weights;
            assert!(
                x.len() >= tokens * x_width && out.len() >= tokens * out_width,
                "activations cover the tokens"
            );
            assert!(cols <= x_width, "inputs fit their rows");
            assert!(
                product.out_col + rows <= out_width,
                "outputs fit their rows"
            );
            assert!(
                product.bias.is_none_or(|bias| bias.len() == rows),
                "a bias has one number per row"
            );
            // A multiple of 24 rows, so that whole tiles of 3, 4, 6 and 8 rows fit; small enough to share among threads.
            let by_cache = TASK_BYTES / (cols * product.weights.dtype.size()).max(1);
            let by_threads = rows.div_ceil(pool.thread_count() * 4);
            let task_rows = by_cache.min(by_threads).max(24).next_multiple_of(24);
            *plan = Some(Plan {
                product,
                task_rows,
                first_task: tasks,
            });
            tasks += rows.div_ceil(task_rows);
        }
        let shared = Shared::of(out);
        pool.run(tasks, &|task| {
            let plan = plans
                .iter()
                .flatten()
                .rev()
                .find(|plan| plan.first_task <= task)
                .expect("plans begin at task 0");
            let weights = plan.product.weights;
            let start = (task - plan.first_task) * plan.task_rows;
            let rows = start..(start + plan.task_rows).min(weights.rows);
            // SAFETY: the column is inside the output's rows, checked above.
            let out = unsafe { shared.get().add(plan.product.out_col) };
            let args = GemmArgs {
                x: x.as_ptr(),
                x_stride: x_width,
                weights: weights.bytes().as_ptr(),
                cols: weights.cols,
                bias: plan.product.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                out,
                out_stride: out_width,
                tokens,
                accumulate,
            };
            let gemm = match weights.dtype {
                WeightType::F32 => self.gemm_f32,
                WeightType::Bf16 => self.gemm_bf16,
                WeightType::F16 => self.gemm_f16,
            };
            // SAFETY: shapes were checked above; each task writes the columns of its own rows; the table is only made for a
            // machine that has the instructions.
            unsafe { gemm(&args, rows) };
        });
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

    /// Replaces `x` by `exp((x - best) * scale)`.
    pub(crate) fn exp_all(&self, x: &mut [f32], best: f32, scale: f32) {
        // SAFETY: the table is only made for a machine that has the instructions.
        unsafe { (self.exp_all)(x, best, scale) };
    }

    /// Attention of one tile of queries.
    ///
    /// # Safety
    /// `out` (tokens, heads, `head_dim`) is good for the tile's tokens and heads, and nobody else touches those.
    unsafe fn attend(&self, layer: &LayerView<'_>, tile: &Tile, io: (&[f32], Shared<f32>)) {
        let (q, out) = io;
        let group = layer.head_count / layer.kv_heads;
        let empty = Query {
            q: std::ptr::null(),
            out: std::ptr::null_mut(),
            first: 0,
            last: 0,
        };
        let mut queries = [empty; QUERIES_MAX];
        let mut count = 0;
        for token in tile.first_token..tile.first_token + tile.token_count {
            let last = (tile.position + token - tile.first_token) as usize;
            let first = layer
                .window
                .map_or(0, |window| (last + 1).saturating_sub(window));
            for head in tile.first_head..tile.first_head + tile.head_count {
                let head = (tile.kv_head as usize) * group + head as usize;
                let from = token as usize * layer.q_width + head * layer.head_dim;
                // SAFETY: the caller's for `out`; the slice checks `q`.
                let out = unsafe {
                    out.get()
                        .add((token as usize * layer.head_count + head) * layer.head_dim)
                };
                queries[count] = Query {
                    q: q[from..][..layer.head_dim].as_ptr(),
                    out,
                    first,
                    last,
                };
                count += 1;
            }
        }
        let scale = 1.0 / (layer.head_dim as f32).sqrt();
        macro_rules! run {
            ($keys:expr, $values:expr, $attend:expr) => {{
                let args = AttendArgs {
                    keys: $keys.as_ptr(),
                    values: $values.as_ptr(),
                    table: &layer.tables[tile.table as usize..],
                    kv_heads: layer.kv_heads,
                    head: tile.kv_head as usize,
                    block_tokens: layer.block_tokens,
                    head_dim: layer.head_dim,
                    padded_dim: layer.head_dim.next_multiple_of(lanes::LANES),
                    scale,
                };
                // SAFETY: the table's blocks are inside the cache and cover the positions, checked when the batch came in;
                // the kernels are only made for a machine that has the instructions.
                unsafe { $attend(&args, &queries[..count]) };
            }};
        }
        match layer.cells {
            Cells::F32 { keys, values } => run!(keys, values, self.attend_f32),
            Cells::Bf16 { keys, values } => run!(keys, values, self.attend_bf16),
        }
    }

    /// Attention of all tiles, which share no (token, head). `q` is (tokens, `q_width`), `out` (tokens, heads, `head_dim`).
    pub(crate) fn attend_all(
        &self,
        pool: &mut super::pool::Pool,
        layer: &LayerView<'_>,
        tiles: &[Tile],
        q: &[f32],
        out: &mut [f32],
    ) {
        let shared = Shared::of(out);
        let tokens = out.len() / (layer.head_count * layer.head_dim);
        pool.run(tiles.len(), &|index| {
            let tile = &tiles[index];
            assert!(
                (tile.first_token + tile.token_count) as usize <= tokens,
                "a tile's tokens are in the batch"
            );
            assert!(
                (tile.token_count * tile.head_count) as usize <= QUERIES_MAX,
                "a tile fits the kernel"
            );
            // SAFETY: inside `out` as just checked; tiles are disjoint by this function's contract.
            unsafe { self.attend(layer, tile, (q, shared)) };
        });
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

struct Plan<'a> {
    product: &'a Product<'a>,
    task_rows: usize,
    first_task: usize,
}

/// What attention needs to know of a layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerView<'a> {
    pub cells: Cells<'a>,
    /// All rows' block tables.
    pub tables: &'a [BlockId],
    pub head_count: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Numbers per token in `q`.
    pub q_width: usize,
    pub block_tokens: usize,
    /// Positions a query sees, itself included; `None` is all.
    pub window: Option<usize>,
}

/// Queries that go through the cache together: some tokens of one row, some heads of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// First token in the batch, and its position in the sequence.
    pub first_token: u32,
    pub position: u32,
    pub token_count: u32,
    pub kv_head: u32,
    /// First head inside the group of `kv_head`.
    pub first_head: u32,
    pub head_count: u32,
    /// Where the row's block table begins among all tables.
    pub table: u32,
}
