//! Activations times group-quantized weights, with integer products.
//!
//! Weights lie in panels of sixteen outputs, groups of 64 inputs (see [`crate::quant`]); activations are rounded to eight bits for each
//! token and group. Sums over a group are exact integers, and what follows (`f32(sum) * (weight scale * activation scale)`, added
//! group after group with one rounding each) is the same on every level, so all levels and all numbers of tokens give the same bits.

pub(super) mod amx;
mod args;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod pack;
pub(super) mod plain;
#[cfg(target_arch = "x86_64")]
pub(super) mod vnni;

use super::{Kernels, Level, Shared};
use crate::cpu::{CpuError, CpuThreads};
use crate::quant::{PANEL, PanelMut, QuantKind};
use crate::weights::Matrix;

pub(crate) use args::QuantRows;
pub(super) use args::{QuantArgs, QuantFn, RowPlace};

/// Panels that are packed in one turn, a few milliseconds' worth: whoever serves meanwhile waits no longer for a load than for a step.
const PANELS_A_TURN: usize = 64;

/// Quantizes weights on all threads.
pub(crate) struct Packer<'a> {
    pub kernels: &'a Kernels,
    pub threads: &'a CpuThreads,
}

impl Packer<'_> {
    /// Fills `memory`: the panels' integers, then scales, then minima, all zero before.
    pub(crate) fn pack(&mut self, matrix: &Matrix, kind: QuantKind, memory: &mut [u8]) {
        let (panels, groups) = (
            matrix.rows.div_ceil(PANEL),
            matrix.cols.div_ceil(crate::quant::GROUP),
        );
        let (panel_bytes, panel_numbers) = (groups * kind.group_bytes(), groups * PANEL);
        let (data, numbers) = memory.split_at_mut(panels * panel_bytes);
        let wanted = panels * panel_numbers * kind.numbers() * size_of::<u16>();
        assert_eq!(numbers.len(), wanted, "memory for the whole matrix");
        assert!(
            numbers.as_ptr().cast::<u16>().is_aligned(),
            "words at even addresses"
        );
        let (data, numbers) = (Shared::of(data), Shared::of(numbers));
        let kernels = self.kernels;
        let pack = match kind {
            QuantKind::Int8 => kernels.pack_int8,
            QuantKind::Int4 => kernels.pack_int4,
        };
        let pack_panel = |panel: usize| {
            // SAFETY: each panel has integers, scales and minima of its own, inside the memory as just checked.
            let mut to = unsafe {
                let scales = numbers.get().cast::<u16>().add(panel * panel_numbers);
                let mins = scales.add(panels * panel_numbers);
                PanelMut {
                    data: std::slice::from_raw_parts_mut(
                        data.get().add(panel * panel_bytes),
                        panel_bytes,
                    ),
                    scales: std::slice::from_raw_parts_mut(scales, panel_numbers),
                    mins: match kind {
                        QuantKind::Int8 => &mut [],
                        QuantKind::Int4 => std::slice::from_raw_parts_mut(mins, panel_numbers),
                    },
                }
            };
            let mut weights = vec![0.0; matrix.cols];
            for row in 0..PANEL.min(matrix.rows - panel * PANEL) {
                matrix.read_row(panel * PANEL + row, &mut weights);
                // SAFETY: the table is only made for a machine that has the instructions.
                unsafe { pack(&weights, row, &mut to) };
            }
        };
        for first in (0..panels).step_by(PANELS_A_TURN) {
            let count = PANELS_A_TURN.min(panels - first);
            self.threads.turn().run(count, &|at| pack_panel(first + at));
        }
    }
}

/// Calls `f` with what quantizes matrices on all threads of the machine.
pub(crate) fn with_packer<T>(
    level: Level,
    f: impl FnOnce(&mut Packer<'_>) -> T,
) -> Result<T, CpuError> {
    let mut packer = Packer {
        kernels: &Kernels::at_most(level),
        threads: &CpuThreads::new(0)?,
    };
    Ok(f(&mut packer))
}
