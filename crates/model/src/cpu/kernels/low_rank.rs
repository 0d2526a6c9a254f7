//! What adapters add to products: out += scale · up · (down · x), for some tokens of a batch.
//!
//! Both products are the ones of [`super::gemm`], so what a token gets does not depend on the tokens beside it.

use super::gemm::GemmArgs;
use super::{GemmFn, Kernels, Shared};
use crate::adapter::LowRank;
use crate::cpu::pool::Pool;
use crate::weights::{Matrix, WeightType};

/// One pair of matrices for some tokens.
pub(crate) struct LowRankTask<'a> {
    pub first_token: usize,
    pub tokens: usize,
    pub pair: &'a LowRank,
    pub scale: f32,
    /// Where its numbers begin in the rows between. No other task of the job has the same tokens and columns.
    pub between_col: usize,
    /// Where its results go in the rows of the output; the same holds.
    pub out_col: usize,
}

/// What all tasks of a job read and write.
pub(crate) struct Spaces<'a> {
    /// (tokens, `x_width`); pairs read the first columns of each row
    pub x: &'a [f32],
    pub x_width: usize,
    /// (tokens, `between_width`)
    pub between: &'a mut [f32],
    pub between_width: usize,
    /// (tokens, `out_width`)
    pub out: &'a mut [f32],
    pub out_width: usize,
}

impl Kernels {
    /// Runs the tasks, each on one thread. `task` may have nothing to do.
    ///
    /// # Panics
    /// A task reaches outside of the spaces.
    pub(crate) fn add_low_rank<'a>(
        &self,
        pool: &mut Pool,
        tasks: usize,
        task: &(dyn Fn(usize) -> Option<LowRankTask<'a>> + Sync),
        spaces: Spaces<'_>,
    ) {
        let Spaces {
            x,
            x_width,
            between,
            between_width,
            out,
            out_width,
        } = spaces;
        let rows = |size: usize, width: usize| size / width.max(1);
        let room = rows(x.len(), x_width)
            .min(rows(between.len(), between_width))
            .min(rows(out.len(), out_width));
        let (between, out) = (Shared::of(between), Shared::of(out));
        pool.run(tasks, &|index| {
            let Some(task) = task(index) else { return };
            let LowRank { down, up } = task.pair;
            let rank = down.rows;
            assert!(
                task.first_token + task.tokens <= room
                    && down.cols <= x_width
                    && up.cols == rank
                    && task.between_col + rank <= between_width
                    && task.out_col + up.rows <= out_width,
                "a task stays inside of what the job reads and writes"
            );
            // SAFETY: the tokens and columns lie inside, which is asserted above, and belong to this task alone.
            let low = unsafe {
                let first = between.get().add(task.first_token * between_width);
                first.add(task.between_col)
            };
            let args = GemmArgs {
                x: x[task.first_token * x_width..].as_ptr(),
                x_stride: x_width,
                weights: down.bytes().as_ptr(),
                cols: down.cols,
                bias: std::ptr::null(),
                out: low,
                out_stride: between_width,
                tokens: task.tokens,
                accumulate: false,
            };
            // SAFETY: shapes as asserted; the table is only made for a machine that has the instructions.
            unsafe { self.gemm_of(down)(&args, 0..rank) };
            for token in 0..task.tokens {
                // SAFETY: as above; the product before wrote these numbers.
                let row =
                    unsafe { std::slice::from_raw_parts_mut(low.add(token * between_width), rank) };
                for number in row {
                    *number *= task.scale;
                }
            }
            // SAFETY: as for `low`.
            let out = unsafe { out.get().add(task.first_token * out_width + task.out_col) };
            let args = GemmArgs {
                x: low,
                x_stride: between_width,
                weights: up.bytes().as_ptr(),
                cols: rank,
                bias: std::ptr::null(),
                out,
                out_stride: out_width,
                tokens: task.tokens,
                accumulate: true,
            };
            // SAFETY: as above.
            unsafe { self.gemm_of(up)(&args, 0..up.rows) };
        });
    }

    /// The product for a matrix as it is stored.
    pub(super) fn gemm_of(&self, matrix: &Matrix) -> GemmFn {
        match matrix.dtype {
            WeightType::F32 => self.gemm_f32,
            WeightType::Bf16 => self.gemm_bf16,
            WeightType::F16 => self.gemm_f16,
            WeightType::Blocks(_) => {
                unreachable!("weights in blocks are quantized when they are loaded")
            }
        }
    }
}
