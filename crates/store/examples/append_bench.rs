//! How many events a second become durable, and what they cost.
//!
//! `cargo run --release -p weir-store --example append_bench -- --engine log --runs 64,1000,5000 --seconds 5 --dir /var/tmp/bench`
//!
//! Prints one JSON line per measurement. Each of `--streams` writers stands for a worker's session: it appends one step of all its runs (one
//! delta per run), waits until that is durable, and goes on with the next step: at once, or with `--rate` when the next one is due at that
//! many events a second in all; a step then counts from when it was due. `bytesPerEvent` is what the kernel was asked to write.
#![expect(clippy::print_stdout, reason = "the results")]
#![expect(clippy::unwrap_used, reason = "a failed measurement is no result")]

#[path = "../tests/it/bounded.rs"]
mod bounded;
#[path = "../tests/it/runs.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod runs;
#[path = "../tests/it/support.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod support;

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{NOW, Spec, admission, next, runtime, spec};
use weir_budget::Limits;
use weir_run::{Run, RunId};
use weir_store::{Admit, Append, Appended, Engine, EventRecord, Store, open};

struct Options {
    engine: Engine,
    runs: Vec<usize>,
    streams: usize,
    seconds: u64,
    /// Events a second that are offered; 0: as many as are taken.
    rate: u64,
    dir: PathBuf,
}

fn options() -> Options {
    let mut options = Options {
        engine: Engine::default(),
        runs: vec![64, 1000, 5000],
        streams: 8,
        seconds: 5,
        rate: 0,
        dir: std::env::temp_dir(),
    };
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        match name.as_str() {
            "--engine" => options.engine = value.parse().unwrap(),
            "--runs" => options.runs = value.split(',').map(|n| n.parse().unwrap()).collect(),
            "--streams" => options.streams = value.parse().unwrap(),
            "--seconds" => options.seconds = value.parse().unwrap(),
            "--rate" => options.rate = value.parse().unwrap(),
            "--dir" => options.dir = value.into(),
            other => println!("{{\"ignored\":\"{other}\"}}"),
        }
    }
    options
}

fn main() {
    let options = options();
    for (what, there) in [("appended", 0), ("overwritten", 4 << 20)] {
        let (p50, p99) = raw_sync(&options.dir, there);
        println!("{{\"measure\":\"fdatasync of 4 KiB {what}\",\"p50Us\":{p50},\"p99Us\":{p99}}}");
    }
    for runs in &options.runs {
        runtime().block_on(measure(&options, *runs));
    }
}

/// The medium without a store: 4 KiB and `fdatasync`, in a file that has so many bytes already.
fn raw_sync(dir: &Path, there: usize) -> (u128, u128) {
    let folder = tempfile::tempdir_in(dir).unwrap();
    let mut file = File::create(folder.path().join("raw")).unwrap();
    file.write_all(&vec![0; there]).unwrap();
    file.sync_all().unwrap();
    file.rewind().unwrap();
    let mut times: Vec<u128> = (0..200)
        .map(|_| {
            let start = Instant::now();
            file.write_all(&[7; 4096]).unwrap();
            file.sync_data().unwrap();
            start.elapsed().as_micros()
        })
        .collect();
    percentiles(&mut times)
}

fn percentiles(times: &mut [u128]) -> (u128, u128) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    (at(50), at(99))
}

async fn measure(options: &Options, runs: usize) {
    let folder = tempfile::tempdir_in(&options.dir).unwrap();
    let store = open(folder.path(), options.engine).unwrap();
    let engine = options.engine.as_str();
    let start = Instant::now();
    let live = admit_all(&store, runs, 64).await;
    let admits = runs as f64 / start.elapsed().as_secs_f64();
    println!(
        "{{\"engine\":\"{engine}\",\"measure\":\"admits\",\"runs\":{runs},\"perSecond\":{admits:.0}}}"
    );

    let written = written_bytes();
    let start = Instant::now();
    let until = start + Duration::from_secs(options.seconds);
    let share = live.len().div_ceil(options.streams);
    // Between two steps of a stream, so that all of them make the rate.
    let every = match options.rate {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(live.len() as f64 / rate as f64),
    };
    let streams: Vec<_> = live
        .chunks(share)
        .map(|runs| tokio::spawn(stream(store.clone(), runs.to_vec(), every, until)))
        .collect();
    let (mut events, mut times) = (0_usize, vec![]);
    for stream in streams {
        let (count, taken) = stream.await.unwrap();
        events += count;
        times.extend(taken);
    }
    let rate = events as f64 / start.elapsed().as_secs_f64();
    let (p50, p99) = percentiles(&mut times);
    let bytes = (written_bytes() - written) as f64 / events as f64;
    println!(
        "{{\"engine\":\"{engine}\",\"measure\":\"events\",\"runs\":{runs},\"perSecond\":{rate:.0},\"stepP50Us\":{p50},\"stepP99Us\":{p99},\"bytesPerEvent\":{bytes:.0}}}"
    );
    let start = Instant::now();
    drop(store);
    drop(open(folder.path(), options.engine).unwrap());
    let reopen_ms = start.elapsed().as_millis();
    let peak_rss_kib = status("VmHWM");
    println!(
        "{{\"engine\":\"{engine}\",\"measure\":\"reopen\",\"runs\":{runs},\"ms\":{reopen_ms},\"peakRssKiB\":{peak_rss_kib}}}"
    );
}

async fn admit_all(store: &Arc<dyn Store>, runs: usize, clients: usize) -> Vec<Run> {
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let store = store.clone();
            let numbers = (client..runs).step_by(clients);
            tokio::spawn(async move {
                let mut admitted = vec![];
                for number in numbers {
                    let one = Spec {
                        id: RunId::new(NOW, number as u128 * 0x9e37_79b9_7f4a_7c15),
                        request_key: Some(format!("key-{number}")),
                        output: 1 << 40,
                        limits: Limits::default(),
                        ..spec(0)
                    };
                    let admission = admission(&one);
                    let mut run = admission.run.clone();
                    let answer = store.admit(admission).await.unwrap();
                    assert!(matches!(answer, Admit::Admitted), "{answer:?}");
                    let answers = store.append(vec![next(&run).started().append()]).await;
                    assert!(matches!(answers.unwrap()[..], [Appended::Done(_)]));
                    run.last_sequence.0 = 2;
                    admitted.push(run);
                }
                admitted
            })
        })
        .collect();
    let mut all = vec![];
    for client in clients {
        all.extend(client.await.unwrap());
    }
    all
}

/// Steps until the time is up: how many events, and how long each step took in microseconds.
async fn stream(
    store: Arc<dyn Store>,
    mut runs: Vec<Run>,
    every: Duration,
    until: Instant,
) -> (usize, Vec<u128>) {
    let (mut events, mut times) = (0, vec![]);
    let mut due = Instant::now();
    while Instant::now() < until {
        let step: Vec<Append> = runs.iter_mut().map(one_token).collect();
        if every.is_zero() {
            due = Instant::now();
        } else {
            due += every;
            tokio::time::sleep_until(due.into()).await;
        }
        let start = due;
        let answers = store.append(step).await.unwrap();
        times.push(start.elapsed().as_micros());
        assert!(answers.iter().all(|a| matches!(a, Appended::Done(_))));
        events += answers.len();
    }
    (events, times)
}

fn one_token(run: &mut Run) -> Append {
    run.last_sequence.0 += 1;
    run.output_index += 1;
    let text = format!(
        "{{\"sequence\":{},\"text\":\" token\",\"tokens\":1}}",
        run.last_sequence.0
    );
    Append {
        run: run.id,
        epoch: run.epoch,
        events: vec![EventRecord {
            sequence: run.last_sequence,
            kind: "delta",
            data: text.into(),
        }],
        output_tokens: 1,
        output_index: run.output_index,
        started: None,
        terminal: None,
        verdicts: vec![],
        now_ms: NOW,
    }
}

/// What this process has caused to be written to the medium so far.
fn written_bytes() -> u64 {
    number("/proc/self/io", "write_bytes")
}

/// A figure of this process's memory.
fn status(name: &str) -> u64 {
    number("/proc/self/status", name)
}

fn number(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut words = line.unwrap().trim_start_matches(':').split_whitespace();
    words.next().unwrap().parse().unwrap()
}
