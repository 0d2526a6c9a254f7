//! Matrix products of a batch, cut into tasks.

use super::gemm::GemmArgs;
use super::quant::{QuantArgs, QuantRows};
use super::{Kernels, Shared};
use crate::cpu::pool::Pool;
use crate::quant::{PANEL, QuantKind, QuantMatrix, Weights};
use crate::weights::Matrix;

/// Products in a job.
const PRODUCTS_MAX: usize = 4;

/// Bytes of weights in one task: they stay in the second-level cache while all tokens go by.
const TASK_BYTES: usize = 256 << 10;

/// Tokens that go by a panel of quantized weights before the next one: their activations stay in the second-level cache.
const TOKENS_MAX: usize = 256;

/// Weights and where their results go, for one matrix product.
pub(crate) struct Product<'a> {
    /// (rows, cols)
    pub weights: &'a Weights,
    /// (rows)
    pub bias: Option<&'a [f32]>,
    /// (tokens, rows) begins at this column of the output's rows
    pub out_col: usize,
}

/// Activations in and out of one or more matrix products.
pub(crate) struct Activations<'a> {
    /// (tokens, `x_width`); products read the first `cols` of each row
    pub x: &'a [f32],
    /// Numbers per row of `x`.
    pub x_width: usize,
    /// Where `x` is rounded to for quantized weights.
    pub rounded: &'a mut QuantRows,
    /// (tokens, `out_width`)
    pub out: &'a mut [f32],
    /// Numbers per row of `out`.
    pub out_width: usize,
    pub tokens: usize,
    /// Adds to `out` instead of replacing it.
    pub accumulate: bool,
}

/// A product's tasks in the job: units are rows or, of quantized weights, panels.
struct Plan<'a> {
    product: &'a Product<'a>,
    units: usize,
    task_units: usize,
    first_task: usize,
}

impl Plan<'_> {
    fn tasks(&self) -> usize {
        self.units.div_ceil(self.task_units)
    }
}

/// What all tasks of a job share.
struct Job<'a> {
    x: &'a [f32],
    x_width: usize,
    rounded: &'a QuantRows,
    out: Shared<f32>,
    out_width: usize,
    tokens: usize,
    accumulate: bool,
}

impl Kernels {
    /// Products of the same activations with several matrices, as one job (and one before it that rounds the activations, where
    /// weights are quantized).
    pub(crate) fn multiply(&self, pool: &mut Pool, products: &[Product<'_>], act: Activations<'_>) {
        let Activations {
            x,
            x_width,
            rounded,
            out,
            out_width,
            tokens,
            accumulate,
        } = act;
        assert!(
            x.len() >= tokens * x_width && out.len() >= tokens * out_width,
            "activations cover the tokens"
        );
        let mut plans: [Option<Plan<'_>>; PRODUCTS_MAX] = [const { None }; PRODUCTS_MAX];
        assert!(products.len() <= plans.len(), "products fit a job");
        let (mut tasks, mut rounded_cols) = (0, None);
        for (plan, product) in plans.iter_mut().zip(products) {
            let (rows, cols) = (product.weights.rows(), product.weights.cols());
            assert!(cols <= x_width, "inputs fit their rows");
            assert!(
                product.out_col + rows <= out_width,
                "outputs fit their rows"
            );
            assert!(
                product.bias.is_none_or(|bias| bias.len() == rows),
                "a bias has one number per row"
            );
            if matches!(product.weights, Weights::Quantized(_)) {
                assert!(
                    rounded_cols.is_none_or(|have| have == cols),
                    "quantized products of a job have the same inputs"
                );
                rounded_cols = Some(cols);
            }
            let mut next = plan_of(product, pool.thread_count());
            next.first_task = tasks;
            tasks += next.tasks();
            *plan = Some(next);
        }
        if let Some(cols) = rounded_cols {
            self.round_rows(pool, (x, x_width, cols), tokens, rounded);
        }
        let job = Job {
            x,
            x_width,
            rounded,
            out: Shared::of(out),
            out_width,
            tokens,
            accumulate,
        };
        pool.run(tasks, &|task| {
            let plan = plans
                .iter()
                .flatten()
                .rev()
                .find(|plan| plan.first_task <= task)
                .expect("plans begin at task 0");
            self.run_task(plan, &job, task);
        });
    }

    /// Rounds the first `cols` numbers of each row.
    fn round_rows(
        &self,
        pool: &mut Pool,
        (x, width, cols): (&[f32], usize, usize),
        tokens: usize,
        rounded: &mut QuantRows,
    ) {
        let place = rounded.begin(tokens, cols);
        let per_task = tokens.div_ceil(pool.thread_count() * 4).max(8);
        pool.run(tokens.div_ceil(per_task), &|task| {
            for token in task * per_task..((task + 1) * per_task).min(tokens) {
                let mut to = place;
                to.token = token;
                // SAFETY: there is room for the tokens, each has places of its own, and the table is only made for a machine that
                // has the instructions.
                unsafe { (self.round_row)(&x[token * width..][..cols], &to) };
            }
        });
    }

    fn run_task(&self, plan: &Plan<'_>, job: &Job<'_>, task: usize) {
        let start = (task - plan.first_task) * plan.task_units;
        let units = start..(start + plan.task_units).min(plan.units);
        // SAFETY: the column is inside the output's rows, checked before the job.
        let out = unsafe { job.out.get().add(plan.product.out_col) };
        let bias = plan.product.bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
        match plan.product.weights {
            Weights::Stored(weights) => {
                let args = GemmArgs {
                    x: job.x.as_ptr(),
                    x_stride: job.x_width,
                    weights: weights.bytes().as_ptr(),
                    cols: weights.cols,
                    bias,
                    out,
                    out_stride: job.out_width,
                    tokens: job.tokens,
                    accumulate: job.accumulate,
                };
                let gemm = self.gemm_of(weights);
                // SAFETY: shapes were checked before the job; each task writes the columns of its own rows; the table is only
                // made for a machine that has the instructions.
                unsafe { gemm(&args, units) };
            }
            Weights::Quantized(weights) => {
                let args = quant_args(weights, job, (bias, out));
                let multiply = match weights.kind() {
                    QuantKind::Int8 => self.quant_int8,
                    QuantKind::Int4 => self.quant_int4,
                };
                for first in (0..job.tokens).step_by(TOKENS_MAX) {
                    let part = args.tokens(first, TOKENS_MAX.min(job.tokens - first));
                    // SAFETY: as above; the activations were rounded in the job before.
                    unsafe { multiply(&part, units.clone()) };
                }
            }
        }
    }
}

fn plan_of<'a>(product: &'a Product<'a>, threads: usize) -> Plan<'a> {
    let (units, task_units) = match product.weights {
        Weights::Stored(Matrix {
            rows, cols, dtype, ..
        }) => {
            // A multiple of 24 rows, so that whole tiles of 3, 4, 6 and 8 rows fit; small enough to share among threads.
            let by_cache = TASK_BYTES / dtype.bytes_of(*cols).max(1);
            let by_threads = rows.div_ceil(threads * 4);
            (*rows, by_cache.min(by_threads).max(24).next_multiple_of(24))
        }
        Weights::Quantized(weights) => {
            let panels = weights.panels();
            let by_cache = TASK_BYTES / (weights.groups() * weights.kind().group_bytes());
            (panels, by_cache.min(panels.div_ceil(threads * 4)).max(1))
        }
    };
    Plan {
        product,
        units,
        task_units,
        first_task: 0,
    }
}

fn quant_args(
    weights: &QuantMatrix,
    job: &Job<'_>,
    (bias, out): (*const f32, *mut f32),
) -> QuantArgs {
    let (scales, mins) = weights.numbers();
    let (q, x_scales, x_sums) = job.rounded.pointers();
    debug_assert_eq!(job.rounded.groups(), weights.groups());
    debug_assert!(scales.len() >= weights.panels() * PANEL);
    QuantArgs {
        q,
        scales: x_scales,
        sums: x_sums,
        groups: weights.groups(),
        tokens: job.tokens,
        weights: weights.data().as_ptr(),
        weight_scales: scales.as_ptr(),
        weight_mins: if mins.is_empty() {
            std::ptr::null()
        } else {
            mins.as_ptr()
        },
        rows: weights.rows(),
        bias,
        out,
        out_stride: job.out_width,
        accumulate: job.accumulate,
    }
}
