//! What a model expected of the tokens of a prompt.

use weir_model::backend::{Backend as _, NoMasks, Sampled, SamplingParams, Scored};
use weir_model::quant::QuantKind;
use weir_model::{CpuBackend, CpuOptions, WeightFormat};
use weir_scheduler::Batch;

use crate::harness::{Sequence, add_row, load, options};

const ALTERNATIVES: u32 = 3;

/// Longer than a group of logits.
fn prompt() -> Vec<u32> {
    (0..45u32).map(|at| (at * at + 3) % 40).collect()
}

fn params(alternatives: Option<u32>) -> SamplingParams {
    SamplingParams {
        prompt_logprobs: alternatives,
        ..SamplingParams::greedy()
    }
}

/// Runs the prompt in chunks and some decode steps; gives what was said of the prompt, and what was sampled.
fn run(
    backend: &mut CpuBackend,
    params: &SamplingParams,
    (output, chunk): (&[u32], u32),
) -> (Vec<Scored>, Vec<Sampled>) {
    let prompt = prompt();
    let mut sequence = Sequence::new(3, &[&prompt[..], output].concat());
    backend.open(sequence.slot, params, &prompt, output);
    let (mut scored, mut all) = (Vec::new(), Vec::new());
    while all.len() < 4 {
        let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
        let mut batch = Batch {
            step: 1,
            ..Batch::default()
        };
        add_row(&mut batch, &mut sequence, left.min(chunk));
        let mut sampled = Vec::new();
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        backend.take_scored(&mut scored);
        sequence.tokens.extend(sampled.iter().map(|one| one.token));
        all.append(&mut sampled);
    }
    backend.close(sequence.slot);
    (scored, all)
}

/// Log-probabilities of all tokens after each position but the last, in double precision.
fn reference(backend: &mut CpuBackend) -> Vec<Vec<f64>> {
    let mut sequence = Sequence::new(5, &prompt());
    backend.open(sequence.slot, &params(None), &prompt(), &[]);
    let mut batch = Batch {
        step: 1,
        ..Batch::default()
    };
    add_row(&mut batch, &mut sequence, 45);
    let mut rows = Vec::new();
    let keep = |_, logits: &[f32]| {
        let exponentials = logits.iter().map(|&logit| f64::from(logit).exp());
        let sum = exponentials.sum::<f64>().ln();
        rows.push(logits.iter().map(|&logit| f64::from(logit) - sum).collect());
    };
    backend.all_logits(&batch, keep).unwrap();
    backend.close(sequence.slot);
    rows
}

#[test]
fn every_token_of_a_prompt_has_the_log_probability_of_its_logits_however_it_comes_in() {
    for weights in [
        WeightFormat::Stored,
        WeightFormat::Quantized(QuantKind::Int8),
    ] {
        let options = CpuOptions {
            weights,
            ..options()
        };
        let want = reference(&mut load("qwen3", &options));
        let (whole, _) = run(
            &mut load("qwen3", &options),
            &params(Some(ALTERNATIVES)),
            (&[], 64),
        );
        assert_eq!(whole.len(), 44, "all but the first");
        for (scored, before) in whole.iter().zip(&want) {
            assert_eq!(scored.token.token, prompt()[scored.position as usize]);
            let expected = before[scored.token.token as usize];
            let far = (f64::from(scored.token.logprob) - expected).abs();
            assert!(far < 1e-4, "position {}: {far}", scored.position);
            let mut best = before.clone();
            best.sort_by(|one, other| other.total_cmp(one));
            assert_eq!(scored.token.top.len(), ALTERNATIVES as usize);
            for ((token, logprob), best) in scored.token.top.iter().zip(best) {
                assert!((f64::from(*logprob) - best).abs() < 1e-4);
                assert!((before[*token as usize] - best).abs() < 1e-9);
            }
        }
        for chunk in [1, 7, 16] {
            let mut backend = load("qwen3", &options);
            let (parts, _) = run(&mut backend, &params(Some(ALTERNATIVES)), (&[], chunk));
            assert_eq!(parts, whole, "chunks of {chunk}");
        }
    }
}

#[test]
fn what_is_said_of_a_prompt_changes_no_output_and_is_said_once() {
    let mut backend = load("llama3-rope", &options());
    let (none, without) = run(&mut backend, &params(None), (&[], 16));
    let (some, with) = run(&mut backend, &params(Some(0)), (&[], 16));
    assert_eq!((none.len(), some.len()), (0, 44));
    assert_eq!(with, without);
    // Preempted after it had output: of the prompt all was said.
    let (again, _) = run(&mut backend, &params(Some(0)), (&[with[0].token], 16));
    assert_eq!(again, []);
}
