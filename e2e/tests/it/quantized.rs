//! Weights in fewer bits, on real processes: quantized into a version of their own, and from a GGUF file.

use std::path::Path;

use serde_json::{Value, json};
use weir_e2e::{RandomModel, Site, Tenant, repository, weir_command, write_random_model};

fn engine() -> Value {
    json!({"maxBatchTokens": 512, "maxRunning": 8, "kvMemory": "64Mi", "blockTokens": 16})
}

/// Signs a directory as a version, serves it and asks it twice.
fn answers(dir: &Path, prompt: &str) -> Vec<String> {
    let site = Site::serving("small", dir, &engine(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    ["one", "two"]
        .map(|key| {
            let body = json!({"model": "small", "input": prompt, "maxOutputTokens": 24, "requestKey": key,
                "sampling": {"temperature": 0}});
            let events = client.stream(&body).unwrap().to_end().unwrap();
            let last = events.last().unwrap();
            assert_eq!(last.kind, "completed", "{last:?}");
            let deltas = events.iter().filter(|event| event.kind == "delta");
            let text = deltas.map(|event| event.json()["text"].as_str().unwrap_or_default().to_owned());
            text.collect()
        })
        .to_vec()
}

#[test]
fn a_model_is_quantized_signed_as_its_own_version_and_served_with_its_loss_stated() {
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original");
    std::fs::create_dir(&original).unwrap();
    let tokenizer_of = repository().join("examples/models/tiny-chat-v2");
    write_random_model(&original, &tokenizer_of, RandomModel::default()).unwrap();
    for (bits, precision, least_same) in [("int8", "int8", 0.8), ("int4", "int4", 0.2)] {
        let out = dir.path().join(bits);
        let made = weir_command()
            .args(["quantize", "--weights", bits, "--json"])
            .args([&original, &out])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let report: Value = serde_json::from_slice(&made.stdout).unwrap();
        let loss = &report["loss"];
        assert!(loss["tokens"].as_u64().unwrap() > 100, "{report}");
        assert!(
            loss["sameBestShare"].as_f64().unwrap() > least_same,
            "{report}"
        );
        assert!(
            report["bytesAfter"].as_u64().unwrap()
                < report["bytesBefore"].as_u64().unwrap() * 2 / 3,
            "{report}"
        );
        let texts = answers(&out, "hello there");
        assert!(!texts[0].is_empty() && texts[0] == texts[1], "{texts:?}");
        // What was signed says what it is, and carries the report.
        let manifest = std::fs::read(out.join("weir-manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["precision"], precision);
        let files = manifest["files"].as_array().unwrap();
        assert!(
            files.iter().any(|file| file["path"] == "quantization.json"),
            "{manifest}"
        );
    }
}

#[test]
fn a_gguf_file_is_signed_and_served_with_the_text_side_made_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let golden = repository().join("crates/model/tests/golden/gguf/q8_0.gguf");
    std::fs::copy(golden, dir.path().join("model.gguf")).unwrap();
    let texts = answers(dir.path(), "the than");
    assert!(!texts[0].is_empty() && texts[0] == texts[1], "{texts:?}");
    let manifest = std::fs::read(dir.path().join("weir-manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["precision"], "q8_0");
    let files = manifest["files"].as_array().unwrap();
    for name in [
        "model.gguf",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        assert!(
            files.iter().any(|file| file["path"] == name),
            "{name} is not in {manifest}"
        );
    }
}
