use super::*;
use crate::quant::{PANEL, QuantKind, QuantMatrix};

/// A matrix of numbers and the same quantized on each level.
fn quantized(rows: usize, cols: usize, kind: QuantKind, seed: u32) -> (Weights, Vec<f32>) {
    let (stored, seen) = matrix(rows, cols, WeightType::F32, seed);
    let Weights::Stored(stored) = stored else {
        unreachable!("a matrix of a file is stored")
    };
    let packed: Vec<QuantMatrix> = levels()
        .iter()
        .map(|kernels| {
            let mut packer = Packer {
                kernels,
                threads: &crate::cpu::CpuThreads::new(2).unwrap(),
            };
            QuantMatrix::pack(&stored, kind, &mut packer).unwrap()
        })
        .collect();
    for other in &packed {
        assert_eq!(other.data(), packed[0].data(), "every level packs the same");
        assert_eq!(other.numbers(), packed[0].numbers());
    }
    (Weights::Quantized(packed[0].clone()), seen)
}

const KINDS: [QuantKind; 2] = [QuantKind::Int8, QuantKind::Int4];

#[test]
fn quantized_weights_are_within_half_a_step_and_a_little() {
    for kind in KINDS {
        for (rows, cols) in [(1, 1), (17, 64), (40, 200), (16, 63)] {
            let (packed, seen) = quantized(rows, cols, kind, 7);
            let mut row = vec![0.0; cols];
            for (at, seen) in seen.chunks_exact(cols).enumerate() {
                packed.read_row(at, &mut row);
                for (got, want) in row.chunks(64).zip(seen.chunks(64)) {
                    let (least, most) = want
                        .iter()
                        .fold((0f32, 0f32), |(l, m), &w| (l.min(w), m.max(w)));
                    // Half a step; a scale in bf16 is up to 1/128 wider than it must be, twice that with a minimum.
                    let step = match kind {
                        QuantKind::Int8 => most.max(-least) / 127.0,
                        QuantKind::Int4 => (most - least) / 15.0,
                    };
                    for (got, want) in got.iter().zip(want) {
                        assert!(
                            (got - want).abs() <= step * 0.52,
                            "{kind:?}: {got} for {want}, step {step}"
                        );
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Against f64 within what eight bits of activations lose; bit for bit the same on every level, for any number of tokens
    /// around a token, and on any number of threads.
    #[test]
    fn quantized_products_are_near_and_the_same_everywhere(
        rows in 1usize..70,
        cols in 1usize..300,
        tokens in 1usize..40,
        int4 in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let kind = KINDS[usize::from(int4)];
        let (weights, _) = quantized(rows, cols, kind, seed);
        let (x, bias) = (numbers(tokens * cols, seed ^ 1), numbers(rows, seed ^ 2));
        let start = numbers(tokens * (rows + 3), seed ^ 3);
        let (mut one, mut pool) = (Pool::new(1).unwrap(), Pool::new(2).unwrap());
        let want = multiply(&levels()[0], &mut one, (&weights, &bias), &x, &start);
        let mut row_weights = vec![0.0; cols];
        for row in 0..rows {
            weights.read_row(row, &mut row_weights);
            for token in 0..tokens {
                let x = &x[token * cols..][..cols];
                let at = token * (rows + 3) + 2 + row;
                let products = x.iter().zip(&row_weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let exact = f64::from(start[at]) + f64::from(bias[row]) + products.sum::<f64>();
                // Activations are below 2, so each is off by at most 1/127.
                let bound = row_weights.iter().map(|w| f64::from(w.abs())).sum::<f64>() / 126.0 + 1e-4;
                prop_assert!((f64::from(want[at]) - exact).abs() < bound, "{kind:?} {at}: {} {exact}", want[at]);
            }
        }
        for kernels in levels() {
            let got = multiply(&kernels, &mut pool, (&weights, &bias), &x, &start);
            prop_assert_eq!(&got, &want, "{:?}", kernels.level());
            // With fewer threads a task has several panels.
            let got = multiply(&kernels, &mut one, (&weights, &bias), &x, &start);
            prop_assert_eq!(&got, &want, "{:?}, one thread", kernels.level());
            for count in [1, 2, 5, 17].into_iter().filter(|&count| count < tokens) {
                let few = multiply(&kernels, &mut pool, (&weights, &bias), &x[..count * cols], &start[..count * (rows + 3)]);
                prop_assert_eq!(&few[..], &want[..count * (rows + 3)], "{:?}, {} alone", kernels.level(), count);
            }
        }
    }
}

/// A weight of -128, which the packer never writes but a file may hold, and activations at their limits.
#[test]
fn the_largest_integers_do_not_overflow() {
    let mut outputs = Vec::new();
    for kernels in levels() {
        let (cols, tokens) = (128, 17);
        let data = vec![0x80_u8; 2 * 1024];
        let ones = [0x3F80_u16; 2 * PANEL];
        let mut rounded = QuantRows::new(tokens, cols);
        let place = rounded.begin(tokens, cols);
        for token in 0..tokens {
            let mut to = place;
            to.token = token;
            let x = vec![if token % 2 == 0 { 127.0 } else { -127.0 }; cols];
            // SAFETY: there is room for the tokens, and the machine has the level.
            unsafe { (kernels.round_row)(&x, &to) };
        }
        let (q, scales, sums) = rounded.pointers();
        let mut out = vec![0f32; tokens * PANEL];
        let args = quant::QuantArgs {
            q,
            scales,
            sums,
            groups: 2,
            tokens,
            weights: data.as_ptr(),
            weight_scales: ones.as_ptr(),
            weight_mins: std::ptr::null(),
            rows: PANEL,
            bias: std::ptr::null(),
            out: out.as_mut_ptr(),
            out_stride: PANEL,
            accumulate: false,
        };
        // SAFETY: one panel, and all shapes fit.
        unsafe { (kernels.quant_int8)(&args, 0..1) };
        assert_eq!(
            (out[0], out[PANEL]),
            (-128.0 * 127.0 * 128.0, 128.0 * 127.0 * 128.0),
            "{:?}",
            kernels.level()
        );
        outputs.push(out);
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn what_is_not_a_number_shows_in_the_result() {
    for kind in KINDS {
        let (weights, _) = quantized(20, 100, kind, 3);
        for broken in [f32::NAN, f32::INFINITY] {
            let mut x = numbers(100, 5);
            x[70] = broken;
            for kernels in levels() {
                let out = multiply(
                    &kernels,
                    &mut Pool::new(1).unwrap(),
                    (&weights, &[0.0; 20]),
                    &x,
                    &[0.0; 23],
                );
                assert!(
                    out[2..22].iter().all(|x| x.is_nan()),
                    "{:?}: {out:?}",
                    kernels.level()
                );
            }
        }
    }
}
