mod attention;
mod quantized;

use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::cpu::pool::Pool;
use crate::files::OpenFiles;
use crate::quant::Weights;
use crate::weights::{TensorFiles, WeightType};

/// Every level this machine can run.
fn levels() -> Vec<Kernels> {
    let all = if cfg!(target_arch = "aarch64") {
        &[Level::Plain, Level::Neon][..]
    } else {
        &[Level::Plain, Level::Avx2, Level::Avx512, Level::Amx][..]
    };
    if cfg!(target_arch = "x86_64") && Level::detect() < Level::Amx {
        let best = Level::detect();
        let _ = writeln!(
            std::io::stderr(),
            "AMX is not tested: the machine has {best:?}"
        );
    }
    all.iter()
        .copied()
        .filter(|level| *level <= Level::detect())
        .map(Kernels::at_most)
        .collect()
}

/// Numbers that look random and depend on nothing.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 4.0 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

/// A matrix in a mapped file, and its elements as the kernels see them.
fn matrix(rows: usize, cols: usize, dtype: WeightType, seed: u32) -> (Weights, Vec<f32>) {
    let values = numbers(rows * cols, seed);
    let name = match dtype {
        WeightType::Bf16 => "BF16",
        WeightType::F16 => "F16",
        WeightType::F32 => "F32",
        WeightType::Blocks(_) => unreachable!("not in safetensors"),
    };
    let bytes: Vec<u8> = match dtype {
        WeightType::Bf16 => values
            .iter()
            .flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())
            .collect(),
        WeightType::F16 => values
            .iter()
            .flat_map(|&x| half::f16::from_f32(x).to_le_bytes())
            .collect(),
        WeightType::F32 => values.iter().flat_map(|&x| x.to_le_bytes()).collect(),
        WeightType::Blocks(_) => unreachable!("not in safetensors"),
    };
    let size = bytes.len();
    // A header of odd length, so that the elements are not aligned.
    let mut header = format!(
        r#"{{"w":{{"dtype":"{name}","shape":[{rows},{cols}],"data_offsets":[0,{size}]}}}}"#
    );
    while header.len() % 2 == 0 {
        header.push(' ');
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.write_all(&bytes).unwrap();
    let files = OpenFiles::new([("model.safetensors".to_owned(), file)]);
    let matrix = TensorFiles::open(&files)
        .unwrap()
        .take("w", &[rows, cols])
        .unwrap();
    let seen = matrix.to_vec();
    (Weights::Stored(matrix), seen)
}

fn multiply(
    kernels: &Kernels,
    pool: &mut Pool,
    (weights, bias): (&Weights, &[f32]),
    x: &[f32],
    start: &[f32],
) -> Vec<f32> {
    let (tokens, width) = (x.len() / weights.cols(), weights.rows() + 3);
    let mut out = start.to_vec();
    let product = Product {
        weights,
        bias: Some(bias),
        out_col: 2,
    };
    let act = Activations {
        x,
        x_width: weights.cols(),
        rounded: &mut QuantRows::new(tokens, weights.cols()),
        out: &mut out,
        out_width: width,
        tokens,
        accumulate: true,
    };
    kernels.multiply(pool, &[product], act);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Against sums in f64; and every level, number of threads and number of tokens gives the same bits.
    #[test]
    fn products_are_right_and_the_same_everywhere(
        rows in 1usize..70,
        cols in 1usize..90,
        tokens in 1usize..20,
        kind in 0usize..3,
        seed in any::<u32>(),
    ) {
        let dtype = [WeightType::Bf16, WeightType::F16, WeightType::F32][kind];
        let (weights, seen) = matrix(rows, cols, dtype, seed);
        let (x, bias) = (numbers(tokens * cols, seed ^ 1), numbers(rows, seed ^ 2));
        let start = numbers(tokens * (rows + 3), seed ^ 3);
        let mut pool = Pool::new(2).unwrap();
        let want = multiply(&levels()[0], &mut Pool::new(1).unwrap(), (&weights, &bias), &x, &start);
        for (at, got) in want.iter().enumerate() {
            let (token, row) = (at / (rows + 3), (at % (rows + 3)).wrapping_sub(2));
            let mut exact = f64::from(start[at]);
            if row < rows {
                let (x, w) = (&x[token * cols..][..cols], &seen[row * cols..][..cols]);
                exact += x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() + f64::from(bias[row]);
            }
            prop_assert!((f64::from(*got) - exact).abs() < 1e-4, "{at}: {got} {exact}");
        }
        for kernels in levels() {
            let got = multiply(&kernels, &mut pool, (&weights, &bias), &x, &start);
            prop_assert_eq!(&got, &want, "{:?}", kernels.level());
            let one = multiply(&kernels, &mut pool, (&weights, &bias), &x[..cols], &start[..rows + 3]);
            prop_assert_eq!(&one[..], &want[..rows + 3], "{:?} alone", kernels.level());
        }
    }

    #[test]
    fn row_kernels_are_right_and_the_same_everywhere(length in 1usize..1100, seed in any::<u32>()) {
        let (x, weight) = (numbers(length, seed), numbers(length, seed ^ 1));
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / length as f64;
        let best = x.iter().copied().fold(f32::MIN, f32::max);
        let exact_sum: f64 = x.iter().map(|x| (f64::from(*x - best) * 1.5).exp()).sum();
        let mut results = Vec::new();
        for kernels in levels() {
            let (mut normed, mut gated, mut weights) = (x.clone(), x.clone(), x.clone());
            kernels.rms_norm(&mut normed, &weight, 1e-6);
            kernels.silu_mul(&mut gated, &weight);
            kernels.exp_all(&mut weights, best, 1.5);
            let sum = kernels.exp_sum(&x, best, 1.5);
            let first = x.iter().position(|x| *x >= best);
            let mut rounded = vec![0i8; length];
            let scale = kernels.round_i8(&x, &mut rounded);
            for (x, rounded) in x.iter().zip(&rounded) {
                prop_assert!((x - f32::from(*rounded) * scale).abs() <= scale * 0.5001);
            }
            prop_assert_eq!(kernels.best(&x), first);
            for at in 0..length {
                let (x, weight) = (f64::from(x[at]), f64::from(weight[at]));
                prop_assert!((f64::from(normed[at]) - x / (mean + 1e-6).sqrt() * weight).abs() < 1e-5);
                prop_assert!((f64::from(gated[at]) - x / (1.0 + (-x).exp()) * weight).abs() < 1e-5);
                prop_assert!((f64::from(weights[at]) - ((x - f64::from(best)) * 1.5).exp()).abs() < 1e-6);
            }
            prop_assert!((sum / exact_sum - 1.0).abs() < 1e-5);
            results.push((normed, gated, weights, sum.to_bits(), rounded, scale.to_bits()));
        }
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn silu_and_exp_hold_at_the_ends_of_their_range() {
    for kernels in levels() {
        let mut gate = [-1e30, -1000.0, -88.0, -0.0, 0.0, 88.0, 1000.0, 1e30];
        kernels.silu_mul(&mut gate, &[1.0; 8]);
        assert!(gate[..3].iter().all(|x| x.abs() < 1e-30), "{gate:?}");
        assert_eq!(gate[3..], [0.0, 0.0, 88.0, 1000.0, 1e30]);
        let mut x = [0.0, -86.9, -87.1, -1e30, f32::NEG_INFINITY];
        kernels.exp_all(&mut x, 0.0, 1.0);
        assert_eq!(
            (x[0], &x[2..]),
            (1.0, &[0.0, 0.0, 0.0][..]),
            "{:?}",
            kernels.level()
        );
        assert!(x[1] > 0.0);
    }
}

#[test]
fn the_first_of_the_largest_is_the_best() {
    let mut x = vec![-1.0; 3000];
    (x[1700], x[1701], x[2999]) = (5.0, 5.0, 5.0);
    let mut masked = vec![f32::NEG_INFINITY; 100];
    masked[99] = -3.0;
    let cases: [(&str, Vec<f32>, Option<usize>); 5] = [
        ("a tie", x.clone(), Some(1700)),
        ("masked but one", masked, Some(99)),
        ("all masked", vec![f32::NEG_INFINITY; 40], Some(0)),
        ("no number", [&x[..], &[f32::NAN, 7.0]].concat(), None),
        ("infinite", [&x[..], &[f32::INFINITY]].concat(), None),
    ];
    for kernels in levels() {
        for (name, x, want) in &cases {
            assert_eq!(kernels.best(x), *want, "{name}, {:?}", kernels.level());
        }
    }
}
