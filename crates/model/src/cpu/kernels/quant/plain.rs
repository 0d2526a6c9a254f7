//! The reference: one token, one output, one number at a time.

use std::ops::Range;

use super::args::{QuantArgs, TILE};
use crate::quant::{GROUP, GROUP_BYTES_4, GROUP_BYTES_8, PANEL};

#[inline(always)]
fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// # Safety
/// As [`QuantArgs`].
pub(in crate::cpu::kernels) unsafe fn int8(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe {
        each(args, panels, |weights, index, row, k| {
            let at = index * GROUP_BYTES_8 + k / 4 * GROUP + row * 4 + k % 4;
            i32::from(weights.add(at).read().cast_signed())
        });
    }
}

/// # Safety
/// As [`QuantArgs`].
pub(in crate::cpu::kernels) unsafe fn int4(args: &QuantArgs, panels: Range<usize>) {
    // SAFETY: the caller's.
    unsafe {
        each(args, panels, |weights, index, row, k| {
            // The first half of a group's inputs is in the low nibbles.
            let at = index * GROUP_BYTES_4 + k % 32 / 4 * GROUP + row * 4 + k % 4;
            i32::from(weights.add(at).read() >> (k / 32 * 4) & 15)
        });
    }
}

/// # Safety
/// As [`QuantArgs`]; `weight` reads a weight by (base, panel and group, output, input).
unsafe fn each(
    args: &QuantArgs,
    panels: Range<usize>,
    weight: impl Fn(*const u8, usize, usize, usize) -> i32,
) {
    for panel in panels {
        for token in 0..args.tokens {
            let mut values = [0f32; PANEL];
            for (row, value) in values.iter_mut().enumerate() {
                for group in 0..args.groups {
                    let index = panel * args.groups + group;
                    // SAFETY: the caller's.
                    unsafe {
                        let x = args.token(token).add(group * TILE * GROUP);
                        let place = args.place(token) + group * TILE;
                        let sum: i32 = (0..GROUP)
                            .map(|k| {
                                weight(args.weights, index, row, k) * i32::from(x.add(k).read())
                            })
                            .sum();
                        let scale = bf16(args.weight_scales.add(index * PANEL + row).read());
                        let x_scale = args.scales.add(place).read();
                        *value = (sum as f32).mul_add(scale * x_scale, *value);
                        if !args.weight_mins.is_null() {
                            let min = bf16(args.weight_mins.add(index * PANEL + row).read());
                            let x_sum = args.sums.add(place).read() as f32 * x_scale;
                            *value = x_sum.mul_add(min, *value);
                        }
                    }
                }
            }
            // SAFETY: the caller's.
            unsafe { args.put(token, panel, &values) };
        }
    }
}
