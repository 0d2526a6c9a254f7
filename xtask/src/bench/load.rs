//! Thousands of streams and requests through the gateway and, in the same minutes, through others: who is faster with what.
//!
//! The gateway, a worker without a model (or a backend without one, for the others) and the client share this machine, as they must. Subjects
//! take turns within a round, so that a change of the machine's mood meets all of them.

mod peers;
mod processes;
mod rows;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Better, Figure, Report};
use super::{Options, cargo};
use peers::Peer;
use processes::Site;
use rows::{Row, Subject};

pub(super) use peers::names as peer_names;

/// Measures all rows, or those that the options name.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    cargo(&[
        "build",
        "--release",
        "--package",
        "weir-gateway",
        "--package",
        "weir-load",
    ])?;
    let peers = peers::install(&options.peers);
    for row in rows::all() {
        if !options.rows.is_empty() && !options.rows.iter().any(|name| name == row.name) {
            continue;
        }
        let subjects = subjects(&row, &peers);
        let mut found: Vec<Vec<Value>> = subjects.iter().map(|_| Vec::new()).collect();
        let rounds = if row.once { 1 } else { options.rounds };
        for _ in 0..rounds {
            for (subject, results) in subjects.iter().zip(&mut found) {
                match one(&row, subject) {
                    Ok(result) => results.push(result),
                    // What one of them cannot do is a finding, and no reason to lose those of the others.
                    Err(error) => println!("{}, {}: {error:#}", row.name, subject.name()),
                }
            }
        }
        let direct = subjects.iter().zip(&found);
        let direct = direct.filter(|(subject, _)| matches!(subject, Subject::Direct));
        let base = direct
            .flat_map(|(_, results)| results)
            .cloned()
            .collect::<Vec<_>>();
        for (subject, results) in subjects.iter().zip(found) {
            record(report, &row, subject, &results, &base)?;
        }
    }
    Ok(())
}

fn subjects<'a>(row: &Row, peers: &'a [Peer]) -> Vec<Subject<'a>> {
    let mut all: Vec<Subject<'a>> = row.modes.iter().map(Subject::Weir).collect();
    if row.with_peers {
        all.push(Subject::Direct);
        let can = |peer: &&Peer| row.is_requests() || !peer.is_slow();
        all.extend(peers.iter().filter(can).map(Subject::Peer));
    }
    all
}

fn one(row: &Row, subject: &Subject<'_>) -> Result<Value> {
    let site = Site::start(row, subject)?;
    site.load(row)
        .with_context(|| format!("the load failed; its gateway said: {}", site.log()))
}

/// A figure of a result: where it is, what it is called.
struct Wanted {
    name: &'static str,
    path: &'static str,
    unit: &'static str,
    better: Better,
}

const fn lower(name: &'static str, path: &'static str, unit: &'static str) -> Wanted {
    Wanted {
        name,
        path,
        unit,
        better: Better::Lower,
    }
}

const REQUESTS: &[Wanted] = &[
    Wanted {
        name: "requests",
        path: "/per_s",
        unit: "/s",
        better: Better::Higher,
    },
    lower("latency, 50 of 100", "/latency/p50_ms", "ms"),
    lower("latency, 99 of 100", "/latency/p99_ms", "ms"),
    lower("processor per request", "/watched/cpu_per_event_us", "us"),
];

const STREAMS: &[Wanted] = &[
    Wanted {
        name: "events delivered, plateau",
        path: "/plateau_events_per_s",
        unit: "/s",
        better: Better::Higher,
    },
    lower("worker to client, 50 of 100", "/delay/p50_ms", "ms"),
    lower("worker to client, 99 of 100", "/delay/p99_ms", "ms"),
    lower("processor per event", "/watched/cpu_per_event_us", "us"),
    lower("memory per stream", "/watched/rss_per_stream_kb", "kB"),
    lower("open at once", "/most_open", "streams"),
    lower("missing or out of order", "/disordered", "events"),
    lower("not complete", "/incomplete", "streams"),
];

fn record(
    report: &mut Report,
    row: &Row,
    subject: &Subject<'_>,
    results: &[Value],
    direct: &[Value],
) -> Result<()> {
    let setup = format!("{}: {}", row.name, subject.name());
    if results.is_empty() {
        return Ok(());
    }
    let values = |path: &str| -> Vec<f64> {
        let found = results.iter().map(|result| result.pointer(path));
        found.filter_map(|value| value?.as_f64()).collect()
    };
    for wanted in if row.is_requests() { REQUESTS } else { STREAMS } {
        report.add(Figure {
            name: wanted.name,
            setup: &setup,
            unit: wanted.unit,
            better: wanted.better,
            values: values(wanted.path),
        })?;
    }
    // At a rate that all can take, what counts is what the gateway adds.
    if row.rate > 0 && !matches!(subject, Subject::Direct) {
        for (name, path) in [
            ("latency added, 50 of 100", "/latency/p50_ms"),
            ("latency added, 99 of 100", "/latency/p99_ms"),
        ] {
            let base = direct
                .iter()
                .filter_map(|result| result.pointer(path)?.as_f64());
            let pairs = values(path).into_iter().zip(base);
            report.add(Figure {
                name,
                setup: &setup,
                unit: "ms",
                better: Better::Lower,
                values: pairs.map(|(with, without)| with - without).collect(),
            })?;
        }
    }
    let errors = results.iter().map(|result| &result["errors"]);
    for errors in errors.filter(|errors| errors.as_object().is_some_and(|all| !all.is_empty())) {
        println!("{setup}: {errors}");
    }
    Ok(())
}
