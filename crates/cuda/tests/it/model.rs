//! The whole backend, its kernels on the CPU, against the CPU backend: what a GPU is asked by `cargo xtask bench gpu`.

use std::path::{Path, PathBuf};

use weir_cuda::idle::Idle;
use weir_cuda::kernels::{ActType, CacheType, Variant};
use weir_cuda::variant;
use weir_model::quant::QuantKind;
use weir_model::{OpenFiles, WeightFormat, load_network};

use crate::parity::compare::Report;
use crate::parity::random::{Architecture, RandomShape};
use crate::parity::{self, Case, Failure, OPTIONS, compare};
use crate::shim::Shim;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden")
}

pub(crate) fn files(name: &str) -> OpenFiles {
    OpenFiles::from_dir(&folder().join(name)).unwrap()
}

pub(crate) fn golden(name: &str, weights: WeightFormat, cache: CacheType) -> Case {
    Case::golden(&folder(), name, weights, cache)
}

/// An error without a compiler.
pub(crate) fn shim(variant: &Variant, seed: u64) -> Result<Shim, Failure> {
    Shim::start(*variant, seed).ok_or_else(|| "no compiler".into())
}

/// `None` without a compiler.
fn report(case: &Case) -> Option<Report> {
    let mut seed = 50;
    let mut is_missing = false;
    let report = compare(case, case, |variant| {
        seed += 1;
        shim(variant, seed).inspect_err(|_| is_missing = true)
    });
    (!is_missing).then(|| report.unwrap())
}

fn judge(case: &Case) {
    if let Some(report) = report(case) {
        eprintln!("{report}");
        report.judge().unwrap();
    }
}

fn random(architecture: Architecture, heads: (usize, usize, usize)) -> RandomShape {
    let (heads, kv_heads, head_dim) = heads;
    RandomShape {
        architecture,
        hidden: 96,
        inner: 160,
        layers: 2,
        heads,
        kv_heads,
        head_dim,
        vocab: 200,
        is_sharp: false,
        seed: 3,
    }
}

#[test]
fn every_model_of_the_repository_agrees() {
    for case in parity::golden(&folder()).unwrap() {
        judge(&case);
    }
}

#[test]
fn keys_and_values_in_fp8_change_logits_little() {
    // Of the models here the one with heads of 64, for which other tests have compiled the kernels.
    judge(&golden("q4_k.gguf", WeightFormat::Stored, CacheType::Fp8));
}

#[test]
fn wide_heads_agree_over_a_long_context() {
    let int8 = WeightFormat::Quantized(QuantKind::Int8);
    let shape = random(Architecture::Qwen3, (2, 1, 128));
    judge(&Case::random(shape, WeightFormat::Stored, CacheType::Act, 610).unwrap());
    let shape = random(Architecture::Llama, (2, 1, 96));
    judge(&Case::random(shape, int8, CacheType::Fp8, 300).unwrap());
}

/// They are too large for the shim, and a GPU is asked them.
#[test]
fn the_cases_of_a_gpu_can_be_made() {
    let cases = parity::wide().unwrap();
    assert!(cases.len() > 8);
    for case in cases {
        case.on(|_| Ok(Idle::default())).unwrap();
    }
}

#[test]
fn a_model_with_other_weights_does_not_agree() {
    let shape = random(Architecture::Qwen2, (2, 1, 64));
    let of = |seed| {
        let shape = RandomShape { seed, ..shape };
        Case::random(shape, WeightFormat::Stored, CacheType::Act, 40).unwrap()
    };
    let (one, other) = (of(3), of(4));
    let mut seed = 80;
    let mut open = |variant: &Variant| {
        seed += 1;
        shim(variant, seed)
    };
    let Ok(right) = compare(&one, &one, &mut open) else {
        return;
    };
    let wrong = compare(&one, &other, &mut open).unwrap();
    right.judge().unwrap();
    assert!(wrong.apart > 10.0 * right.apart, "{wrong}");
    wrong.judge().unwrap_err();
}

#[test]
fn the_type_of_activations_is_that_of_the_weights() {
    for (name, act) in [
        ("llama-f16-sharded", ActType::F16),
        ("qwen2", ActType::Bf16),
    ] {
        let (config, network) = load_network(&files(name), WeightFormat::Stored).unwrap();
        assert_eq!(variant(&network, &config, &OPTIONS).act, act, "{name}");
    }
}
