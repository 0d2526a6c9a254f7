//! Logits against `transformers` (see `tests/golden`).

use safetensors::SafeTensors;
use weir_model::backend::Backend as _;
use weir_model::cpu::Level;
use weir_model::{CpuOptions, KvType};
use weir_scheduler::Batch;

use crate::harness::{Sequence, add_row, generate, golden, greedy, load, options, tokens};

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

/// Largest difference over all positions: each position's logits are those after its prefix, one token at a time.
fn difference(name: &str, options: &CpuOptions) -> f32 {
    let golden = read(name);
    let vocab = golden.logits.len() / golden.prompt.len();
    let mut backend = load(name, options);
    let mut sequence = Sequence::new(3, &golden.prompt);
    backend.open(sequence.slot, &greedy(), &golden.prompt, &[]);
    let mut worst = 0f32;
    for want in golden.logits.chunks_exact(vocab) {
        let mut batch = Batch {
            step: 1,
            ..Batch::default()
        };
        add_row(&mut batch, &mut sequence, 1);
        batch.rows[0].samples = true;
        let got = backend.step_logits(&batch).unwrap();
        assert_eq!((got.len(), got[0].len()), (1, vocab));
        worst = got[0]
            .iter()
            .zip(want)
            .map(|(a, b)| (a - b).abs())
            .fold(worst, f32::max);
    }
    worst
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
fn greedy_text_equals_the_reference_on_every_level() {
    for level in [Level::Plain, Level::Avx2, Level::Avx512] {
        for name in MODELS {
            let golden = read(name);
            let mut backend = load(name, &CpuOptions { level, ..options() });
            let got = generate(
                &mut backend,
                5,
                &golden.prompt,
                &greedy(),
                (&[64], golden.greedy.len()),
            );
            assert_eq!(tokens(&got), golden.greedy, "{name} on {level:?}");
        }
    }
}
