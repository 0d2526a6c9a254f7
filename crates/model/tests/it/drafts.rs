//! Guesses change nothing: what a row samples after guesses is what it would have sampled without them (engine.md section 6, rows 7
//! and 32).

use weir_model::backend::{Backend as _, Masks, NoMasks, Sampled, SamplingParams};
use weir_model::quant::QuantKind;
use weir_model::{CpuOptions, KvType, WeightFormat};
use weir_scheduler::{Batch, SequenceId};

use std::sync::Arc;

use crate::harness::{Sequence, add_row, generate, load, options, tokens};

const COUNT: usize = 20;
const DRAFTS: usize = 7;

fn prompt(slot: u32) -> Vec<u32> {
    (0..9 + slot * 4)
        .map(|at| (at * 7 + slot * 3) % 39)
        .collect()
}

/// Greedy, with penalties, sampled, and with end tokens that may not come yet.
fn params(slot: u32) -> SamplingParams {
    let sampled = SamplingParams {
        temperature: 3.0,
        top_p: 0.95,
        top_k: 30,
        seed: slot.into(),
        logprobs: Some(3),
        ..SamplingParams::greedy()
    };
    match slot % 4 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams {
            presence_penalty: 0.6,
            frequency_penalty: 0.3,
            repetition_penalty: 1.2,
            ..sampled
        },
        2 => SamplingParams {
            masked_until_min: (0..10).collect(),
            min_tokens: 11,
            ..sampled
        },
        _ => sampled,
    }
}

/// Guesses of what follows `done` tokens of the output: right up to a place that differs from row to row.
fn guesses(want: &[u32], done: usize, salt: usize) -> Vec<u32> {
    let count = DRAFTS.min(COUNT - done - 1);
    let wrong = (done * 5 + salt * 3) % (DRAFTS + 2);
    (0..count)
        .map(|at| match want[done + at] {
            token if at == wrong => (token + 1) % 39,
            token => token,
        })
        .collect()
}

fn add_guesses(batch: &mut Batch, sequence: &mut Sequence, drafts: &[u32]) {
    let length = sequence.tokens.len();
    let left = u32::try_from(length).unwrap() - sequence.done;
    sequence.tokens.extend_from_slice(drafts);
    let count = u32::try_from(drafts.len()).unwrap();
    add_row(batch, sequence, left + count);
    let row = batch.rows.last_mut().unwrap();
    row.draft_count = count;
    assert!(row.samples);
    sequence.tokens.truncate(length);
}

/// Eight sequences at once, each row with guesses: more places than are sampled together.
fn guessed(options: &CpuOptions, name: &str, want: &[Vec<u32>]) -> (Vec<Vec<Sampled>>, u32) {
    let mut backend = load(name, options);
    let mut sequences: Vec<Sequence> = (0..8)
        .map(|slot| Sequence::new(slot, &prompt(slot)))
        .collect();
    for sequence in &sequences {
        let slot = sequence.slot.0;
        backend.open(sequence.slot, &params(slot), &sequence.tokens, &[]);
    }
    let (mut got, mut steps) = (vec![Vec::<Sampled>::new(); 8], 0);
    while got.iter().any(|got| got.len() < COUNT) {
        steps += 1;
        let mut batch = Batch::default();
        let mut rows = Vec::new();
        for (slot, sequence) in sequences.iter_mut().enumerate() {
            let done = got[slot].len();
            if done < COUNT {
                let drafts = match done {
                    0 => Vec::new(),
                    done => guesses(&want[slot], done, slot),
                };
                add_guesses(&mut batch, sequence, &drafts);
                rows.push((slot, drafts));
            }
        }
        let mut sampled = Vec::new();
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        let mut sampled = sampled.into_iter();
        for (slot, drafts) in rows {
            let sequence = &mut sequences[slot];
            sequence.done -= u32::try_from(drafts.len()).unwrap();
            for place in 0..=drafts.len() {
                let one = sampled
                    .next()
                    .expect("a result for each guess that came true");
                let came_true = drafts.get(place) == Some(&one.token);
                sequence.tokens.push(one.token);
                sequence.done += u32::from(place > 0);
                got[slot].push(one);
                if !came_true {
                    break;
                }
            }
        }
        assert!(sampled.next().is_none(), "a result too many");
    }
    (got, steps)
}

#[test]
fn guesses_change_no_bit_and_save_steps() {
    let int8 = WeightFormat::Quantized(QuantKind::Int8);
    for (name, kv_type, weights) in [
        ("llama3-rope", KvType::F32, WeightFormat::Stored),
        ("mistral-window", KvType::Int8, int8),
        ("qwen3", KvType::Bf16, int8),
    ] {
        let options = CpuOptions {
            kv_type,
            weights,
            ..options()
        };
        let mut backend = load(name, &options);
        let alone: Vec<Vec<Sampled>> = (0..8)
            .map(|slot| {
                let (prompt, params) = (prompt(slot), params(slot));
                generate(&mut backend, slot, &prompt, &params, (&[256], COUNT))
            })
            .collect();
        let want: Vec<Vec<u32>> = alone.iter().map(|row| tokens(row)).collect();
        let (got, steps) = guessed(&options, name, &want);
        for (slot, (got, alone)) in got.iter().zip(&alone).enumerate() {
            assert_eq!(got, alone, "{name} slot {slot}");
        }
        assert!(steps < 12, "{name}: {steps} steps for {COUNT} tokens");
    }
}

/// Allows one token after each number of guesses.
struct OneEach(Vec<u32>);

impl Masks for OneEach {
    fn mask(&self, _: SequenceId, drafts: u32) -> Option<Arc<[u32]>> {
        let token = self.0[drafts as usize];
        let mut words = [0_u32; 2];
        words[token as usize / 32] = 1 << (token % 32);
        Some(Arc::from(words))
    }
}

#[test]
fn a_guess_is_followed_by_what_the_grammar_allows_after_it() {
    let mut backend = load("qwen3", &options());
    let allowed = [5, 9, 33, 2];
    for (guesses, came_true) in [([5, 9, 33], 3), ([5, 8, 33], 1), ([4, 9, 33], 0)] {
        let mut sequence = Sequence::new(0, &prompt(0));
        backend.open(
            sequence.slot,
            &SamplingParams::greedy(),
            &sequence.tokens,
            &[],
        );
        let mut batch = Batch::default();
        add_guesses(&mut batch, &mut sequence, &guesses);
        let mut sampled = Vec::new();
        let masks = OneEach(allowed.to_vec());
        backend.step(&batch, &masks, &mut sampled).unwrap();
        backend.close(sequence.slot);
        assert_eq!(tokens(&sampled), allowed[..=came_true], "{guesses:?}");
    }
}
