#![expect(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "results are compared to the last bit, and reported as f32"
)]

use proptest::prelude::*;

use super::*;
use crate::cpu::Level;

fn plain() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        seed: 5,
        ..SamplingParams::greedy()
    }
}

fn run(logits: &[f32], params: &SamplingParams, position: u64, counts: &TokenCounts) -> Sampled {
    let row = RowPosition {
        position,
        output_len: 0,
        mask: None,
        uncounted: &[],
    };
    let mut scratch = Scratch::new(logits.len());
    let kernels = Kernels::at_most(Level::Avx512);
    sample(
        &kernels,
        &mut logits.to_vec(),
        params,
        row,
        counts,
        &mut scratch,
    )
    .unwrap()
}

/// What the filters leave, computed the slow way.
fn allowed(logits: &[f32], params: &SamplingParams) -> Vec<(u32, f64)> {
    let best = logits.iter().copied().fold(f32::MIN, f32::max);
    let weight = |logit: f32| (f64::from(logit - best) / f64::from(params.temperature)).exp();
    let mut all: Vec<(u32, f64)> = (0u32..)
        .zip(logits.iter().map(|&logit| weight(logit)))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if params.top_k > 0 {
        all.truncate(params.top_k as usize);
    }
    let total: f64 = all.iter().map(|(_, weight)| weight).sum();
    let mut mass = 0.0;
    let before = |weight: f64| {
        let before = mass;
        mass += weight;
        before
    };
    let cumulative: Vec<f64> = all.iter().map(|&(_, weight)| weight).map(before).collect();
    let keep = cumulative
        .iter()
        .take_while(|&&before| before < f64::from(params.top_p) * total)
        .count();
    all.truncate(keep.max(1));
    all.retain(|&(_, weight)| weight >= f64::from(params.min_p) * 0.999_999);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn only_what_the_filters_leave_is_chosen_and_as_often_as_it_should(
        logits in proptest::collection::vec(-6f32..6.0, 2..40),
        temperature in 0.2f32..3.0,
        top_k in 0u32..12,
        top_p in 0.05f32..1.0,
        min_p in 0f32..0.3,
    ) {
        let params = SamplingParams { temperature, top_p, top_k, min_p, ..plain() };
        let allowed = allowed(&logits, &params);
        let total: f64 = allowed.iter().map(|(_, weight)| weight).sum();
        let draws = 400u32;
        let mut seen = vec![0u32; logits.len()];
        for position in 0..draws {
            seen[run(&logits, &params, position.into(), &TokenCounts::default()).token as usize] += 1;
        }
        // Where the mass of top-p is reached within rounding, one token more or less is right.
        let chosen = seen.iter().filter(|&&count| count > 0).count();
        prop_assert!(chosen <= allowed.len() + 1);
        for (token, weight) in &allowed[..allowed.len().saturating_sub(1)] {
            let want = weight / total * f64::from(draws);
            let got = f64::from(seen[*token as usize]);
            // Six standard deviations, and room for the one token at the edge.
            prop_assert!((got - want).abs() < 6.0 * want.sqrt() + 0.15 * want + 6.0, "token {token}: {got} of {want}");
        }
    }

    #[test]
    fn top_k_one_and_tiny_top_p_are_greedy(logits in proptest::collection::vec(-9f32..9.0, 1..60), position in any::<u64>()) {
        let counts = TokenCounts::default();
        let greedy = run(&logits, &SamplingParams { temperature: 0.0, ..plain() }, position, &counts).token;
        let first = logits.iter().position(|&logit| logit == logits.iter().copied().fold(f32::MIN, f32::max)).unwrap();
        prop_assert_eq!(greedy as usize, first, "ties go to the lowest id");
        for params in [SamplingParams { top_k: 1, ..plain() }, SamplingParams { top_p: 1e-6, ..plain() }] {
            prop_assert_eq!(run(&logits, &params, position, &counts).token, greedy);
        }
    }

    #[test]
    fn counts_are_those_of_a_map(prompt in proptest::collection::vec(0u32..50, 0..80), output in proptest::collection::vec(0u32..50, 0..200)) {
        let mut counts = TokenCounts::default();
        for _ in 0..2 {
            counts.clear();
            for &token in &prompt {
                counts.add_prompt(token);
            }
            for &token in &output {
                counts.add_output(token);
            }
            let mut got: Vec<(u32, u32)> = counts.entries().iter().map(|entry| (entry.token, entry.output_count)).collect();
            got.sort_unstable();
            let mut want = std::collections::BTreeMap::new();
            for &token in &prompt {
                *want.entry(token).or_insert(0) += 0;
            }
            for &token in &output {
                *want.entry(token).or_insert(0) += 1;
            }
            prop_assert_eq!(got, want.into_iter().collect::<Vec<_>>());
        }
    }
}

/// Vectors of the authors' own test file (`kat_vectors`, philox4x32, 10 rounds).
#[test]
fn random_numbers_are_philox() {
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let cases = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            pi,
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, want) in cases {
        assert_eq!(philox::philox(counter, key), want);
    }
    let numbers: Vec<f64> = (0..10_000)
        .map(|position| philox::uniform(3, position))
        .collect();
    let mean = numbers.iter().sum::<f64>() / 10_000.0;
    assert!(
        numbers.iter().all(|x| (0.0..1.0).contains(x)) && (mean - 0.5).abs() < 0.02,
        "{mean}"
    );
}

#[test]
fn penalties_count_what_they_say() {
    let mut counts = TokenCounts::default();
    counts.add_prompt(0);
    counts.add_prompt(1);
    counts.add_output(2);
    counts.add_output(2);
    let logits = [2.0, -2.0, 3.0, 1.0];
    let cases = [
        (
            SamplingParams {
                repetition_penalty: 2.0,
                ..plain()
            },
            [1.0, -4.0, 1.5, 1.0],
        ),
        (
            SamplingParams {
                presence_penalty: 0.5,
                ..plain()
            },
            [2.0, -2.0, 2.5, 1.0],
        ),
        (
            SamplingParams {
                frequency_penalty: 0.5,
                ..plain()
            },
            [2.0, -2.0, 2.0, 1.0],
        ),
        (
            SamplingParams {
                repetition_penalty: 2.0,
                presence_penalty: 0.5,
                frequency_penalty: 0.25,
                ..plain()
            },
            [1.0, -4.0, 0.5, 1.0],
        ),
    ];
    for (params, want) in cases {
        let mut got = logits;
        apply_penalties(&mut got, &params, &counts);
        assert_eq!(got, want, "{params:?}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let logits = [1.0f32, 3.0, 2.0, 3.0];
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let want = |token: usize| (f64::from(logits[token]) - sum.ln()) as f32;
    let mut counts = TokenCounts::default();
    counts.add_output(1);
    counts.add_output(3);
    for temperature in [0.0, 0.1, 7.0] {
        let params = SamplingParams {
            temperature,
            presence_penalty: 9.0,
            logprobs: Some(3),
            ..plain()
        };
        let sampled = run(&logits, &params, 1, &counts);
        assert!((sampled.logprob - want(sampled.token as usize)).abs() < 1e-6);
        assert_eq!(
            sampled
                .top
                .iter()
                .map(|(token, _)| *token)
                .collect::<Vec<_>>(),
            [1, 3, 2]
        );
        assert!(
            sampled
                .top
                .iter()
                .all(|&(token, logprob)| (logprob - want(token as usize)).abs() < 1e-6)
        );
    }
    let sampled = run(
        &logits,
        &SamplingParams {
            logprobs: Some(0),
            ..plain()
        },
        1,
        &counts,
    );
    assert!(sampled.top.is_empty() && sampled.logprob < 0.0);
    let all = run(
        &logits,
        &SamplingParams {
            logprobs: Some(1000),
            ..plain()
        },
        1,
        &counts,
    );
    assert_eq!(all.top.len(), 4);
}

#[test]
fn masked_tokens_are_not_chosen_and_broken_logits_are_reported() {
    let params = SamplingParams {
        temperature: 0.0,
        masked_until_min: [1, 9].into(),
        min_tokens: 1,
        ..plain()
    };
    assert_eq!(
        run(&[0.0, 5.0, 1.0], &params, 0, &TokenCounts::default()).token,
        2
    );
    let kernels = Kernels::at_most(Level::Plain);
    let row = RowPosition {
        position: 0,
        output_len: 0,
        mask: None,
        uncounted: &[],
    };
    let mut scratch = Scratch::new(2);
    let result = sample(
        &kernels,
        &mut [0.0, f32::NAN],
        &plain(),
        row,
        &TokenCounts::default(),
        &mut scratch,
    );
    assert_eq!(result, Err(NotANumber));
}

#[test]
fn only_what_the_mask_allows_is_chosen_whatever_the_filters_say() {
    let kernels = Kernels::at_most(Level::Avx512);
    let logits: Vec<f32> = (0..70u8).map(f32::from).collect();
    let mut scratch = Scratch::new(logits.len());
    // Tokens 3 and 40; 64 to 69 lie beyond the last word.
    let mask = [1 << 3, 1 << 8];
    for (top_k, temperature) in [(0, 0.0), (1, 1.0), (5, 3.0), (0, 50.0)] {
        for position in 0..20 {
            let params = SamplingParams {
                temperature,
                top_k,
                ..plain()
            };
            let row = RowPosition {
                position,
                output_len: 0,
                mask: Some(&mask),
                uncounted: &[],
            };
            let chosen = sample(
                &kernels,
                &mut logits.clone(),
                &params,
                row,
                &TokenCounts::default(),
                &mut scratch,
            )
            .unwrap();
            assert!([3, 40].contains(&chosen.token), "{chosen:?}");
            if temperature < 50.0 {
                assert_eq!(chosen.token, 40, "the better one by far");
            }
        }
    }
}
