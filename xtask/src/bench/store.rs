//! Events that become durable each second, per engine: `append_bench` of `crates/store`, built for release, as a process of its own.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::{Better, Figure, Report};
use super::{Options, cargo, target};

/// Engines that the store has.
pub(super) const ENGINES: &[&str] = &["log", "redb", "sled"];

/// Live runs at once: each step appends one event for each.
const RUNS: [u32; 3] = [64, 1000, 5000];

/// Quantities of `append_bench`, and how they are called here.
const QUANTITIES: &[(&str, &str, &str, &str, Better)] = &[
    (
        "fdatasync of 4 KiB appended",
        "p50Us",
        "4 KiB appended and synced, no store",
        "us",
        Better::Lower,
    ),
    (
        "fdatasync of 4 KiB overwritten",
        "p50Us",
        "4 KiB overwritten and synced, no store",
        "us",
        Better::Lower,
    ),
    (
        "admits",
        "perSecond",
        "runs admitted and started",
        "/s",
        Better::Higher,
    ),
    (
        "events",
        "perSecond",
        "durable events",
        "/s",
        Better::Higher,
    ),
    (
        "events",
        "stepP50Us",
        "a step's append, median",
        "us",
        Better::Lower,
    ),
    (
        "events",
        "stepP99Us",
        "a step's append, 99 of 100",
        "us",
        Better::Lower,
    ),
    (
        "events",
        "bytesPerEvent",
        "bytes written per event",
        "B",
        Better::Lower,
    ),
    ("reopen", "ms", "time to open again", "ms", Better::Lower),
];

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    cargo(&[
        "build",
        "--release",
        "-p",
        "weir-store",
        "--example",
        "append_bench",
    ])?;
    for engine in &options.engines {
        for runs in RUNS {
            let mut lines = Vec::new();
            for _ in 0..options.rounds {
                lines.extend(round(engine, runs, options.seconds)?);
            }
            let setup = format!("{engine}, {runs} runs, 8 writers");
            for (measure, field, name, unit, better) in QUANTITIES {
                let of = lines.iter().filter(|line| line["measure"] == *measure);
                let values: Vec<f64> = of.filter_map(|line| line[*field].as_f64()).collect();
                if values.is_empty() {
                    continue;
                }
                report.add(Figure {
                    name,
                    setup: &setup,
                    unit,
                    better: *better,
                    values,
                })?;
            }
        }
    }
    Ok(())
}

fn round(engine: &str, runs: u32, seconds: u64) -> Result<Vec<Value>> {
    let folder = target().join("bench/store");
    std::fs::create_dir_all(&folder)?;
    let output = Command::new(target().join("release/examples/append_bench"))
        .args([
            "--engine",
            engine,
            "--runs",
            &runs.to_string(),
            "--seconds",
            &seconds.to_string(),
            "--dir",
        ])
        .arg(&folder)
        .output()
        .context("cannot start append_bench")?;
    ensure!(
        output.status.success(),
        "append_bench failed for {engine}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .map(|line| serde_json::from_str(line).context("append_bench printed no JSON"))
        .collect()
}
