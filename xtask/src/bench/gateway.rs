//! How many requests a second the gateway accepts: authenticated, tokenized, reserved, queued and durable, each a run of its own.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::http::Connection;
use super::report::{Better, Figure, Report};
use super::stage::{MODEL, Stage};
use super::{Options, machine};

/// Runs may wait in this number: what is measured is the way in, not the worker.
const QUEUE_DEPTH: u32 = 1_000_000;
/// Kept connections, each with one request under way.
const CONNECTIONS: [usize; 3] = [1, 8, 64];

/// What one connection saw.
struct Seen {
    accepted: usize,
    latencies_ms: Vec<f64>,
}

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for connections in CONNECTIONS {
        let setup = format!("{connections} connections, 1 output token");
        let (mut rates, mut latencies) = (Vec::new(), Vec::new());
        let mut costs = [const { Vec::new() }; 3];
        for round in 0..options.rounds {
            // A fresh store and an empty queue for every round.
            let stage = Stage::unlimited(&options.dir, QUEUE_DEPTH)?;
            let own = i32::try_from(std::process::id())?;
            let pids = [stage.weir.pid(), stage.worker_pid()?, own];
            let before = pids.map(machine::cpu_time);
            let begun = Instant::now();
            let seen = drive(
                &stage,
                connections,
                round,
                Duration::from_secs(options.seconds),
            )?;
            let seconds = begun.elapsed().as_secs_f64();
            let accepted: usize = seen.iter().map(|one| one.accepted).sum();
            rates.push(accepted as f64 / seconds);
            latencies.extend(seen.into_iter().flat_map(|one| one.latencies_ms));
            for ((cost, pid), before) in costs.iter_mut().zip(pids).zip(before) {
                let used = machine::cpu_time(pid)?.saturating_sub(before?);
                cost.push(used.as_secs_f64() * 1e6 / accepted as f64);
            }
        }
        let mut add = |name, unit, better, values| {
            report.add(Figure {
                name,
                setup: &setup,
                unit,
                better,
                values,
            })
        };
        add("accepted requests", "/s", Better::Higher, rates)?;
        add("time to 202", "ms", Better::Lower, latencies)?;
        let [gateway, worker, client] = costs;
        add(
            "processor per request, weir up",
            "us",
            Better::Lower,
            gateway,
        )?;
        add("processor per request, worker", "us", Better::Lower, worker)?;
        add(
            "processor per request, this client",
            "us",
            Better::Lower,
            client,
        )?;
    }
    Ok(())
}

fn drive(stage: &Stage, connections: usize, round: usize, length: Duration) -> Result<Vec<Seen>> {
    let barrier = Barrier::new(connections);
    let (base, barrier) = (stage.weir.listen.as_str(), &barrier);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|number| {
                scope.spawn(move || {
                    one_connection(base, barrier, &format!("{round}-{number}"), length)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok().context("a client panicked")?)
            .collect()
    })
}

fn one_connection(base: &str, barrier: &Barrier, name: &str, length: Duration) -> Result<Seen> {
    let connection = Connection::open(base, Stage::key());
    barrier.wait();
    let mut connection = connection?;
    let mut seen = Seen {
        accepted: 0,
        latencies_ms: Vec::new(),
    };
    let until = Instant::now() + length;
    while Instant::now() < until {
        let number = seen.accepted;
        let body = json!({
            "model": MODEL, "input": "Name a primary colour.", "maxOutputTokens": 1, "requestKey": format!("{name}-{number}"),
        });
        let body = body.to_string();
        let sent = Instant::now();
        let status = connection.post("/inference", &body)?;
        ensure!(status == 202, "not accepted: {}", connection.answer());
        seen.latencies_ms
            .push(sent.elapsed().as_secs_f64() * 1000.0);
        seen.accepted += 1;
    }
    Ok(seen)
}
