//! `weir capacity`: how many workers, gateways and bytes a load needs.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use serde_json::json;
use weir_model::config::ModelConfig;
use weir_model::gguf::GgufFiles;
use weir_model::quant::QuantKind;
use weir_model::{FileSource as _, KvType, OpenFiles, WeightFormat, footprint};

use crate::cache::bytes;

mod plan;

use plan::{Load, Plan, Worker, plan};

/// Say how many workers a load needs, and how much of everything else.
///
/// Memory is told from the model's configuration. Speeds are what was measured with this model on the workers' machines, at the weights and
/// number of streams meant here; docs/capacity.md says how.
#[derive(Debug, Parser)]
pub struct Args {
    /// Model directory in the Hugging Face layout, or with a GGUF file.
    dir: PathBuf,
    /// Requests a second in the busiest minutes.
    #[arg(long, value_name = "NUMBER")]
    requests: f64,
    /// Tokens of a prompt, in the mean.
    #[arg(long, value_name = "NUMBER")]
    prompt_tokens: f64,
    /// Tokens of an answer, in the mean.
    #[arg(long, value_name = "NUMBER")]
    output_tokens: f64,
    /// Which part of a prompt is in the cache already, 0 to 1.
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    cached: f64,
    /// Prompt tokens a second of one worker.
    #[arg(long, value_name = "NUMBER")]
    prefill: f64,
    /// Tokens a second of one worker, of all its streams together.
    #[arg(long, value_name = "NUMBER")]
    decode: f64,
    /// Streams at once by which that was measured; the pool's `maxRunning` is to be no less.
    #[arg(long, value_name = "NUMBER", default_value_t = 16.0)]
    streams: f64,
    /// The pool's `kvMemory`.
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = bytes)]
    kv_memory: u64,
    /// The pool's `kvType`.
    #[arg(long, value_enum, default_value_t = Kv::Bf16)]
    kv: Kv,
    /// The pool's `weights`.
    #[arg(long, value_enum, default_value_t = Weights::Stored)]
    weights: Weights,
    /// Which part of its time a worker may be busy, 0 to 1: the rest takes bursts.
    #[arg(long, value_name = "PART", default_value_t = 0.7)]
    busy: f64,
    /// Hours that events are kept.
    #[arg(long, value_name = "NUMBER", default_value_t = 24.0)]
    retention_hours: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kv {
    F32,
    Bf16,
    F16,
    Int8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Weights {
    Stored,
    Int8,
    Int4,
}

/// Runs the command.
///
/// # Errors
/// The directory is no model, or a number makes no sense.
pub fn run(args: &Args) -> Result<()> {
    check(args)?;
    let (weight_bytes, token_bytes) = memory(args)?;
    let worker = Worker {
        prefill_per_s: args.prefill,
        decode_per_s: args.decode,
        streams: args.streams,
        kv_tokens: (args.kv_memory / token_bytes) as f64,
        busy: args.busy,
    };
    let load = Load {
        requests_per_s: args.requests,
        prompt_tokens: args.prompt_tokens,
        cached: args.cached,
        output_tokens: args.output_tokens,
        retention_s: args.retention_hours * 3600.0,
    };
    let found = plan(&load, &worker);
    if args.json {
        let mut report = json!(found);
        report["weightBytes"] = json!(weight_bytes);
        report["kvTokenBytes"] = json!(token_bytes);
        println!("{report}");
    } else {
        print!("{}", told(args, &worker, &found, weight_bytes, token_bytes));
    }
    Ok(())
}

fn check(args: &Args) -> Result<()> {
    for (name, value) in [
        ("--prompt-tokens", args.prompt_tokens),
        ("--output-tokens", args.output_tokens),
        ("--prefill", args.prefill),
        ("--decode", args.decode),
    ] {
        ensure!(
            value.is_finite() && value > 0.0,
            "{name} must be above 0, and is {value}"
        );
    }
    ensure!(args.streams >= 1.0, "--streams must be at least 1");
    ensure!(
        args.requests >= 0.0 && args.retention_hours >= 0.0,
        "--requests and --retention-hours must not be negative"
    );
    ensure!(
        (0.0..=1.0).contains(&args.cached),
        "--cached is a part of a prompt, from 0 to 1"
    );
    ensure!(
        args.busy > 0.0 && args.busy <= 1.0,
        "--busy is a part of the time, above 0 and at most 1"
    );
    Ok(())
}

/// Bytes of the weights, and of a token's keys and values.
fn memory(args: &Args) -> Result<(u64, u64)> {
    let read = || -> Result<ModelConfig> {
        let files = OpenFiles::from_dir(&args.dir)?;
        let files = GgufFiles::over(&files)?;
        Ok(ModelConfig::parse(&files.require("config.json")?)?)
    };
    let config =
        read().with_context(|| format!("cannot use the model in {}", args.dir.display()))?;
    let kv = match args.kv {
        Kv::F32 => KvType::F32,
        Kv::Bf16 => KvType::Bf16,
        Kv::F16 => KvType::F16,
        Kv::Int8 => KvType::Int8,
    };
    let weights = match args.weights {
        Weights::Stored => WeightFormat::Stored,
        Weights::Int8 => WeightFormat::Quantized(QuantKind::Int8),
        Weights::Int4 => WeightFormat::Quantized(QuantKind::Int4),
    };
    let told = footprint(&config, weights, kv, 16);
    let one = (args.prompt_tokens + args.output_tokens) * told.kv_token_bytes as f64;
    ensure!(
        args.kv_memory as f64 >= one,
        "--kv-memory has no room for one run: {} tokens take {}",
        args.prompt_tokens + args.output_tokens,
        size(one)
    );
    Ok((told.weight_bytes, told.kv_token_bytes))
}

fn told(args: &Args, worker: &Worker, found: &Plan, weights: u64, token: u64) -> String {
    let bound = if found.streams_in_kv < worker.streams {
        format!(
            "KV memory bounds it: {:.0} of {:.0} streams fit",
            found.streams_in_kv, worker.streams
        )
    } else {
        format!("{:.0} streams would fit", found.streams_in_kv)
    };
    format!(
        "a worker   {} of weights, {} of KV ({} a token: {:.0} tokens; {bound})\n\
         a run      {:.3} s of a worker; its tokens come within {:.2} s\n\
         workers    {} for {} requests/s, busy {:.0} % of their time\n\
         gateways   {:.0} events/s: {:.2} processors, {}\n\
         store      {} when events are kept for {} hours\n",
        size(weights as f64),
        size(args.kv_memory as f64),
        size(token as f64),
        worker.kv_tokens,
        found.run_s,
        found.answer_s,
        found.workers,
        args.requests,
        100.0 * args.requests * found.run_s / found.workers as f64,
        found.events_per_s,
        found.gateway_cores,
        size(found.gateway_bytes),
        size(found.store_bytes),
        args.retention_hours,
    )
}

/// For people: three digits of the largest binary unit.
fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}
