//! Logits against `transformers` (see `tests/golden`).

use safetensors::SafeTensors;
use weir_model::backend::{Backend as _, SamplingParams};
use weir_model::cpu::Level;
use weir_model::quant::QuantKind;
use weir_model::{CpuOptions, KvType, WeightFormat};
use weir_scheduler::Batch;

use crate::harness::{Sequence, add_row, generate, golden, load, options, tokens};

const MODELS: [&str; 10] = [
    "llama-f32",
    "llama3-rope",
    "llama3-rope-old-keys",
    "llama-f16-sharded",
    "llama-biases",
    "mistral-gqa",
    "mistral-window",
    "qwen2",
    "qwen2-window",
    "qwen3",
];

/// Largest absolute difference with f32 keys and values. Logits are of the order of 1 to 10, and both sides compute in f32 in
/// another order.
const TOLERANCE: f32 = 1e-4;
/// With bf16 keys and values, which keep 8 bits.
const TOLERANCE_BF16_KV: f32 = 0.3;

/// Root mean square of the differences, as a share of the logits' own, with weights in eight and in four bits. The models' weights are random
/// and their rows short, so errors do not average out as in a trained model, of which `quantize.rs` has the loss.
const SHARE_INT8: f32 = 0.15;
const SHARE_INT4: f32 = 0.8;

struct Golden {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// (prompt, vocabulary)
    logits: Vec<f32>,
}

fn read(name: &str) -> Golden {
    let bytes = std::fs::read(golden(name).join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<u32> {
        let (words, _) = tensors.tensor(name).unwrap().data().as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    let logits = words("logits").into_iter().map(f32::from_bits).collect();
    Golden {
        prompt: words("prompt"),
        greedy: words("greedy"),
        logits,
    }
}

/// Calls `f` with what was computed and what the reference has, position by position: each one's logits are those after its
/// prefix, one token at a time.
fn compare(name: &str, options: &CpuOptions, mut f: impl FnMut(&[f32], &[f32])) {
    let golden = read(name);
    let vocab = golden.logits.len() / golden.prompt.len();
    let mut backend = load(name, options);
    let mut sequence = Sequence::new(3, &golden.prompt);
    backend.open(
        sequence.slot,
        &SamplingParams::greedy(),
        &golden.prompt,
        &[],
    );
    for want in golden.logits.chunks_exact(vocab) {
        let mut batch = Batch {
            step: 1,
            ..Batch::default()
        };
        add_row(&mut batch, &mut sequence, 1);
        batch.rows[0].samples = true;
        let got = backend.step_logits(&batch).unwrap();
        assert_eq!((got.len(), got[0].len()), (1, vocab));
        f(&got[0], want);
    }
}

/// Largest difference over all positions.
fn difference(name: &str, options: &CpuOptions) -> f32 {
    let mut worst = 0f32;
    compare(name, options, |got, want| {
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
        worst = off.fold(worst, f32::max);
    });
    worst
}

/// Root mean square of the differences over that of the reference.
fn share(name: &str, options: &CpuOptions) -> f32 {
    let (mut off, mut all) = (0f32, 0f32);
    compare(name, options, |got, want| {
        off += got
            .iter()
            .zip(want)
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f32>();
        all += want.iter().map(|b| b.powi(2)).sum::<f32>();
    });
    (off / all).sqrt()
}

#[test]
fn logits_equal_the_reference() {
    let failures: Vec<String> = MODELS
        .iter()
        .map(|name| (name, difference(name, &options())))
        .filter(|&(_, worst)| worst.is_nan() || worst > TOLERANCE)
        .map(|(name, worst)| format!("{name}: {worst}"))
        .collect();
    assert!(
        failures.is_empty(),
        "differences above {TOLERANCE}: {failures:#?}"
    );
}

#[test]
fn logits_with_halved_cache_stay_near_the_reference() {
    for name in MODELS {
        let worst = difference(
            name,
            &CpuOptions {
                kv_type: KvType::Bf16,
                ..options()
            },
        );
        assert!(worst < TOLERANCE_BF16_KV, "{name}: {worst}");
        assert!(worst > TOLERANCE, "{name}: the cache was not halved at all");
    }
}

#[test]
fn logits_of_quantized_weights_stay_near_the_reference() {
    let cases = [
        (QuantKind::Int8, KvType::F32, SHARE_INT8),
        (QuantKind::Int8, KvType::Int8, SHARE_INT8),
        (QuantKind::Int4, KvType::F32, SHARE_INT4),
    ];
    for (kind, kv_type, tolerance) in cases {
        let options = CpuOptions {
            weights: WeightFormat::Quantized(kind),
            kv_type,
            ..options()
        };
        let off: Vec<(&str, f32)> = MODELS
            .iter()
            .map(|name| (*name, share(name, &options)))
            .collect();
        assert!(
            off.iter()
                .all(|&(_, worst)| worst > 1e-4 && worst < tolerance),
            "{kind:?} {kv_type:?}: {off:?}"
        );
    }
}

#[test]
fn greedy_text_equals_the_reference_on_every_level() {
    for level in [Level::Plain, Level::Avx2, Level::Avx512, Level::Amx] {
        for name in MODELS {
            let golden = read(name);
            let mut backend = load(name, &CpuOptions { level, ..options() });
            let got = generate(
                &mut backend,
                5,
                &golden.prompt,
                &SamplingParams::greedy(),
                (&[64], golden.greedy.len()),
            );
            assert_eq!(tokens(&got), golden.greedy, "{name} on {level:?}");
        }
    }
}
