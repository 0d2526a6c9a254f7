//! Adapters: against `peft` (see `tests/golden/adapters`), beside each other, and beside rows that have none.

use std::sync::Arc;

use safetensors::SafeTensors;
use weir_model::backend::{AdapterId, Backend as _, NoMasks, Sampled, SamplingParams};
use weir_model::cpu::Level;
use weir_model::quant::QuantKind;
use weir_model::{Adapter, CpuBackend, CpuOptions, FileSource, KvType, OpenFiles, WeightFormat};
use weir_scheduler::{Batch, SlotId};

use crate::harness::{Sequence, add_row, golden, load, options};

/// Adapters and their bases.
const ADAPTERS: [(&str, &str); 5] = [
    ("all", "llama-f32"),
    ("attention", "qwen2"),
    ("rslora", "qwen3"),
    ("last-layer", "llama3-rope"),
    ("expression", "llama-f32"),
];

/// As of the models themselves.
const TOLERANCE: f32 = 1e-4;

fn files(name: &str) -> OpenFiles {
    OpenFiles::from_dir(&golden(&format!("adapters/{name}"))).unwrap()
}

fn insert(backend: &mut CpuBackend, files: &dyn FileSource) -> AdapterId {
    let adapters = backend.adapters().expect("the CPU applies adapters");
    let adapter = Adapter::load(files, adapters.config()).unwrap();
    adapters.insert(Arc::new(adapter)).unwrap()
}

fn apply(backend: &mut CpuBackend, slot: SlotId, adapter: Option<AdapterId>) {
    if let Some(adapter) = adapter {
        backend.adapters().unwrap().apply(slot, adapter);
    }
}

fn words(name: &str, tensor: &str) -> Vec<u32> {
    let bytes = std::fs::read(golden(&format!("adapters/{name}/golden.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (words, _) = tensors.tensor(tensor).unwrap().data().as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Opens a sequence and runs its prompt in chunks and some tokens more; what was sampled.
fn run(
    backend: &mut CpuBackend,
    slot: u32,
    (prompt, adapter): (&[u32], Option<AdapterId>),
    (params, chunk, count): (&SamplingParams, u32, usize),
) -> Vec<Sampled> {
    let mut sequence = Sequence::new(slot, prompt);
    backend.open(sequence.slot, params, prompt, &[]);
    apply(backend, sequence.slot, adapter);
    let (mut all, mut sampled) = (Vec::new(), Vec::new());
    while all.len() < count {
        let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
        let mut batch = Batch {
            step: 1,
            ..Batch::default()
        };
        add_row(&mut batch, &mut sequence, left.min(chunk));
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        sequence
            .tokens
            .extend(sampled.iter().map(|sampled| sampled.token));
        all.append(&mut sampled);
    }
    backend.close(sequence.slot);
    all
}

#[test]
fn logits_with_an_adapter_equal_the_reference() {
    for (name, base) in ADAPTERS {
        let prompt = words(name, "prompt");
        let logits = words(name, "logits");
        let vocab = logits.len() / prompt.len();
        let mut backend = load(base, &options());
        let adapter = insert(&mut backend, &files(name));
        let mut sequence = Sequence::new(3, &prompt);
        backend.open(sequence.slot, &SamplingParams::greedy(), &prompt, &[]);
        apply(&mut backend, sequence.slot, Some(adapter));
        for want in logits.chunks_exact(vocab) {
            let mut batch = Batch {
                step: 1,
                ..Batch::default()
            };
            add_row(&mut batch, &mut sequence, 1);
            batch.rows[0].samples = true;
            let got = backend.step_logits(&batch).unwrap();
            let off = got[0]
                .iter()
                .zip(want)
                .map(|(a, b)| (a - f32::from_bits(*b)).abs());
            let worst = off.fold(0.0, f32::max);
            assert!(worst < TOLERANCE, "{name}: {worst}");
        }
    }
}

#[test]
fn greedy_text_with_an_adapter_equals_the_reference_on_every_level() {
    for level in [Level::Plain, Level::Avx2, Level::Avx512, Level::Amx] {
        for (name, base) in ADAPTERS {
            let mut backend = load(base, &CpuOptions { level, ..options() });
            let adapter = insert(&mut backend, &files(name));
            let (prompt, greedy) = (words(name, "prompt"), words(name, "greedy"));
            let asked = (&SamplingParams::greedy(), 64, greedy.len());
            let got = run(&mut backend, 5, (&prompt, Some(adapter)), asked);
            let got: Vec<u32> = got.iter().map(|sampled| sampled.token).collect();
            assert_eq!(got, greedy, "{name} on {level:?}");
        }
    }
}

/// Bits of all that was said.
fn bits(sampled: &[Sampled]) -> Vec<(u32, u32)> {
    let each = sampled.iter();
    each.map(|one| (one.token, one.logprob.to_bits())).collect()
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 3.0,
        seed,
        logprobs: Some(0),
        ..SamplingParams::greedy()
    }
}

/// Prompt of a slot's sequence; of some length, so that spans end everywhere.
fn prompt_of(slot: u32) -> Vec<u32> {
    (0..7 + slot * 6)
        .map(|at| (at * 7 + slot * 3) % 40)
        .collect()
}

/// Two adapters that add to everything, one that adds to little, and none, in one batch: each row is what it is alone.
#[test]
fn rows_of_many_adapters_in_one_batch_are_what_they_are_alone() {
    let formats = [
        (KvType::F32, WeightFormat::Stored),
        (KvType::Int8, WeightFormat::Quantized(QuantKind::Int8)),
        (KvType::Bf16, WeightFormat::Quantized(QuantKind::Int4)),
    ];
    for (kv_type, weights) in formats {
        let options = CpuOptions {
            kv_type,
            weights,
            ..options()
        };
        let plain = |slot: u32| {
            let asked = (&seeded(slot.into()), 5, 9);
            bits(&run(
                &mut load("llama-f32", &options),
                slot,
                (&prompt_of(slot), None),
                asked,
            ))
        };
        let mut backend = load("llama-f32", &options);
        let all = insert(&mut backend, &files("all"));
        let some = insert(&mut backend, &files("expression"));
        let again = insert(&mut backend, &files("all"));
        let adapters = [
            None,
            Some(all),
            Some(some),
            None,
            Some(again),
            Some(all),
            Some(some),
            None,
        ];
        let alone: Vec<_> = (0..8)
            .map(|slot| {
                let asked = (&seeded(slot.into()), 64, 9);
                bits(&run(
                    &mut backend,
                    slot,
                    (&prompt_of(slot), adapters[slot as usize]),
                    asked,
                ))
            })
            .collect();
        for (slot, adapter) in (0..).zip(&adapters) {
            let is_plain = alone[slot as usize] == plain(slot);
            assert_eq!(
                is_plain,
                adapter.is_none(),
                "slot {slot} {kv_type:?} {weights:?}"
            );
        }
        assert_eq!(
            together(&mut backend, &adapters, 9),
            alone,
            "{kv_type:?} {weights:?}"
        );
    }
}

/// All eight sequences at once, which begin and go on in different steps.
fn together(
    backend: &mut CpuBackend,
    adapters: &[Option<AdapterId>],
    count: usize,
) -> Vec<Vec<(u32, u32)>> {
    let mut sequences: Vec<Sequence> = (0..8)
        .map(|slot| Sequence::new(slot, &prompt_of(slot)))
        .collect();
    for (sequence, adapter) in sequences.iter().zip(adapters) {
        let params = seeded(sequence.slot.0.into());
        backend.open(sequence.slot, &params, &sequence.tokens, &[]);
        apply(backend, sequence.slot, *adapter);
    }
    let mut all = vec![Vec::new(); 8];
    let mut sampled = Vec::new();
    for step in 1.. {
        let mut batch = Batch {
            step,
            ..Batch::default()
        };
        for sequence in &mut sequences {
            let slot = sequence.slot.0;
            let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
            if all[slot as usize].len() < count && step > u64::from(slot) / 2 {
                add_row(&mut batch, sequence, left.min(4 + slot));
            }
        }
        if batch.rows.is_empty() {
            break;
        }
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        let rows = batch.rows.iter().filter(|row| row.samples);
        for (row, sampled) in rows.zip(&sampled) {
            sequences[row.slot.0 as usize].tokens.push(sampled.token);
            all[row.slot.0 as usize].push((sampled.token, sampled.logprob.to_bits()));
        }
    }
    for sequence in &sequences {
        backend.close(sequence.slot);
    }
    all
}

/// An adapter goes, and its place is taken by another.
#[test]
fn an_adapter_that_goes_makes_room_for_another() {
    let mut backend = load("llama-f32", &options());
    let prompt = words("all", "prompt");
    let greedy = (&SamplingParams::greedy(), 64, 12);
    let first = insert(&mut backend, &files("all"));
    let second = insert(&mut backend, &files("expression"));
    backend.adapters().unwrap().remove(first);
    let third = insert(&mut backend, &files("all"));
    assert_eq!((first, third), (AdapterId(0), AdapterId(0)));
    let got = run(&mut backend, 0, (&prompt, Some(third)), greedy);
    let got: Vec<u32> = got.iter().map(|sampled| sampled.token).collect();
    assert_eq!(got, words("all", "greedy"));
    let prompt = words("expression", "prompt");
    let got = run(&mut backend, 0, (&prompt, Some(second)), greedy);
    let got: Vec<u32> = got.iter().map(|sampled| sampled.token).collect();
    assert_eq!(got, words("expression", "greedy"));
}

/// Weights so large that the logits are no numbers: the row says so, and the rows beside it, and those after it in the same blocks, are
/// what they are without.
#[test]
fn an_adapter_whose_numbers_overflow_harms_no_other_row() {
    let text = std::fs::read(golden("adapters/all/adapter_config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config["lora_alpha"] = 1e38.into();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    let weights = golden("adapters/all/adapter_model.safetensors");
    std::fs::copy(weights, dir.path().join("adapter_model.safetensors")).unwrap();
    let mut backend = load("llama-f32", &options());
    let prompt = prompt_of(3);
    let asked = (&seeded(1), 64, 6);
    let want = bits(&run(&mut backend, 2, (&prompt, None), asked));
    let broken = insert(&mut backend, &OpenFiles::from_dir(dir.path()).unwrap());
    let got = run(&mut backend, 2, (&prompt, Some(broken)), asked);
    assert!(
        got.iter().all(|sampled| sampled.logprob.is_nan()),
        "{got:?}"
    );
    let got = bits(&run(&mut backend, 2, (&prompt, None), asked));
    assert_eq!(got, want, "in the blocks of the broken row");
    let adapters = [
        None,
        Some(broken),
        None,
        None,
        None,
        None,
        None,
        Some(broken),
    ];
    let beside = together(&mut backend, &adapters, 6);
    let without = together(&mut backend, &[None; 8], 6);
    for slot in [0, 2, 3, 4, 5, 6] {
        assert_eq!(beside[slot], without[slot], "slot {slot}");
    }
}
