//! Work on one row of numbers.

use super::lanes::{LANES, Lanes, exp};

/// Numbers summed in f32 before they go into a f64: bounds the rounding error of long sums.
const PARTIAL: usize = 64 * LANES;

/// Calls `f` with each sixteen numbers; the last group is filled up with `fill`.
#[inline(always)]
unsafe fn each<V: Lanes>(x: &[f32], fill: f32, mut f: impl FnMut(V)) {
    let (groups, rest) = x.as_chunks::<LANES>();
    // SAFETY: sixteen elements each.
    unsafe {
        for group in groups {
            f(V::load(group.as_ptr()));
        }
        if !rest.is_empty() {
            let mut group = [fill; LANES];
            group[..rest.len()].copy_from_slice(rest);
            f(V::load(group.as_ptr()));
        }
    }
}

/// An operation on two groups of sixteen numbers. Not a closure: a closure of a generic function is compiled without the
/// instructions of the function around it, and when it is too long to be inlined, each of them becomes a call.
trait Pairwise<V: Lanes>: Copy {
    /// # Safety
    /// As [`Lanes`].
    unsafe fn apply(self, x: V, y: V) -> V;
}

/// Writes the operation's result for each sixteen numbers of both over the first.
#[inline(always)]
unsafe fn zip<V: Lanes>(x: &mut [f32], y: &[f32], operation: impl Pairwise<V>) {
    let (xs, x_rest) = x.as_chunks_mut::<LANES>();
    let (ys, y_rest) = y.as_chunks::<LANES>();
    // SAFETY: sixteen elements each.
    unsafe {
        for (x, y) in xs.iter_mut().zip(ys) {
            operation
                .apply(V::load(x.as_ptr()), V::load(y.as_ptr()))
                .store(x.as_mut_ptr());
        }
        if !x_rest.is_empty() {
            let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
            a[..x_rest.len()].copy_from_slice(x_rest);
            b[..y_rest.len()].copy_from_slice(y_rest);
            operation
                .apply(V::load(a.as_ptr()), V::load(b.as_ptr()))
                .store(a.as_mut_ptr());
            x_rest.copy_from_slice(&a[..x_rest.len()]);
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * weight` (arXiv 1910.07467), in place.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn rms_norm<V: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    debug_assert_eq!(x.len(), weight.len());
    // SAFETY: the caller's.
    unsafe {
        let mut sum = V::splat(0.0);
        each::<V>(x, 0.0, |x| sum = x.mul_add(x, sum));
        let mean = sum.sum() / x.len() as f32;
        let factor = V::splat(1.0 / (mean + eps).sqrt());
        zip::<V>(x, weight, Scale(factor));
    }
}

/// `silu(gate) * up` into `gate`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn silu_mul<V: Lanes>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the caller's.
    unsafe {
        zip::<V>(gate, up, SiluMul);
    }
}

/// `x * factor * y`.
#[derive(Clone, Copy)]
struct Scale<V>(V);

impl<V: Lanes> Pairwise<V> for Scale<V> {
    #[inline(always)]
    unsafe fn apply(self, x: V, y: V) -> V {
        // SAFETY: the caller's.
        unsafe { x.mul(self.0).mul(y) }
    }
}

/// `silu(x) * y`.
#[derive(Clone, Copy)]
struct SiluMul;

impl<V: Lanes> Pairwise<V> for SiluMul {
    #[inline(always)]
    unsafe fn apply(self, gate: V, up: V) -> V {
        // SAFETY: the caller's.
        unsafe {
            // x · sigmoid(x), with exp's argument kept in its range: past ±80 the result no longer changes.
            let zero = V::splat(0.0);
            let magnitude = gate.max(zero.sub(gate));
            let small = exp(zero.sub(magnitude));
            let one = V::splat(1.0);
            // sigmoid(|x|) is 1 / (1 + small); sigmoid(-|x|) is small / (1 + small).
            let top = one
                .zero_where_below(gate, zero)
                .add(small.sub(small.zero_where_below(gate, zero)));
            gate.mul(top.div(one.add(small))).mul(up)
        }
    }
}

/// Sum of `exp((x - best) * scale)`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn exp_sum<V: Lanes>(x: &[f32], best: f32, scale: f32) -> f64 {
    let mut total = 0.0;
    // SAFETY: the caller's.
    unsafe {
        for part in x.chunks(PARTIAL) {
            let mut sum = V::splat(0.0);
            let (groups, rest) = part.as_chunks::<LANES>();
            for group in groups {
                sum = sum.add(weight(V::load(group.as_ptr()), best, scale));
            }
            if !rest.is_empty() {
                let mut group = [f32::NEG_INFINITY; LANES];
                group[..rest.len()].copy_from_slice(rest);
                sum = sum.add(weight(V::load(group.as_ptr()), best, scale));
            }
            total += f64::from(sum.sum());
        }
    }
    total
}

/// Replaces `x` by `exp((x - best) * scale)`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn exp_all<V: Lanes>(x: &mut [f32], best: f32, scale: f32) {
    let (groups, rest) = x.as_chunks_mut::<LANES>();
    // SAFETY: the caller's.
    unsafe {
        for group in groups {
            weight(V::load(group.as_ptr()), best, scale).store(group.as_mut_ptr());
        }
        if !rest.is_empty() {
            let mut group = [f32::NEG_INFINITY; LANES];
            group[..rest.len()].copy_from_slice(rest);
            weight(V::load(group.as_ptr()), best, scale).store(group.as_mut_ptr());
            rest.copy_from_slice(&group[..rest.len()]);
        }
    }
}

#[inline(always)]
unsafe fn weight<V: Lanes>(x: V, best: f32, scale: f32) -> V {
    // SAFETY: the caller's.
    unsafe { exp(x.sub(V::splat(best)).mul(V::splat(scale))) }
}

/// Rounds to eight bits: `x` is about the result times `out`. The result is not a number where one of them is none.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn round_i8<V: Lanes>(x: &[f32], out: &mut [i8]) -> f32 {
    debug_assert_eq!(x.len(), out.len());
    // SAFETY: the caller's; whole groups go straight to `out`, the last one through a buffer.
    unsafe {
        let zero = V::splat(0.0);
        let (mut most, mut poison) = (zero, zero);
        each::<V>(x, 0.0, |x| {
            most = most.max(x).max(zero.sub(x));
            poison = x.mul_add(zero, poison);
        });
        let most = most.max_lane();
        // Below this the inverse would not be finite; so little counts as nothing.
        let inverse = V::splat(if most < 1e-30 { 0.0 } else { 127.0 / most });
        let (groups, rest) = x.as_chunks::<LANES>();
        for (at, group) in groups.iter().enumerate() {
            let rounded = V::load(group.as_ptr()).mul(inverse).round();
            rounded.store_i8(out.as_mut_ptr().add(at * LANES));
        }
        if !rest.is_empty() {
            let (mut group, mut bytes) = ([0f32; LANES], [0i8; LANES]);
            group[..rest.len()].copy_from_slice(rest);
            let rounded = V::load(group.as_ptr()).mul(inverse).round();
            rounded.store_i8(bytes.as_mut_ptr());
            out[groups.len() * LANES..].copy_from_slice(&bytes[..rest.len()]);
        }
        most / 127.0 + poison.sum()
    }
}

/// Index of the first of the largest; `None` where one of them is not a number, or is infinitely large.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn best<V: Lanes>(x: &[f32]) -> Option<usize> {
    let (mut at, mut most) = (0, f32::NEG_INFINITY);
    // SAFETY: the caller's.
    unsafe {
        let mut poison = V::splat(0.0);
        for (index, part) in x.chunks(PARTIAL).enumerate() {
            let mut largest = V::splat(f32::NEG_INFINITY);
            each::<V>(part, f32::NEG_INFINITY, |x| {
                // Minus infinity is a mask's; what is no number comes through as the second of the two.
                let finite = V::splat(f32::MIN).max(x);
                poison = finite.mul_add(V::splat(0.0), poison);
                largest = largest.max(x);
            });
            let largest = largest.max_lane();
            if largest > most {
                (at, most) = (index * PARTIAL, largest);
            }
        }
        if poison.sum().is_nan() {
            return None;
        }
    }
    #[expect(clippy::float_cmp, reason = "it is one of them")]
    let place = x[at..].iter().position(|&x| x == most);
    Some(at + place.unwrap_or(0))
}
