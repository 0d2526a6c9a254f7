//! Models in GGUF (see `tests/golden/gguf`): the same network as in safetensors, from one file.

use std::fs::File;

use safetensors::SafeTensors;
use weir_model::backend::{Backend as _, SamplingParams};
use weir_model::quant::QuantKind;
use weir_model::{CpuBackend, CpuOptions, KvType, ModelText, OpenFiles, WeightFormat, load_cpu};
use weir_scheduler::Batch;

use crate::harness::{Sequence, add_row, golden, options};

/// Largest difference of logits, which are of the order of 10, where all weights are F16 or BF16: both sides compute in f32.
const TOLERANCE: f32 = 1e-4;
/// Root mean square of the differences, as a share of the logits' own, of blocks that are computed with in eight bits: weights and
/// activations are rounded again, and rows of 32 do not average that out as those of real models do.
const SHARE: f32 = 0.07;
/// The same in four bits.
const SHARE_INT4: f32 = 0.4;

fn files(name: &str) -> OpenFiles {
    let file = format!("{name}.gguf");
    let open = File::open(golden("gguf").join(&file)).unwrap();
    OpenFiles::new([(file, open)])
}

/// Tokens and (tokens, vocabulary) logits of a forward pass over what the package `gguf` reads.
fn reference(name: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(golden("gguf").join(format!("{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<u32> {
        let (words, _) = tensors.tensor(name).unwrap().data().as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    let logits = words("logits").into_iter().map(f32::from_bits).collect();
    (words("tokens"), logits)
}

fn logits(backend: &mut CpuBackend, tokens: &[u32]) -> Vec<f32> {
    let mut sequence = Sequence::new(0, tokens);
    backend.open(sequence.slot, &SamplingParams::greedy(), tokens, &[]);
    let mut batch = Batch::default();
    add_row(
        &mut batch,
        &mut sequence,
        u32::try_from(tokens.len()).unwrap(),
    );
    let mut all = Vec::new();
    backend
        .all_logits(&batch, |_, logits| all.extend_from_slice(logits))
        .unwrap();
    backend.close(sequence.slot);
    all
}

fn load(name: &str, weights: WeightFormat) -> CpuBackend {
    let options = CpuOptions {
        kv_type: KvType::F32,
        weights,
        ..options()
    };
    load_cpu(&files(name), &options).unwrap()
}

fn share(got: &[f32], want: &[f32]) -> f32 {
    let off: f32 = got.iter().zip(want).map(|(a, b)| (a - b).powi(2)).sum();
    let all: f32 = want.iter().map(|b| b.powi(2)).sum();
    (off / all).sqrt()
}

#[test]
fn half_precision_files_give_the_reference_s_logits() {
    let (tokens, want) = reference("f16");
    let got = logits(&mut load("f16", WeightFormat::Stored), &tokens);
    assert_eq!(got.len(), want.len());
    let worst = got
        .iter()
        .zip(&want)
        .map(|(a, b)| (a - b).abs())
        .fold(0_f32, f32::max);
    assert!(worst <= TOLERANCE, "{worst}");
}

#[test]
fn quantized_files_stay_within_the_stated_share_of_the_reference() {
    let int4 = WeightFormat::Quantized(QuantKind::Int4);
    for name in ["q8_0", "q4_0", "q4_k"] {
        let (tokens, want) = reference(name);
        let off = share(
            &logits(&mut load(name, WeightFormat::Stored), &tokens),
            &want,
        );
        println!("{name}: {off}");
        assert!(off <= SHARE, "{name}: {off}");
        let off = share(&logits(&mut load(name, int4), &tokens), &want);
        println!("{name} in four bits: {off}");
        assert!(off <= SHARE_INT4, "{name} in four bits: {off}");
    }
}

#[test]
fn text_and_template_come_from_the_file_unless_they_lie_beside_it() {
    let text = ModelText::from_files(&files("q8_0")).unwrap();
    let id = |token: &str| text.tokenizer.token_id(token).unwrap();
    assert_eq!(
        text.encode_prompt("the than").unwrap(),
        [0, id("the"), id("\u{120}"), id("th"), id("an")]
    );
    assert_eq!(
        text.tokenizer.decode(&[id("the"), id("\u{120}the")]),
        "the the"
    );
    assert_eq!(
        (text.eos_tokens(), text.context_tokens()),
        ([1].as_slice(), 128)
    );
    let chat = text
        .encode_chat(&[serde_json::json!({"role": "user", "content": "an"})], 0)
        .unwrap();
    assert_eq!(chat.tokens, [0, id("an")]);

    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(
        golden("gguf").join("q8_0.gguf"),
        dir.path().join("model.gguf"),
    )
    .unwrap();
    std::fs::write(
        dir.path().join("chat_template.jinja"),
        "{{ messages[0].content }}!",
    )
    .unwrap();
    let beside = ModelText::from_files(&OpenFiles::from_dir(dir.path()).unwrap()).unwrap();
    let template = beside.encode_chat(&[serde_json::json!({"role": "user", "content": "an"})], 0);
    assert_eq!(template.unwrap().text, "an!");

    std::fs::copy(
        golden("gguf").join("q4_0.gguf"),
        dir.path().join("other.gguf"),
    )
    .unwrap();
    let error = ModelText::from_files(&OpenFiles::from_dir(dir.path()).unwrap()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let why = std::error::Error::source(cause).unwrap().to_string();
    assert!(why.contains("is not the only GGUF file"), "{why}");
}
