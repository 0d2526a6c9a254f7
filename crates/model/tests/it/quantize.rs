//! Quantized files: the same as what a worker makes when it loads, and what they lose is measured.

use std::path::{Path, PathBuf};

use weir_model::backend::{Backend as _, SamplingParams};
use weir_model::quant::{QuantKind, QuantizeError, measure_loss, sample_text, write_quantized};
use weir_model::{CpuBackend, CpuOptions, OpenFiles, WeightFormat, load_cpu};

use crate::harness::{generate, golden, load, options};

/// The trained model of the examples.
fn tiny_chat() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/tiny-chat-v2")
}

/// A directory with the model quantized.
fn quantized(dir: &Path, kind: QuantKind) -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("config.json"), out.path().join("config.json")).unwrap();
    let mut file = std::fs::File::create(out.path().join("model.safetensors")).unwrap();
    write_quantized(&OpenFiles::from_dir(dir).unwrap(), kind, &mut file).unwrap();
    out
}

fn open(dir: &Path, options: &CpuOptions) -> CpuBackend {
    load_cpu(&OpenFiles::from_dir(dir).unwrap(), options).unwrap()
}

const PROMPT: [u32; 9] = [1, 7, 9, 30, 2, 11, 35, 8, 3];

#[test]
fn a_quantized_file_gives_what_quantizing_at_load_gives() {
    for kind in [QuantKind::Int8, QuantKind::Int4] {
        for name in ["qwen3", "llama-biases", "llama3-rope"] {
            let at_load = CpuOptions {
                weights: WeightFormat::Quantized(kind),
                ..options()
            };
            let file = quantized(&golden(name), kind);
            let params = weir_model::backend::SamplingParams {
                logprobs: Some(4),
                ..SamplingParams::greedy()
            };
            let want = generate(&mut load(name, &at_load), 0, &PROMPT, &params, (&[64], 12));
            let got = generate(
                &mut open(file.path(), &options()),
                0,
                &PROMPT,
                &params,
                (&[64], 12),
            );
            assert_eq!(got, want, "{kind:?} {name}");
        }
    }
}

#[test]
fn what_is_quantized_is_not_quantized_again() {
    let file = quantized(&golden("qwen2"), QuantKind::Int8);
    let files = OpenFiles::from_dir(file.path()).unwrap();
    let error = write_quantized(&files, QuantKind::Int4, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, QuantizeError::Already { .. }), "{error}");
}

/// The bounds that the documentation states, on text the trained model writes by itself.
#[test]
fn a_trained_model_loses_little() {
    let small = CpuOptions {
        kv_bytes: 64 << 20,
        ..CpuOptions::default()
    };
    let mut original = open(&tiny_chat(), &small);
    let text = sample_text(&mut original, 2, 1600).unwrap();
    assert_eq!(
        text,
        sample_text(&mut original, 2, 1600).unwrap(),
        "it writes the same again"
    );
    assert_eq!(text.len(), 1600);
    for (kind, divergence, same) in [(QuantKind::Int8, 0.002, 0.97), (QuantKind::Int4, 0.2, 0.85)] {
        let file = quantized(&tiny_chat(), kind);
        let loss = measure_loss(&mut original, &mut open(file.path(), &small), &text).unwrap();
        assert!(
            loss.divergence_mean > 0.0
                && loss.divergence_mean < divergence
                && loss.same_best > same,
            "{kind:?}: {loss:?}"
        );
        assert!(
            loss.tokens > 1500
                && (loss.perplexity_after / loss.perplexity_before - 1.0).abs() < 0.2,
            "{loss:?}"
        );
    }
    let mut again = open(&tiny_chat(), &small);
    let none = measure_loss(&mut original, &mut again, &text).unwrap();
    assert!(
        none.divergence_max < 1e-12 && none.same_best > 0.999_999,
        "{none:?}"
    );
    assert!(original.limits().max_running >= 8);
}
