//! What one person at the quickstart sees: time until it is ready, until the first token, between tokens; and what it takes in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use weir_e2e::Client;

use super::report::{Better, Figure, Report};
use super::stage::{MODEL, Stage};
use super::{Options, machine};

/// Waiting runs in the stage: more than ever wait here.
const QUEUE_DEPTH: u32 = 1000;

/// One load.
struct Load {
    /// Text of the prompt after a number that no other prompt starts with: a cached prefix would be measured otherwise.
    prompt: String,
    output_tokens: u32,
    streams: usize,
    /// One after another on each stream.
    runs: usize,
}

/// What a client saw of one run.
struct Seen {
    /// Until the event `accepted`: the run is durable.
    accepted_ms: f64,
    first_token_ms: f64,
    /// Between two deltas.
    gaps_ms: Vec<f64>,
    /// From the sending of the request to the last token: what arrives in one burst after a pause must not count as fast.
    tokens_per_second: f64,
    output_tokens: u64,
    prompt_tokens: u64,
}

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    ready(options, report)?;
    let stage = Stage::unlimited(&options.dir, QUEUE_DEPTH)?;
    // Not measured: the first run touches pages that no later one has to.
    let warm = load(1, 1, 4);
    run_all(&stage, &warm, 0)?;
    memory(&stage, "idle", report)?;
    let rounds = options.rounds;
    let loads = [
        load(1, rounds * 4, 4),
        load(8, rounds * 4, 4),
        load(1, rounds * 2, 100),
        load(8, rounds.div_ceil(2), 100),
    ];
    for (number, load) in loads.iter().enumerate() {
        tokens(&stage, load, number + 1, report)?;
    }
    Ok(())
}

/// A prompt of about eight tokens a sentence.
fn load(streams: usize, runs: usize, sentences: usize) -> Load {
    Load {
        prompt: "Say something about a red boat. ".repeat(sentences),
        output_tokens: 64,
        streams,
        runs,
    }
}

fn ready(options: &Options, report: &mut Report) -> Result<()> {
    let mut values = Vec::new();
    for _ in 0..options.rounds * 2 {
        let stage = Stage::plain(&options.dir)?;
        values.push(stage.ready_after.as_secs_f64() * 1000.0);
    }
    report.add(Figure {
        name: "command to `ready`",
        setup: "new state, files in the page cache",
        unit: "ms",
        better: Better::Lower,
        values,
    })
}

/// One load: what clients see, what the gateway and the worker say of themselves, memory at its peak.
fn tokens(stage: &Stage, load: &Load, number: usize, report: &mut Report) -> Result<()> {
    let before = Own::read(stage)?;
    let begun = Instant::now();
    let (seen, peak) = with_peaks(stage, || run_all(stage, load, number))?;
    let seconds = begun.elapsed().as_secs_f64();
    let step_us = stage.weir.metric("weir_worker_step_microseconds")?;
    let own = Own::read(stage)?.since(&before);
    let prompt = seen.first().context("no run")?.prompt_tokens;
    let streams = load.streams;
    let plural = if streams == 1 { "" } else { "s" };
    let setup = format!("{streams} stream{plural}, prompt of {prompt}");

    clients(&seen, &setup, report)?;
    let tokens: u64 = seen.iter().map(|one| one.output_tokens).sum();
    let mut one = |name, unit, value| report.one(name, &setup, unit, value);
    one(
        "output tokens/s of all streams",
        "/s",
        tokens as f64 / seconds,
    )?;
    one("worker's step, its last average", "ms", step_us / 1000.0)?;
    one("admission, mean in the gateway", "ms", own.admission_ms)?;
    one("commit of events, mean", "ms", own.commit_ms)?;
    one("events per commit, mean", "", own.events_per_commit)?;
    for (process, peak) in ["weir up", "worker"].into_iter().zip(peak) {
        resident(process, &setup, peak, report)?;
    }
    Ok(())
}

/// Name, unit, which end is good, and its values in what a client saw.
type Quantity = (&'static str, &'static str, Better, fn(&Seen) -> Vec<f64>);

fn clients(seen: &[Seen], setup: &str, report: &mut Report) -> Result<()> {
    let quantities: [Quantity; 4] = [
        ("time to `accepted`", "ms", Better::Lower, |one| {
            vec![one.accepted_ms]
        }),
        ("time to first token", "ms", Better::Lower, |one| {
            vec![one.first_token_ms]
        }),
        ("between tokens", "ms", Better::Lower, |one| {
            one.gaps_ms.clone()
        }),
        (
            "tokens/s of one run, all its time",
            "/s",
            Better::Higher,
            |one| vec![one.tokens_per_second],
        ),
    ];
    for (name, unit, better, of) in quantities {
        report.add(Figure {
            name,
            setup,
            unit,
            better,
            values: seen.iter().flat_map(of).collect(),
        })?;
    }
    Ok(())
}

/// Every stream on a thread of its own, each with one connection.
fn run_all(stage: &Stage, load: &Load, number: usize) -> Result<Vec<Seen>> {
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..load.streams)
            .map(|stream| {
                let client = stage.client();
                scope.spawn(move || -> Result<Vec<Seen>> {
                    let runs = (0..load.runs)
                        .map(|run| one_run(&client, load, &format!("{number}{stream}{run}")));
                    runs.collect()
                })
            })
            .collect();
        let mut all = Vec::new();
        for stream in streams {
            all.extend(stream.join().ok().context("a client panicked")??);
        }
        Ok(all)
    })
}

fn one_run(client: &Client, load: &Load, name: &str) -> Result<Seen> {
    let body = json!({
        "model": MODEL, "input": format!("{name}: {}", load.prompt), "maxOutputTokens": load.output_tokens,
        "sampling": {"temperature": 0, "ignoreEos": true},
    });
    let sent = Instant::now();
    let mut stream = client.stream(&body)?;
    let now_ms = || sent.elapsed().as_secs_f64() * 1000.0;
    let (mut accepted_ms, mut arrivals) = (f64::NAN, Vec::new());
    let usage = loop {
        let event = stream.next_event()?;
        let event = event.context("the stream ended without an end of the run")?;
        match event.kind.as_str() {
            "accepted" => accepted_ms = now_ms(),
            "started" => {}
            "delta" => arrivals.push(now_ms()),
            "completed" => break event.json()["usage"].clone(),
            _ => bail!("the run ended: {}", event.data),
        }
    };
    // To its end, so that the connection is kept.
    ensure!(stream.next_event()?.is_none(), "an event after the end");
    let count = |name: &str| {
        usage[name]
            .as_u64()
            .with_context(|| format!("no {name} in {usage}"))
    };
    let (first, last) = (
        arrivals.first().context("no token")?,
        arrivals.last().context("no token")?,
    );
    let output_tokens = count("outputTokens")?;
    Ok(Seen {
        accepted_ms,
        first_token_ms: *first,
        gaps_ms: arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        tokens_per_second: output_tokens as f64 * 1000.0 / last,
        output_tokens,
        prompt_tokens: count("promptTokens")?,
    })
}

/// What the gateway counted.
struct Own {
    admission_ms: f64,
    admissions: f64,
    commit_ms: f64,
    commits: f64,
    events: f64,
}

/// What that comes to between two readings.
struct Means {
    admission_ms: f64,
    commit_ms: f64,
    events_per_commit: f64,
}

impl Own {
    fn read(stage: &Stage) -> Result<Self> {
        let metric = |name: &str| stage.weir.metric(&format!("weir_gateway_{name}"));
        Ok(Self {
            admission_ms: metric("admission_seconds_sum")? * 1000.0,
            admissions: metric("admission_seconds_count")?,
            commit_ms: metric("event_commit_seconds_sum")? * 1000.0,
            commits: metric("event_commit_seconds_count")?,
            events: metric("events_total")?,
        })
    }

    fn since(&self, before: &Self) -> Means {
        let commits = self.commits - before.commits;
        Means {
            admission_ms: (self.admission_ms - before.admission_ms)
                / (self.admissions - before.admissions),
            commit_ms: (self.commit_ms - before.commit_ms) / commits,
            events_per_commit: (self.events - before.events) / commits,
        }
    }
}

/// Does `work` and looks at the memory of `weir up` and the worker meanwhile.
fn with_peaks<T>(
    stage: &Stage,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, [machine::Memory; 2])> {
    let (up, worker) = (stage.weir.pid(), stage.worker_pid()?);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| -> Result<[machine::Memory; 2]> {
            let mut peak = [machine::Memory::default(); 2];
            while !done.load(Ordering::Acquire) {
                for (peak, pid) in peak.iter_mut().zip([up, worker]) {
                    *peak = peak.max(machine::memory(pid)?);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(peak)
        });
        let result = work();
        done.store(true, Ordering::Release);
        let peak = watcher.join().ok().context("the watcher panicked")??;
        Ok((result?, peak))
    })
}

fn memory(stage: &Stage, setup: &str, report: &mut Report) -> Result<()> {
    for (process, pid) in [
        ("weir up", stage.weir.pid()),
        ("worker", stage.worker_pid()?),
    ] {
        resident(process, setup, machine::memory(pid)?, report)?;
    }
    Ok(())
}

fn resident(
    process: &str,
    setup: &str,
    memory: machine::Memory,
    report: &mut Report,
) -> Result<()> {
    report.one(
        &format!("resident memory, {process}"),
        setup,
        "MiB",
        memory.resident_mib,
    )?;
    report.one(
        &format!("  of it backed by no file, {process}"),
        setup,
        "MiB",
        memory.own_mib,
    )
}
