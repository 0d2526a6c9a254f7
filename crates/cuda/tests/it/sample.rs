//! Sampling, against the CPU's sampler: the same tokens, whatever the filters, and the same log-probabilities.

use std::sync::Arc;

use weir_cuda::device::{Arguments, Execute as _, Launch};
use weir_cuda::kernels::Kernel;
use weir_cuda::sampling::{self, RESULT_SIZE, RowState};
use weir_model::backend::{Sampled, SamplingParams};
use weir_model::reference;

use crate::numbers::{Random, difference};
use crate::shim::{BF16, Shim};

/// A row to be sampled.
struct Row {
    logits: Vec<f32>,
    params: SamplingParams,
    prompt: Vec<u32>,
    output: Vec<u32>,
    mask: Option<Vec<u32>>,
}

/// A row with parameters drawn so that each filter is off in half of them; logits have ties in a third.
fn row(random: &mut Random, vocab: usize) -> Row {
    let mut logits: Vec<f32> = random.floats(vocab).iter().map(|x| 9.0 * x).collect();
    if random.below(3) == 0 {
        logits.iter_mut().for_each(|x| *x = (*x * 0.7).round());
    }
    let mut tokens =
        |count: usize| -> Vec<u32> { (0..count).map(|_| random.below(vocab) as u32).collect() };
    let (prompt, output) = (tokens(9), tokens(5));
    let masked: Arc<[u32]> = tokens(3).into();
    let mut either = |off: f32, on: f32| if random.below(2) == 0 { off } else { on };
    let params = SamplingParams {
        temperature: either(1.0, 3.5),
        top_p: either(1.0, 0.6),
        top_k: either(0.0, 11.0) as u32,
        min_p: either(0.0, 0.05),
        presence_penalty: either(0.0, 0.7),
        frequency_penalty: either(0.0, 0.3),
        repetition_penalty: either(1.0, 1.3),
        logprobs: (either(0.0, 1.0) > 0.0).then_some(4),
        prompt_logprobs: None,
        min_tokens: either(0.0, 6.0) as u32,
        masked_until_min: masked,
        seed: random.next(),
    };
    let mask = (random.below(2) == 0).then(|| {
        // A word too few: what lies beyond the mask may not come.
        (0..vocab.div_ceil(32) - 1)
            .map(|_| random.next() as u32 | 1)
            .collect()
    });
    Row {
        logits,
        params,
        prompt,
        output,
        mask,
    }
}

/// What the kernel makes of rows; `None` for one that is broken.
fn run(shim: &mut Shim, rows: &[Row], vocab: usize) -> Vec<Option<Sampled>> {
    let slots = rows.len() + 1;
    let counts = shim.room(slots * vocab * 4);
    let words = vocab.div_ceil(32) - 1;
    let (mut logits, mut params, mut masks, mut banned) =
        (Vec::new(), Vec::new(), Vec::<u32>::new(), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        logits.extend_from_slice(&row.logits);
        // Slots in another order than rows.
        let slot = slots - 1 - at;
        let state = RowState {
            slot: slot as u32,
            position: (row.prompt.len() + row.output.len()) as u64,
            output_len: row.output.len() as u32,
            mask: row.mask.as_ref().map(|_| (masks.len() / words) as u32),
            banned: banned.len() as u32,
        };
        params.extend(sampling::params(&row.params, &state));
        masks.extend(row.mask.iter().flatten());
        banned.extend(row.params.masked_until_min.iter().copied());
        let tokens: Vec<u32> = row.prompt.iter().chain(&row.output).copied().collect();
        let tokens = shim.put(&tokens);
        let arguments = Arguments::new()
            .at(counts.after((slot * vocab * 4) as u64))
            .at(tokens);
        let launch = Launch {
            kernel: Kernel::CountTokens,
            grid: [1, 1, 1],
            threads: 64,
            arguments: arguments
                .int(row.prompt.len())
                .int(row.output.len())
                .int(vocab),
        };
        shim.launch(&launch).unwrap();
    }
    // A row that only fills up.
    logits.extend(vec![f32::NAN; vocab]);
    params.extend(sampling::no_row());
    let (logits, weights) = (shim.put(&logits), shim.room((rows.len() + 1) * vocab * 4));
    let (params, masks) = (shim.put(&params), shim.put(&masks));
    let (banned, last) = (shim.put(&banned), shim.room(slots * 4));
    let results = shim.room(slots * RESULT_SIZE);
    let mut arguments = Arguments::new();
    for at in [
        logits, weights, params, counts, masks, banned, last, results,
    ] {
        arguments = arguments.at(at);
    }
    let launch = Launch {
        kernel: Kernel::Sample,
        grid: [rows.len() + 1, 1, 1],
        threads: sampling::THREADS,
        arguments: arguments.int(vocab).int(words),
    };
    shim.launch(&launch).unwrap();
    let bytes: Vec<u8> = shim.get(results, rows.len() * RESULT_SIZE);
    let got: Vec<Option<Sampled>> = bytes.chunks(RESULT_SIZE).map(sampling::result).collect();
    let last: Vec<u32> = shim.get(last, slots);
    for (at, (row, got)) in rows.iter().zip(&got).enumerate() {
        let Some(got) = got else { continue };
        let slot = slots - 1 - at;
        assert_eq!(last[slot], got.token, "the token stays on the device");
        let count = u64::from(got.token) * 4 + (slot * vocab * 4) as u64;
        let count: Vec<u32> = shim.get(counts.after(count), 1);
        let before = row
            .output
            .iter()
            .filter(|&&token| token == got.token)
            .count();
        let added = usize::from(row.params.is_penalised());
        assert_eq!(
            count[0] as usize & 0xffff,
            before + added,
            "the new token is counted"
        );
    }
    got
}

fn want(row: &Row) -> Option<Sampled> {
    reference::sample(
        &row.logits,
        &row.params,
        (&row.prompt, &row.output),
        row.mask.as_deref(),
    )
}

fn check(got: Option<&Sampled>, row: &Row) {
    let want = want(row);
    let tokens = |sampled: &Sampled| {
        (
            sampled.token,
            sampled.top.iter().map(|top| top.0).collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        got.map(tokens),
        want.as_ref().map(tokens),
        "{:?}",
        row.params
    );
    if let (Some(got), Some(want)) = (got, want) {
        let logprobs = |sampled: &Sampled| -> Vec<f32> {
            let top = sampled.top.iter().map(|top| top.1);
            top.chain([sampled.logprob]).collect()
        };
        assert!(
            difference(&logprobs(got), &logprobs(&want)) < 1e-4,
            "{got:?} against {want:?}"
        );
    }
}

#[test]
fn tokens_are_those_of_the_cpus_sampler() {
    let Some(mut shim) = Shim::start(BF16, 41) else {
        return;
    };
    let vocab = 700;
    let mut random = Random(5);
    let rows: Vec<Row> = (0..60).map(|_| row(&mut random, vocab)).collect();
    let got = run(&mut shim, &rows, vocab);
    for (got, row) in got.iter().zip(&rows) {
        check(got.as_ref(), row);
    }
    let others = got.iter().zip(&rows).filter(|(got, row)| {
        let best = Row {
            logits: row.logits.clone(),
            params: SamplingParams::greedy(),
            prompt: Vec::new(),
            output: Vec::new(),
            mask: None,
        };
        got.as_ref().map(|got| got.token) != want(&best).map(|want| want.token)
    });
    assert!(others.count() > 20, "sampling takes other than the best");
}

#[test]
fn greedy_rows_take_the_smallest_id_of_the_best_and_masks_hold() {
    let Some(mut shim) = Shim::start(BF16, 42) else {
        return;
    };
    let vocab = 90;
    let plain = |logits: Vec<f32>, mask: Option<Vec<u32>>| Row {
        logits,
        params: SamplingParams::greedy(),
        prompt: Vec::new(),
        output: Vec::new(),
        mask,
    };
    let mut ties = vec![0.0; vocab];
    (ties[70], ties[33], ties[80]) = (5.0, 5.0, 5.0);
    let mut broken = vec![1.0; vocab];
    broken[89] = f32::NAN;
    let mut infinite = vec![1.0; vocab];
    infinite[3] = f32::INFINITY;
    let rows = [
        plain(ties.clone(), None),
        plain(ties.clone(), Some(vec![0, 1 << 2])),
        plain(ties.clone(), Some(vec![0, 0])),
        plain(broken, None),
        plain(infinite, None),
        plain(vec![f32::NEG_INFINITY; vocab], None),
    ];
    let got = run(&mut shim, &rows, vocab);
    let tokens: Vec<Option<u32>> = got
        .iter()
        .map(|got| got.as_ref().map(|got| got.token))
        .collect();
    assert_eq!(tokens, [Some(33), Some(34), Some(0), None, None, Some(0)]);
    for (got, row) in got.iter().zip(&rows) {
        check(got.as_ref(), row);
    }
}

#[test]
fn the_order_of_threads_changes_no_token() {
    let mut first: Option<Vec<Option<Sampled>>> = None;
    for seed in [1, 1 << 20, 1 << 40] {
        let Some(mut shim) = Shim::start(BF16, seed) else {
            return;
        };
        let mut random = Random(6);
        let rows: Vec<Row> = (0..12).map(|_| row(&mut random, 300)).collect();
        let got = run(&mut shim, &rows, 300);
        assert_eq!(*first.get_or_insert_with(|| got.clone()), got);
    }
}
