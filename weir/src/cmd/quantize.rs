//! `weir quantize`: a model in fewer bits, as a directory of its own, with what that costs.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use weir_model::gguf::GgufFiles;
use weir_model::quant::{Loss, QuantKind, measure_loss, sample_text, write_quantized};
use weir_model::{CpuBackend, CpuOptions, ModelText, OpenFiles, load_cpu};

/// What was measured, beside the weights: signed with them.
const REPORT: &str = "quantization.json";
/// Files that belong to the original: its signature says nothing about the new weights.
const LEFT_OUT: [&str; 3] = ["weir-manifest.json", "model.sig", REPORT];
/// Tokens the model writes to be measured on, where no text is given.
const SAMPLE_TOKENS: u32 = 2048;

/// Quantize a model directory.
///
/// Writes a directory that `weir sign` makes a version of its own: the weights in 8 or 4 bits in groups of 64, everything else as it was, and
/// quantization.json with what the quantized model loses: perplexity before and after, and how far its expectations are from the original's. They are
/// measured on a text, or on what the original model writes by itself.
#[derive(Debug, Parser)]
pub struct Args {
    /// Model directory in the Hugging Face layout, or with a GGUF file.
    dir: PathBuf,
    /// Directory to write; it must not exist.
    out: PathBuf,
    /// Bits of a weight.
    #[arg(long, value_enum)]
    weights: Bits,
    /// Text to measure the loss on, in UTF-8.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Formats, as `--weights` names them.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bits {
    /// 8 bits and a scale.
    Int8,
    /// 4 bits, a scale and a minimum.
    Int4,
}

/// Runs the command.
///
/// # Errors
/// The model cannot be used, or the directory cannot be written. A directory that was begun is taken away again.
pub fn run(args: &Args) -> Result<()> {
    if args.out.exists() {
        bail!(
            "{} exists; name a directory that does not",
            args.out.display()
        );
    }
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the directory {}", args.out.display()))?;
    let report = match quantize(args) {
        Ok(report) => report,
        Err(error) => {
            // What is half written must not be signed by mistake.
            let _ = fs::remove_dir_all(&args.out);
            return Err(error);
        }
    };
    if args.json {
        println!("{report}");
    } else {
        println!("{report:#}");
        eprintln!("sign it with `weir sign {}`", args.out.display());
    }
    Ok(())
}

fn quantize(args: &Args) -> Result<Value> {
    let Args {
        dir, out, weights, ..
    } = args;
    let kind = match weights {
        Bits::Int8 => QuantKind::Int8,
        Bits::Int4 => QuantKind::Int4,
    };
    copy_others(dir, out)?;
    let files =
        OpenFiles::from_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let path = out.join("model.safetensors");
    let file =
        File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let size = write_quantized(&files, kind, &mut BufWriter::new(file))?;
    let (loss, measured_on) = measure(dir, out, args.text.as_deref())?;
    let report = json!({
        "format": match kind { QuantKind::Int8 => "int8", QuantKind::Int4 => "int4" },
        "group": weir_model::quant::GROUP,
        "bytesBefore": size.before,
        "bytesAfter": size.after,
        "loss": {
            "measuredOn": measured_on,
            "tokens": loss.tokens,
            "perplexityBefore": loss.perplexity_before,
            "perplexityAfter": loss.perplexity_after,
            "divergenceMeanNats": loss.divergence_mean,
            "divergenceMaxNats": loss.divergence_max,
            "sameBestShare": loss.same_best,
        },
    });
    fs::write(out.join(REPORT), format!("{report:#}\n"))
        .with_context(|| format!("cannot write {REPORT}"))?;
    Ok(report)
}

/// Every file of the model but its weights and its signature.
fn copy_others(dir: &Path, out: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_weights = [".safetensors", ".safetensors.index.json", ".gguf"]
            .iter()
            .any(|end| name.ends_with(end));
        if path.is_file() && !is_weights && !LEFT_OUT.contains(&name) {
            fs::copy(&path, out.join(name))
                .with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    let files =
        OpenFiles::from_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let made = GgufFiles::over(&files)
        .with_context(|| format!("cannot use the model in {}", dir.display()))?;
    for (name, bytes) in made.made() {
        fs::write(out.join(name), bytes).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

/// The new directory, as a worker will read it, against the old one.
fn measure(dir: &Path, out: &Path, text: Option<&Path>) -> Result<(Loss, String)> {
    let (mut original, model_text) = load(dir)?;
    let (mut quantized, _) = load(out)?;
    let (tokens, measured_on) = if let Some(path) = text {
        let content = fs::read_to_string(path)
            .with_context(|| format!("cannot read the text {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (model_text.encode_prompt(&content)?, name.into_owned())
    } else {
        let start = model_text.eos_tokens().first().copied().unwrap_or(0);
        let written = sample_text(&mut original, start, SAMPLE_TOKENS)?;
        (written, "text written by the original model".to_owned())
    };
    let loss = measure_loss(&mut original, &mut quantized, &tokens)?;
    if loss.tokens == 0 {
        bail!("the text is too short to measure anything on: it must have at least two tokens");
    }
    Ok((loss, measured_on))
}

fn load(dir: &Path) -> Result<(CpuBackend, ModelText)> {
    let files =
        OpenFiles::from_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let text = ModelText::from_files(&files)
        .with_context(|| format!("cannot use the model in {}", dir.display()))?;
    let backend = load_cpu(&files, &CpuOptions::default())
        .with_context(|| format!("cannot load the weights in {}", dir.display()))?;
    Ok((backend, text))
}
