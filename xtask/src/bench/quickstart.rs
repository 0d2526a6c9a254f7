//! What one person at the quickstart sees: time until it is ready, until the first token, between tokens; and what it takes in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_e2e::{Client, EventStream};

use super::report::{Better, Figure, Report};
use super::stage::Stage;
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
    first_token_ms: f64,
    /// Between two deltas.
    gaps_ms: Vec<f64>,
    /// After the first token.
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
    let runs = options.rounds * 4;
    for (number, load) in [
        load(1, runs, 4),
        load(8, runs, 4),
        load(1, runs, 200),
        load(8, options.rounds, 200),
    ]
    .iter()
    .enumerate()
    {
        tokens(&stage, load, number + 1, report)?;
    }
    Ok(())
}

/// A prompt of about five tokens a sentence.
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
    let setup = format!(
        "{streams} stream{}, prompt of {prompt}",
        if streams == 1 { "" } else { "s" }
    );
    let mut add = |name, unit, better, values| {
        report.add(Figure {
            name,
            setup: &setup,
            unit,
            better,
            values,
        })
    };
    add(
        "time to first token",
        "ms",
        Better::Lower,
        seen.iter().map(|one| one.first_token_ms).collect(),
    )?;
    add(
        "between tokens, at the client",
        "ms",
        Better::Lower,
        seen.iter().flat_map(|one| one.gaps_ms.clone()).collect(),
    )?;
    add(
        "tokens/s of one stream",
        "/s",
        Better::Higher,
        seen.iter().map(|one| one.tokens_per_second).collect(),
    )?;
    let tokens: u64 = seen.iter().map(|one| one.output_tokens).sum();
    report.one(
        "output tokens/s of all streams",
        &setup,
        "/s",
        tokens as f64 / seconds,
    )?;
    report.one(
        "worker's step, its last average",
        &setup,
        "ms",
        step_us / 1000.0,
    )?;
    report.one(
        "admission, mean in the gateway",
        &setup,
        "ms",
        own.admission_ms,
    )?;
    report.one(
        "commit of events, mean in the gateway",
        &setup,
        "ms",
        own.commit_ms,
    )?;
    for (process, peak) in ["weir up", "worker"].into_iter().zip(peak) {
        resident(process, &setup, peak, report)?;
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
        "model": "tiny-chat", "input": format!("{name}: {}", load.prompt), "maxOutputTokens": load.output_tokens,
        "sampling": {"temperature": 0, "ignoreEos": true},
    });
    let sent = Instant::now();
    let mut stream = client.stream(&body)?;
    let mut arrivals = Vec::new();
    let usage = loop {
        match next(&mut stream)? {
            Some((kind, _)) if kind == "delta" => {
                arrivals.push(sent.elapsed().as_secs_f64() * 1000.0);
            }
            Some((kind, data)) if kind == "completed" => break data["usage"].clone(),
            Some((kind, data)) => ensure!(
                kind == "accepted" || kind == "started",
                "the run ended: {data}"
            ),
            None => anyhow::bail!("the stream ended without an end of the run"),
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
        first_token_ms: *first,
        gaps_ms: arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        tokens_per_second: (output_tokens - 1) as f64 * 1000.0 / (last - first),
        output_tokens,
        prompt_tokens: count("promptTokens")?,
    })
}

fn next(stream: &mut EventStream) -> Result<Option<(String, Value)>> {
    let event = stream.next_event()?;
    Ok(event.map(|event| (event.kind.clone(), event.json())))
}

/// Means of the gateway's own histograms.
struct Own {
    admission_ms: f64,
    admissions: f64,
    commit_ms: f64,
    commits: f64,
}

impl Own {
    /// Sums since the gateway's start.
    fn read(stage: &Stage) -> Result<Self> {
        let metric = |name: &str| stage.weir.metric(&format!("weir_gateway_{name}"));
        Ok(Self {
            admission_ms: metric("admission_seconds_sum")? * 1000.0,
            admissions: metric("admission_seconds_count")?,
            commit_ms: metric("event_commit_seconds_sum")? * 1000.0,
            commits: metric("event_commit_seconds_count")?,
        })
    }

    /// Means between two readings.
    fn since(&self, before: &Self) -> Self {
        let (admissions, commits) = (
            self.admissions - before.admissions,
            self.commits - before.commits,
        );
        Self {
            admission_ms: (self.admission_ms - before.admission_ms) / admissions,
            commit_ms: (self.commit_ms - before.commit_ms) / commits,
            admissions,
            commits,
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
