//! The whole backend, its kernels on the CPU, against the CPU backend: the same batches, logits within a tolerance, and the same tokens from
//! the same logits.

use std::fs::File;
use std::path::PathBuf;

use weir_cuda::kernels::{ActType, CacheType};
use weir_cuda::{CudaBackend, CudaOptions, variant};
use weir_model::backend::{Backend, NoMasks, Sampled, SamplingParams};
use weir_model::quant::QuantKind;
use weir_model::{CpuBackend, CpuOptions, OpenFiles, WeightFormat, load_cpu, load_network};
use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

use crate::numbers::{Random, difference};
use crate::shim::Shim;

pub(crate) const OPTIONS: CudaOptions = CudaOptions {
    kv_bytes: 1 << 20,
    cache: CacheType::Act,
    block_tokens: 16,
    max_running: 16,
    max_batch_tokens: 300,
    context_tokens: 0,
};

pub(crate) fn files(name: &str) -> OpenFiles {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden");
    let gguf = golden.join("gguf").join(name);
    if gguf.is_file() {
        let file = File::open(gguf).unwrap();
        return OpenFiles::new([(name.to_owned(), file)]);
    }
    OpenFiles::from_dir(&golden.join(name)).unwrap()
}

fn cpu(name: &str, weights: WeightFormat) -> CpuBackend {
    let options = CpuOptions {
        threads: 1,
        kv_bytes: 1 << 20,
        max_running: 16,
        max_batch_tokens: 300,
        weights,
        ..CpuOptions::default()
    };
    load_cpu(&files(name), &options).unwrap()
}

/// The backend on the shim; `None` without a compiler.
pub(crate) fn cuda(
    name: &str,
    weights: WeightFormat,
    cache: CacheType,
    seed: u64,
) -> Option<CudaBackend<Shim>> {
    cuda_that(name, weights, cache, seed, |_| ())
}

fn cuda_that(
    name: &str,
    weights: WeightFormat,
    cache: CacheType,
    seed: u64,
    change: impl FnOnce(&mut Shim),
) -> Option<CudaBackend<Shim>> {
    let (config, network) = load_network(&files(name), weights).unwrap();
    let options = CudaOptions { cache, ..OPTIONS };
    let mut shim = Shim::start(variant(&network, &config, &options), seed)?;
    change(&mut shim);
    Some(CudaBackend::new(shim, &network, &config, &options).unwrap())
}

/// Tokens that every model here has.
const VOCAB: usize = 33;

/// A sequence with its blocks, strided over the pool so that tables matter.
struct Sequence {
    slot: u32,
    tokens: Vec<u32>,
    done: u32,
}

impl Sequence {
    fn new(slot: u32, length: usize) -> Self {
        let mut random = Random(u64::from(slot) + 100);
        Self {
            slot,
            tokens: (0..length).map(|_| random.below(VOCAB) as u32).collect(),
            done: 0,
        }
    }

    fn left(&self) -> u32 {
        self.tokens.len() as u32 - self.done
    }
}

fn add_row(batch: &mut Batch, sequence: &mut Sequence, count: u32) {
    let end = sequence.done + count;
    let blocks = end.div_ceil(16);
    batch.rows.push(Row {
        sequence: SequenceId(sequence.slot.into()),
        slot: SlotId(sequence.slot),
        start: sequence.done,
        token_offset: batch.tokens.len() as u32,
        token_count: count,
        block_offset: batch.blocks.len() as u32,
        block_count: blocks,
        draft_count: 0,
        samples: end as usize == sequence.tokens.len(),
    });
    batch
        .tokens
        .extend_from_slice(&sequence.tokens[sequence.done as usize..end as usize]);
    batch
        .blocks
        .extend((0..blocks).map(|block| BlockId(block * 16 + sequence.slot)));
    sequence.done = end;
}

/// Sequences of many lengths that start one after the other, their prompts in chunks, so that steps are of every kind; then some with
/// one token each. Calls `f` with each batch; it gives the next tokens of the rows that sample.
fn drive(count: u32, steps: usize, mut f: impl FnMut(&Batch) -> Vec<u32>) {
    let mut sequences: Vec<Sequence> = (0..count)
        .map(|slot| Sequence::new(slot, 1 + slot as usize * 7 % 41))
        .collect();
    for step in 1..=steps {
        let mut batch = Batch {
            step: step as u64,
            ..Batch::default()
        };
        let mut rows = Vec::new();
        for decodes in [true, false] {
            for (at, sequence) in sequences.iter_mut().enumerate().take(step * 3) {
                if (sequence.left() == 1) == decodes && sequence.left() > 0 && !rows.contains(&at) {
                    let count = sequence.left().min(19);
                    add_row(&mut batch, sequence, count);
                    rows.push(at);
                }
            }
        }
        let next = f(&batch);
        let sampling = rows.iter().zip(&batch.rows).filter(|(_, row)| row.samples);
        for ((&at, _), token) in sampling.zip(next) {
            sequences[at].tokens.push(token);
        }
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.unwrap() as u32
}

/// Largest difference of logits over all steps, and how large logits are.
fn compare(name: &str, weights: WeightFormat, cache: CacheType) -> Option<(f32, f32)> {
    let mut device = cuda(name, weights, cache, 51)?;
    let mut reference = cpu(name, weights);
    for slot in (0..12).map(SlotId) {
        reference.open(slot, &SamplingParams::greedy(), &[], &[]);
        device.open(slot, &SamplingParams::greedy(), &[], &[]);
    }
    let (mut apart, mut size) = (0.0f32, 0.0f32);
    drive(12, 9, |batch| {
        let want = reference.step_logits(batch).unwrap();
        let got = device.step_logits(batch).unwrap();
        for (got, want) in got.iter().zip(&want) {
            apart = apart.max(difference(got, want));
            size = want.iter().fold(size, |size, x| size.max(x.abs()));
        }
        want.iter().map(|logits| argmax(logits)).collect()
    });
    Some((apart, size))
}

/// Weights and activations with 8 bits of mantissa, in models whose logits are up to 20.
const BF16_TOLERANCE: f32 = 0.5;
/// Where the CPU rounds activations to eight bits for each group, and logits are up to 15.
const QUANTIZED_TOLERANCE: f32 = 1.5;
/// With 3 bits of mantissa in keys and values, which the CPU has in 16 bits, where logits are up to 4.
const FP8_TOLERANCE: f32 = 0.6;
/// With 11 bits.
const F16_TOLERANCE: f32 = 0.05;

#[test]
fn logits_are_those_of_the_cpu_for_every_architecture() {
    for name in [
        "llama3-rope",
        "llama-biases",
        "mistral-gqa",
        "mistral-window",
        "qwen2",
        "qwen3",
    ] {
        let Some((apart, size)) = compare(name, WeightFormat::Stored, CacheType::Act) else {
            return;
        };
        println!("{name}: {apart} apart, logits up to {size}");
        assert!(apart < BF16_TOLERANCE, "{name}: {apart} apart");
    }
}

#[test]
fn logits_of_a_model_in_f16_are_closer() {
    if let Some((apart, _)) = compare("llama-f16-sharded", WeightFormat::Stored, CacheType::Act) {
        assert!(apart < F16_TOLERANCE, "{apart} apart");
    }
}

#[test]
fn quantized_weights_are_multiplied_as_they_are() {
    for kind in [QuantKind::Int8, QuantKind::Int4] {
        if let Some((apart, size)) = compare("qwen2", WeightFormat::Quantized(kind), CacheType::Act)
        {
            println!("{kind:?}: {apart} apart, logits up to {size}");
            assert!(apart < QUANTIZED_TOLERANCE, "{kind:?}: {apart} apart");
        }
    }
}

#[test]
fn keys_and_values_in_fp8_change_logits_little() {
    // Of the models here the one with heads of 64, for which other tests have compiled the kernels.
    if let Some((apart, size)) = compare("q4_k.gguf", WeightFormat::Stored, CacheType::Fp8) {
        println!("{apart} apart, logits up to {size}");
        assert!(apart < FP8_TOLERANCE, "{apart} apart");
    }
}

#[test]
fn models_in_gguf_give_the_logits_of_the_cpu() {
    for (name, tolerance) in [
        ("f16.gguf", F16_TOLERANCE),
        ("q8_0.gguf", 1.0),
        ("q4_k.gguf", 0.3),
    ] {
        let Some((apart, size)) = compare(name, WeightFormat::Stored, CacheType::Act) else {
            return;
        };
        println!("{name}: {apart} apart, logits up to {size}");
        assert!(apart < tolerance, "{name}: {apart} apart");
    }
}

/// Tokens of all sequences in the order they were sampled.
fn sample_all(backend: &mut impl Backend, params: impl Fn(u32) -> SamplingParams) -> Vec<Sampled> {
    for slot in 0..9 {
        backend.open(
            SlotId(slot),
            &params(slot),
            &Sequence::new(slot, 1 + slot as usize * 7 % 41).tokens,
            &[],
        );
    }
    let (mut all, mut sampled) = (Vec::new(), Vec::new());
    drive(9, 8, |batch| {
        backend.step(batch, &NoMasks, &mut sampled).unwrap();
        all.extend(sampled.iter().cloned());
        sampled.iter().map(|sampled| sampled.token).collect()
    });
    all
}

pub(crate) fn seeded(slot: u32) -> SamplingParams {
    SamplingParams {
        temperature: if slot.is_multiple_of(3) { 0.0 } else { 2.0 },
        top_k: slot % 2 * 20,
        top_p: 0.95,
        seed: slot.into(),
        frequency_penalty: 0.3,
        repetition_penalty: 1.1,
        logprobs: Some(2),
        ..SamplingParams::greedy()
    }
}

#[test]
fn a_replayed_step_gives_the_bits_of_one_that_is_started_anew() {
    let Some(mut replaying) = cuda("qwen3", WeightFormat::Stored, CacheType::Act, 61) else {
        return;
    };
    let mut starting = cuda_that("qwen3", WeightFormat::Stored, CacheType::Act, 62, |shim| {
        shim.replays = false;
    })
    .unwrap();
    let got = sample_all(&mut replaying, seeded);
    assert!(got.len() > 40);
    let want = sample_all(&mut starting, seeded);
    // Steps that fill up split attention otherwise, so sums are in another order.
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.token, want.token);
        assert!(
            (got.logprob - want.logprob).abs() < 0.02,
            "{got:?} against {want:?}"
        );
    }
}

#[test]
fn greedy_tokens_of_a_model_in_f16_are_those_of_the_cpu() {
    let Some(mut device) = cuda(
        "llama-f16-sharded",
        WeightFormat::Stored,
        CacheType::Act,
        63,
    ) else {
        return;
    };
    let mut reference = cpu("llama-f16-sharded", WeightFormat::Stored);
    let (got, want) = (
        sample_all(&mut device, |_| SamplingParams::greedy()),
        sample_all(&mut reference, |_| SamplingParams::greedy()),
    );
    let tokens = |all: &[Sampled]| all.iter().map(|sampled| sampled.token).collect::<Vec<_>>();
    assert_eq!(tokens(&got), tokens(&want));
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
