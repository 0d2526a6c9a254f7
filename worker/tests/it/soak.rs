//! The whole worker on a real network, under random requests, cancels, slow readers and preemptions (a pool far too small for them):
//! no block leaks, memory stays, and every output is what the same request gets alone. `WEIR_SOAK_S` is how long; without it a few
//! rounds run. A failure names the round, which is its seed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weir_model::backend::Backend;
use weir_model::quant::QuantKind;
use weir_model::{CpuOptions, KvType, OpenFiles, WeightFormat, load_cpu};
use weir_protocol::worker::{Cancel, Progress, Row, Sampling, Submit, finish::Reason, progress};

use crate::gateway::{Gateway, Got, PATIENCE, hello, sampling, submit};
use crate::harness::{Options, TestWorker};

/// Rows of the model's embedding table.
const VOCAB: u32 = 40;
/// Rounds where no time is asked for.
const ROUNDS: u64 = 12;
/// Runs of a round.
const RUNS: u64 = 16;
/// Bytes that resident memory may grow by after the first tenth of a long soak: what allocators and growing tables need.
const GROWTH_MAX: u64 = 24 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).unwrap()
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

fn backend(kv_bytes: u64) -> Box<dyn Backend> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates/model/tests/golden/qwen3");
    let options = CpuOptions {
        threads: 2,
        kv_bytes,
        kv_type: KvType::Int8,
        max_running: 8,
        max_batch_tokens: 64,
        weights: WeightFormat::Quantized(QuantKind::Int8),
        ..CpuOptions::default()
    };
    Box::new(load_cpu(&OpenFiles::from_dir(&dir).unwrap(), &options).unwrap())
}

/// A worker whose pool holds so many full contexts.
async fn worker(contexts: u64, draft_tokens: u32) -> TestWorker {
    let one = backend(1 << 20);
    let block = one.limits().kv_bytes / u64::from(one.limits().blocks);
    let blocks = contexts * u64::from(one.limits().context_tokens / one.limits().block_tokens);
    TestWorker::start_with(Options {
        draft_tokens,
        backend: Some((backend(block * blocks), VOCAB)),
        ..Options::default()
    })
    .await
}

/// A run of a round; what is in it depends on its number alone.
fn run(number: u64) -> Submit {
    let mut random = Random(number);
    // Beginnings are shared, so that the prefix cache has work.
    let (text, common) = (random.below(3), random.below(50));
    let mut prompt: Vec<u32> = (0..common)
        .map(|at| (text * 13 + at * 7 + at / 9) % VOCAB)
        .collect();
    for _ in 0..=random.below(20) {
        prompt.push(random.below(VOCAB));
    }
    let most = 1 + random.below(50);
    let scope = random.below(3);
    let of_it = Sampling {
        temperature: if random.chance(50) { 0.0 } else { 2.5 },
        top_p: 0.95,
        seed: Some(number),
        frequency_penalty: if random.chance(30) { 0.4 } else { 0.0 },
        repetition_penalty: if random.chance(30) { 1.15 } else { 1.0 },
        min_tokens: if random.chance(30) { most / 2 } else { 0 },
        stop_token_ids: vec![random.below(VOCAB)],
        stop: if random.chance(20) {
            vec!["\u{7}\u{9}".to_owned()]
        } else {
            Vec::new()
        },
        ..sampling()
    };
    Submit {
        run: u128::from(number).to_be_bytes().to_vec().into(),
        choices: 1 + u32::from(random.chance(20)),
        trust_scope: if scope < 2 {
            vec![u8::try_from(scope).unwrap(); 32].into()
        } else {
            Vec::new().into()
        },
        priority: random.below(3),
        sampling: Some(of_it),
        credit: if random.chance(25) { 4 } else { 1 << 20 },
        ..submit(0, &prompt, most)
    }
}

/// What each choice of a run made: tokens and text.
type Output = BTreeMap<u32, (Vec<u32>, String)>;

#[derive(Default)]
struct Seen {
    output: Output,
    rows: u64,
    credit: u64,
    cancel_after: Option<u64>,
    is_cancelled: bool,
    is_over: bool,
}

impl Seen {
    fn take(&mut self, row: &Row) {
        self.rows += 1;
        let (tokens, text) = self.output.entry(row.choice).or_default();
        if row.tokens > 0 {
            tokens.push(row.token_id);
        }
        text.push_str(&row.text);
        if let Some(finish) = &row.finish {
            assert_ne!(finish.reason(), Reason::Failed, "{}", finish.message);
        }
        self.is_over = row.run_finished;
    }
}

/// Sends the runs of a round at once and reads until all have ended.
async fn round(gateway: &mut Gateway, numbers: &[u64], disturbs: bool) -> BTreeMap<u64, Seen> {
    let mut seen = BTreeMap::new();
    for number in numbers {
        let mut frame = run(*number);
        let mut random = Random(!number);
        let mut of_run = Seen::default();
        if disturbs {
            of_run.cancel_after = random.chance(25).then(|| random.below(12).into());
        } else {
            frame.credit = 1 << 20;
        }
        of_run.credit = frame.credit;
        let cancels_at_once = of_run.cancel_after == Some(0);
        let key = frame.run.clone();
        gateway.send(frame).await;
        if cancels_at_once {
            of_run.is_cancelled = true;
            gateway.send(Cancel { run: key, epoch: 1 }).await;
        }
        seen.insert(*number, of_run);
    }
    while seen.values().any(|of_run| !of_run.is_over) {
        let row = match gateway.next().await {
            Got::Row(row) => row,
            other => panic!("no row but {other:?}"),
        };
        let number =
            u64::try_from(u128::from_be_bytes(row.run.as_ref().try_into().unwrap())).unwrap();
        let of_run = seen.get_mut(&number).unwrap();
        assert_eq!(row.index, of_run.rows, "run {number}");
        of_run.take(&row);
        if of_run
            .cancel_after
            .is_some_and(|after| of_run.rows >= after)
            && !of_run.is_cancelled
        {
            of_run.is_cancelled = true;
            gateway
                .send(Cancel {
                    run: row.run.clone(),
                    epoch: 1,
                })
                .await;
        }
        if of_run.is_over || of_run.rows == of_run.credit {
            of_run.credit += 4;
            let runs = vec![progress::Run {
                run: row.run,
                acknowledged: of_run.rows,
                credit: of_run.credit,
            }];
            gateway.send(Progress { runs }).await;
        }
    }
    seen
}

/// A run that was cancelled has a beginning of what it would have made.
fn check(number: u64, got: &Seen, want: &Seen) {
    for (choice, (tokens, text)) in &got.output {
        let (want_tokens, want_text) = &want.output[choice];
        if got.is_cancelled {
            assert!(
                want_tokens.starts_with(tokens) && want_text.starts_with(text.as_str()),
                "run {number} choice {choice}: {tokens:?} does not begin {want_tokens:?}"
            );
        } else {
            assert_eq!(
                (tokens, text),
                (want_tokens, want_text),
                "run {number} choice {choice}"
            );
        }
    }
    assert!(got.is_cancelled || got.output.len() == want.output.len());
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn metric(worker: &TestWorker, name: &str) -> u64 {
    let shown = worker.metrics.prometheus_text();
    let line = shown.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in:\n{shown}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_leaks_nothing_and_changes_no_output() {
    let asked = std::env::var("WEIR_SOAK_S").map_or(0, |text| text.parse().unwrap());
    let length = Duration::from_secs(asked);
    // Two contexts for eight sequences that may run.
    let small = worker(2, 7).await;
    let alone = worker(8, 0).await;
    let mut gateway = Gateway::connect(&small.socket(), hello(1)).await.unwrap();
    let mut reference = Gateway::connect(&alone.socket(), hello(1)).await.unwrap();
    let begin = Instant::now();
    let (mut rounds, mut early) = (0, None);
    while rounds < ROUNDS || begin.elapsed() < length {
        println!("round {rounds}");
        let numbers: Vec<u64> = (1..=RUNS).map(|at| rounds * RUNS + at).collect();
        let got = round(&mut gateway, &numbers, true).await;
        for number in &numbers {
            let want = round(&mut reference, &[*number], false).await;
            check(*number, &got[number], &want[number]);
        }
        let status = gateway
            .status_where(|status| status.running == 0 && status.waiting == 0)
            .await;
        assert_eq!(
            status.blocks_free + status.blocks_cached,
            status.blocks_total,
            "blocks leak in round {rounds}"
        );
        rounds += 1;
        if early.is_none() && begin.elapsed() > length / 10 {
            early = Some(resident_bytes());
        }
    }
    let (before, after) = (early.unwrap(), resident_bytes());
    let preemptions = metric(&small, "weir_preemptions_total{");
    println!(
        "{} runs in {} s, {preemptions} preemptions, {} of {} guesses came true, {} cached tokens, resident memory {before} and then {after} bytes",
        rounds * RUNS,
        begin.elapsed().as_secs(),
        metric(&small, "weir_accepted_tokens_total{"),
        metric(&small, "weir_drafted_tokens_total{"),
        metric(&small, "weir_cached_tokens_total{"),
    );
    assert!(
        preemptions > 0,
        "the pool was large enough: nothing was tried"
    );
    let is_forgotten = async {
        while metric(&small, "weir_runs_held{") > 0 || metric(&small, "weir_window_bytes{") > 0 {
            // Whatever makes a step makes the worker look again.
            gateway.status_where(|_| true).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_forgotten)
        .await
        .expect("runs are forgotten");
    // Only a long soak tells growth from what a start needs.
    if length > Duration::from_mins(1) {
        assert!(
            after < before + GROWTH_MAX,
            "resident memory grew from {before} to {after}"
        );
    }
}
