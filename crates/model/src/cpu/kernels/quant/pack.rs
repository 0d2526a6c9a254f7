//! From f32 to few bits: activations at every product, weights once when they are loaded.

use super::super::lanes::{LANES, Lanes};
use super::args::{RowPlace, TILE};
use crate::quant::{GROUP, GROUP_BYTES_4, GROUP_BYTES_8, PANEL, PanelMut};

/// Below this the largest number of a group counts as zero: its inverse must be finite.
const TINY: f32 = 1e-30;

/// The sixty-four numbers of a group, filled up with zeros.
#[inline(always)]
unsafe fn group<V: Lanes>(x: &[f32]) -> [V; GROUP / LANES] {
    let mut all = [0f32; GROUP];
    let from = if x.len() == GROUP {
        x.as_ptr()
    } else {
        all[..x.len()].copy_from_slice(x);
        all.as_ptr()
    };
    // SAFETY: the caller's; sixteen elements at each place.
    unsafe {
        let mut lanes = [V::splat(0.0); GROUP / LANES];
        for (at, lanes) in lanes.iter_mut().enumerate() {
            *lanes = V::load(from.add(at * LANES));
        }
        lanes
    }
}

#[inline(always)]
unsafe fn largest<V: Lanes>(x: [V; GROUP / LANES]) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let zero = V::splat(0.0);
        let mut most = zero;
        for x in x {
            most = most.max(x).max(zero.sub(x));
        }
        most.max_lane()
    }
}

/// Rounds one token's row. A group that holds something that is not a finite number gets a scale that is none, so that results
/// show it.
///
/// # Safety
/// As [`Lanes`] and [`RowPlace`].
#[inline(always)]
pub(in crate::cpu::kernels) unsafe fn round_row<V: Lanes>(x: &[f32], to: &RowPlace) {
    let first = to.token / TILE * to.groups * TILE + to.token % TILE;
    // SAFETY: the caller's.
    unsafe {
        for (at, x) in x.chunks(GROUP).enumerate() {
            let place = first + at * TILE;
            let x = group::<V>(x);
            let most = largest(x);
            let inverse = if most < TINY { 0.0 } else { 127.0 / most };
            let (mut sum, mut poison) = (V::splat(0.0), V::splat(0.0));
            for (part, x) in x.into_iter().enumerate() {
                poison = x.mul_add(V::splat(0.0), poison);
                let rounded = x.mul(V::splat(inverse)).round();
                rounded.store_i8(to.q.add(place * GROUP + part * LANES));
                sum = sum.add(rounded);
            }
            to.scales.add(place).write(most / 127.0 + poison.sum());
            to.sums.add(place).write(sum.sum() as i32);
        }
    }
}

/// bf16 at least as large.
fn up(x: f32) -> u16 {
    let bits = x.to_bits();
    let exact = bits.trailing_zeros() >= 16;
    let cut = (bits >> 16) as u16;
    // Away from zero for positive numbers, towards it for negative ones.
    if exact || x < 0.0 { cut } else { cut + 1 }
}

/// bf16 at most as large.
fn down(x: f32) -> u16 {
    up(-x) ^ 0x8000
}

fn wide(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Packs one output's weights at `row` of a panel.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(in crate::cpu::kernels) unsafe fn pack_int8<V: Lanes>(
    weights: &[f32],
    row: usize,
    to: &mut PanelMut<'_>,
) {
    for (at, weights) in weights.chunks(GROUP).enumerate() {
        // SAFETY: the caller's.
        unsafe {
            let weights = group::<V>(weights);
            let scale = up(largest(weights) / 127.0);
            let inverse = if wide(scale) < TINY {
                0.0
            } else {
                1.0 / wide(scale)
            };
            let mut bytes = [0i8; GROUP];
            for (part, weights) in weights.into_iter().enumerate() {
                let rounded = weights.mul(V::splat(inverse)).round();
                rounded.store_i8(bytes.as_mut_ptr().add(part * LANES));
            }
            to.scales[at * PANEL + row] = scale;
            let data = &mut to.data[at * GROUP_BYTES_8..][..GROUP_BYTES_8];
            for (quad, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
                let place = quad * 64 + row * 4;
                data[place..place + 4].copy_from_slice(&bytes.map(i8::cast_unsigned));
            }
        }
    }
}

/// Packs one output's weights at `row` of a panel.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(in crate::cpu::kernels) unsafe fn pack_int4<V: Lanes>(
    weights: &[f32],
    row: usize,
    to: &mut PanelMut<'_>,
) {
    for (at, weights) in weights.chunks(GROUP).enumerate() {
        let (mut least, mut most) = (0f32, 0f32);
        for &weight in weights {
            least = if weight < least { weight } else { least };
            most = if weight > most { weight } else { most };
        }
        let min = down(least);
        let scale = up((most - wide(min)) / 15.0);
        let inverse = if wide(scale) < TINY {
            0.0
        } else {
            1.0 / wide(scale)
        };
        let mut all = [wide(min); GROUP];
        all[..weights.len()].copy_from_slice(weights);
        let mut levels = [0i8; GROUP];
        // SAFETY: the caller's; the levels are from 0 to 15 because minimum and scale cover the group.
        unsafe {
            for part in 0..GROUP / LANES {
                V::load(all.as_ptr().add(part * LANES))
                    .sub(V::splat(wide(min)))
                    .mul(V::splat(inverse))
                    .round()
                    .store_i8(levels.as_mut_ptr().add(part * LANES));
            }
        }
        to.scales[at * PANEL + row] = scale;
        to.mins[at * PANEL + row] = min;
        let data = &mut to.data[at * GROUP_BYTES_4..][..GROUP_BYTES_4];
        for quad in 0..GROUP / 8 {
            for k in 0..4 {
                let (low, high) = (levels[quad * 4 + k], levels[GROUP / 2 + quad * 4 + k]);
                data[quad * 64 + row * 4 + k] = (low.min(15) | high.min(15) << 4).cast_unsigned();
            }
        }
    }
}
