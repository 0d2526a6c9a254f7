//! A row's result does not depend on what runs beside it, nor on how its prompt came in (engine.md section 6, rows 11 to 13).

use weir_model::backend::{Backend as _, NoMasks, Sampled, SamplingParams};
use weir_model::cpu::Level;
use weir_model::quant::QuantKind;
use weir_model::{CpuBackend, CpuOptions, KvType, WeightFormat};
use weir_scheduler::Batch;

use crate::harness::{Sequence, add_row, generate, load, options, tokens};

const MODELS: [&str; 3] = ["llama3-rope", "mistral-window", "qwen3"];
const INT8: WeightFormat = WeightFormat::Quantized(QuantKind::Int8);
const INT4: WeightFormat = WeightFormat::Quantized(QuantKind::Int4);
const FORMATS: [(KvType, WeightFormat); 6] = [
    (KvType::F32, WeightFormat::Stored),
    (KvType::Bf16, WeightFormat::Stored),
    (KvType::F16, WeightFormat::Stored),
    (KvType::F32, INT8),
    (KvType::Int8, INT8),
    (KvType::Bf16, INT4),
];
const PROMPT: [u32; 21] = [
    1, 7, 9, 30, 2, 11, 35, 8, 3, 3, 17, 22, 39, 5, 6, 28, 13, 19, 33, 37, 10,
];

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 4.0,
        top_p: 0.95,
        top_k: 30,
        min_p: 0.01,
        seed,
        repetition_penalty: 1.1,
        logprobs: Some(3),
        ..SamplingParams::greedy()
    }
}

/// Token, bits of its log-probability, and the same of the alternatives.
type Bits = (u32, u32, Vec<(u32, u32)>);

/// Bits, so that equality is equality of every last digit.
fn bits(sampled: &[Sampled]) -> Vec<Bits> {
    let top = |sampled: &Sampled| {
        sampled
            .top
            .iter()
            .map(|&(token, logprob)| (token, logprob.to_bits()))
            .collect()
    };
    sampled
        .iter()
        .map(|sampled| (sampled.token, sampled.logprob.to_bits(), top(sampled)))
        .collect()
}

#[test]
fn chunks_threads_levels_and_slots_change_nothing() {
    for name in MODELS {
        for (kv_type, weights) in FORMATS {
            let base = CpuOptions {
                kv_type,
                weights,
                ..options()
            };
            let want = bits(&generate(
                &mut load(name, &base),
                0,
                &PROMPT,
                &seeded(9),
                (&[64], 24),
            ));
            assert!(
                want.iter().any(|(token, _, top)| top[0].0 != *token),
                "sampling takes other than the best"
            );
            let cases = [
                (base, 6, vec![1]),
                (base, 1, vec![5, 16, 64]),
                (base, 2, vec![17, 64]),
                (CpuOptions { threads: 1, ..base }, 0, vec![8]),
                (CpuOptions { threads: 5, ..base }, 0, vec![3]),
                (
                    CpuOptions {
                        level: Level::Avx512,
                        ..base
                    },
                    3,
                    vec![64],
                ),
                (
                    CpuOptions {
                        level: Level::Avx2,
                        ..base
                    },
                    3,
                    vec![64],
                ),
                (
                    CpuOptions {
                        level: Level::Plain,
                        ..base
                    },
                    3,
                    vec![7],
                ),
            ];
            for (options, slot, chunks) in cases {
                let got = generate(
                    &mut load(name, &options),
                    slot,
                    &PROMPT,
                    &seeded(9),
                    (&chunks, 24),
                );
                assert_eq!(bits(&got), want, "{name} {options:?} chunks {chunks:?}");
            }
        }
    }
}

/// Prompt and parameters of one of eight sequences, all different.
fn request(slot: u32) -> (Vec<u32>, SamplingParams) {
    let prompt = PROMPT
        .iter()
        .cycle()
        .skip(slot as usize * 3)
        .take(9 + slot as usize * 5);
    let params = if slot.is_multiple_of(3) {
        SamplingParams::greedy()
    } else {
        seeded(slot.into())
    };
    (prompt.copied().collect(), params)
}

/// Eight sequences start at different steps, in chunks, so that decode and prefill rows mix.
fn all_at_once(backend: &mut CpuBackend, count: usize) -> Vec<Vec<Sampled>> {
    let mut sequences: Vec<Sequence> = (0..8)
        .map(|slot| Sequence::new(slot, &request(slot).0))
        .collect();
    for sequence in &sequences {
        backend.open(
            sequence.slot,
            &request(sequence.slot.0).1,
            &sequence.tokens,
            &[],
        );
    }
    let mut got: Vec<Vec<Sampled>> = vec![Vec::new(); 8];
    for step in 1u32.. {
        let mut batch = Batch {
            step: step.into(),
            ..Batch::default()
        };
        let mut rows = Vec::new();
        for slot in (0..8u32).rev().filter(|&slot| step > slot) {
            let sequence = &mut sequences[slot as usize];
            let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
            if got[slot as usize].len() < count {
                add_row(&mut batch, sequence, left.min(7));
                rows.push(slot as usize);
            }
        }
        if rows.is_empty() {
            break;
        }
        let mut sampled = Vec::new();
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        let sampling = rows.iter().zip(&batch.rows).filter(|(_, row)| row.samples);
        for ((&slot, _), sampled) in sampling.zip(sampled) {
            sequences[slot].tokens.push(sampled.token);
            got[slot].push(sampled);
        }
    }
    got
}

#[test]
fn neighbours_change_nothing() {
    for (name, (kv_type, weights)) in MODELS
        .into_iter()
        .zip(FORMATS.into_iter().rev())
        .chain([("qwen3", FORMATS[0])])
    {
        let options = CpuOptions {
            kv_type,
            weights,
            ..options()
        };
        let mut backend = load(name, &options);
        let got: Vec<_> = all_at_once(&mut backend, 10)
            .iter()
            .map(|row| bits(row))
            .collect();
        for (slot, got) in (0..8u32).zip(got) {
            let (prompt, params) = request(slot);
            let want = generate(&mut backend, slot, &prompt, &params, (&[256], 10));
            assert_eq!(got, bits(&want), "{name} slot {slot}");
        }
    }
}

/// A sequence that is thrown out after any number of tokens and computed again goes on as if nothing had happened.
#[test]
fn preemption_at_every_step_changes_nothing() {
    let mut backend = load("qwen3", &options());
    let params = SamplingParams {
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        ..seeded(77)
    };
    let want = tokens(&generate(&mut backend, 0, &PROMPT, &params, (&[64], 12)));
    for cut in 1..12 {
        let mut sequence = Sequence::new(4, &PROMPT);
        sequence.tokens.extend(&want[..cut]);
        backend.open(sequence.slot, &params, &PROMPT, &want[..cut]);
        let mut sampled = Vec::new();
        while sequence.tokens.len() < PROMPT.len() + 12 {
            let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
            let mut batch = Batch {
                step: 1,
                ..Batch::default()
            };
            add_row(&mut batch, &mut sequence, left);
            backend.step(&batch, &NoMasks, &mut sampled).unwrap();
            sequence.tokens.push(sampled[0].token);
        }
        backend.close(sequence.slot);
        assert_eq!(&sequence.tokens[PROMPT.len()..], want, "cut after {cut}");
    }
}

#[test]
fn end_tokens_stay_masked_until_the_minimum() {
    let mut backend = load("qwen2", &options());
    let free = tokens(&generate(
        &mut backend,
        0,
        &PROMPT,
        &SamplingParams::greedy(),
        (&[64], 8),
    ));
    let params = SamplingParams {
        masked_until_min: free.clone().into(),
        min_tokens: 4,
        ..SamplingParams::greedy()
    };
    let masked = tokens(&generate(&mut backend, 0, &PROMPT, &params, (&[64], 8)));
    assert!(
        masked[..4].iter().all(|token| !free.contains(token)),
        "{masked:?} against {free:?}"
    );
    let mut sequence = PROMPT.to_vec();
    sequence.extend(&masked[..4]);
    let after = tokens(&generate(
        &mut backend,
        0,
        &sequence,
        &SamplingParams::greedy(),
        (&[64], 1),
    ));
    assert_eq!(masked[4], after[0], "the fifth token is free again");
}

type Break = fn(&mut Batch);

#[test]
fn a_batch_that_breaks_the_contract_is_refused_and_the_backend_goes_on() {
    let mut backend = load("llama-f32", &options());
    let limits = backend.limits();
    let good = || {
        let mut sequence = Sequence::new(0, &PROMPT);
        let mut batch = Batch {
            step: 7,
            ..Batch::default()
        };
        add_row(&mut batch, &mut sequence, 21);
        batch
    };
    let cases: [(&str, Break); 8] = [
        ("token 40 is not in the vocabulary", |batch| {
            batch.tokens[3] = 40;
        }),
        ("block 4000000000 does not exist", |batch| {
            batch.blocks[1].0 = 4_000_000_000;
        }),
        ("goes past the context", |batch| batch.rows[0].start = 4000),
        ("row 0 does not fit", |batch| batch.rows[0].block_count = 1),
        ("row 0 does not fit", |batch| batch.rows[0].block_offset = 9),
        ("row 0 does not fit", |batch| batch.rows[0].token_count = 0),
        ("slot 5 is not open", |batch| batch.rows[0].slot.0 = 5),
        ("rows have 20 tokens", |batch| {
            batch.rows[0].token_count = 20;
        }),
    ];
    backend.open(good().rows[0].slot, &SamplingParams::greedy(), &PROMPT, &[]);
    let mut sampled = Vec::new();
    for (want, break_it) in cases {
        let mut batch = good();
        break_it(&mut batch);
        let error = backend
            .step(&batch, &NoMasks, &mut sampled)
            .unwrap_err()
            .to_string();
        assert!(error.contains(want) && error.contains("step 7"), "{error}");
    }
    backend.step(&good(), &NoMasks, &mut sampled).unwrap();
    assert_eq!(sampled.len(), 1);
    assert!(limits.blocks >= 64 && limits.context_tokens == 128);
}
