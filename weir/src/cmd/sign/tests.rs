use std::fs;

use super::*;
use crate::cmd::{keygen, verify};

struct Model {
    root: tempfile::TempDir,
}

impl Model {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("models/tiny");
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir(root.path().join("objects")).unwrap();
        fs::write(
            dir.join("config.json"),
            r#"{"architectures":["LlamaForCausalLM"],"max_position_embeddings":2048,"torch_dtype":"bfloat16"}"#,
        )
        .unwrap();
        fs::write(dir.join("tokenizer.json"), "{}").unwrap();
        let model = Self { root };
        keygen::run(
            keygen::Args::try_parse_from(["keygen", "--out", &model.path("release")]).unwrap(),
        )
        .unwrap();
        model
    }

    fn path(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    fn sign(&self, more: &[&str]) -> Result<()> {
        let (dir, key) = (self.path("models/tiny"), self.path("release.key"));
        let mut words = vec![
            "sign",
            &dir,
            "--model",
            "tiny",
            "--version",
            "2",
            "--key",
            &key,
        ];
        words.extend(more);
        run(Args::try_parse_from(words)?)
    }

    fn verify(&self, more: &[&str]) -> Result<()> {
        let dir = self.path("models/tiny");
        let mut words = vec!["verify", &dir];
        words.extend(more);
        verify::run(verify::Args::try_parse_from(words)?)
    }
}

#[test]
fn references_that_cannot_be_asked_are_told_before_they_are_signed() {
    let model = Model::new();
    let references = model.path("models/tiny/references.jsonl");
    fs::write(&references, "{\"prompt\": \"a\"}\n").unwrap();
    let error = format!("{:#}", model.sign(&[]).unwrap_err());
    assert!(
        error.contains("references.jsonl") && error.contains("line 1"),
        "{error}"
    );
    let line = "{\"prompt\": \"a\", \"accept\": {\"exact\": \"b\"}}\n";
    fs::write(&references, line).unwrap();
    model.sign(&[]).unwrap();
}

#[test]
fn what_is_signed_verifies_by_key_policy_and_object() {
    let model = Model::new();
    let object = model.path("objects/tiny.yaml");
    model.sign(&["--emit-manifest", &object]).unwrap();
    let public = model.path("release.pub");
    model.verify(&["--key", &public]).unwrap();
    model
        .verify(&["--key", &public, "--model-version", &object])
        .unwrap();

    let pem = fs::read_to_string(&public)
        .unwrap()
        .trim_end()
        .replace('\n', "\n    ");
    let policy = format!("keys:\n- id: release\n  publicKey: |\n    {pem}\n  models: ['tiny']\n");
    let (bare, map) = (model.path("trust.yaml"), model.path("map.yaml"));
    fs::write(&bare, &policy).unwrap();
    let indented = policy.replace('\n', "\n    ");
    let object_map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: weir-trust}}\ndata:\n  policy.yaml: |\n    {indented}\n"
    );
    fs::write(&map, object_map).unwrap();
    model.verify(&["--trust", &bare]).unwrap();
    model.verify(&["--trust", &map, "--json"]).unwrap();

    fs::write(&bare, policy.replace("'tiny'", "'other'")).unwrap();
    let error = model.verify(&["--trust", &bare]).unwrap_err();
    assert!(
        format!("{error:#}").contains("KeyNotPermitted"),
        "{error:#}"
    );
}

#[test]
fn the_emitted_object_names_the_artifact_from_where_it_lies() {
    let model = Model::new();
    let object = model.path("objects/tiny.yaml");
    model
        .sign(&["--emit-manifest", &object, "--pool", "big"])
        .unwrap();
    let yaml: serde_yaml::Value =
        serde_yaml::from_str(&fs::read_to_string(&object).unwrap()).unwrap();
    assert_eq!(
        yaml["spec"]["manifest"]["artifact"]["uri"],
        "file:../models/tiny"
    );
    assert_eq!(yaml["spec"]["manifest"]["contextTokens"], 2048);
    assert_eq!(yaml["spec"]["signature"]["file"], "model.sig");
    assert_eq!(yaml["spec"]["pool"], "big");
    assert_eq!(yaml["metadata"]["name"], "tiny-v2");
    let sha256 = yaml["spec"]["manifest"]["files"][0]["sha256"]
        .as_str()
        .unwrap();
    assert_eq!(sha256.len(), 64);
}

#[test]
fn a_tampered_file_fails_with_its_name() {
    let model = Model::new();
    model.sign(&[]).unwrap();
    fs::write(model.path("models/tiny/tokenizer.json"), "{ }").unwrap();
    let public = model.path("release.pub");
    for more in [&[][..], &["--json"]] {
        let mut words = vec!["--key", &public];
        words.extend(more);
        let message = format!("{:#}", model.verify(&words).unwrap_err());
        assert!(
            message.contains("FileTampered") && message.contains("tokenizer.json"),
            "{message}"
        );
    }
}

#[test]
fn an_object_of_another_version_fails_with_the_field() {
    let model = Model::new();
    let object = model.path("objects/tiny.yaml");
    model.sign(&["--emit-manifest", &object]).unwrap();
    let text = fs::read_to_string(&object)
        .unwrap()
        .replace("version: 2", "version: 3");
    fs::write(&object, text).unwrap();
    let error = model
        .verify(&[
            "--key",
            &model.path("release.pub"),
            "--model-version",
            &object,
        ])
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("spec.version is 3"),
        "{error:#}"
    );
}

#[test]
fn mistakes_are_told_with_the_remedy() {
    let model = Model::new();
    let error = model
        .verify(&["--key", &model.path("release.pub")])
        .unwrap_err();
    assert!(format!("{error:#}").contains("weir sign"), "{error:#}");
    let error = model.sign(&["--context-tokens", "4096"]).unwrap_err();
    assert!(format!("{error:#}").contains("2048"), "{error:#}");
    fs::copy(
        model.path("release.key"),
        model.path("models/tiny/release.key"),
    )
    .unwrap();
    let inside = model.path("models/tiny/release.key");
    let dir = model.path("models/tiny");
    let args = Args::try_parse_from([
        "sign",
        &dir,
        "--model",
        "tiny",
        "--version",
        "1",
        "--key",
        &inside,
    ])
    .unwrap();
    assert!(run(args).unwrap_err().to_string().contains("move it away"));
}

/// `peft`'s own adapter, of the model it was made for and of another one.
#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in full")]
fn an_adapter_is_signed_as_a_version_of_its_base_and_of_no_other() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/tests/golden");
    let model = Model::new();
    let base = model.path("models/tiny");
    fs::copy(
        golden.join("llama-f32/config.json"),
        format!("{base}/config.json"),
    )
    .unwrap();
    let adapter = model.path("adapter");
    fs::create_dir(&adapter).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(
            golden.join("adapters/all").join(name),
            format!("{adapter}/{name}"),
        )
        .unwrap();
    }
    let object = model.path("objects/tiny-support.yaml");
    let sign = |more: &[&str]| {
        let key = model.path("release.key");
        let mut words = vec![
            "sign",
            &adapter,
            "--model",
            "tiny-support",
            "--version",
            "1",
        ];
        words.extend(["--key", &key, "--emit-manifest", &object]);
        words.extend(more);
        run(Args::try_parse_from(words)?)
    };
    let why = |result: Result<()>| format!("{:#}", result.unwrap_err());
    let alone = why(sign(&[]));
    assert!(alone.contains("name its base with --adapter-of"), "{alone}");
    let unsigned = why(sign(&["--adapter-of", &base]));
    assert!(
        unsigned.contains("of a version that is signed already: sign that first"),
        "{unsigned}"
    );
    model.sign(&[]).unwrap();
    sign(&["--adapter-of", &base]).unwrap();
    let manifest = fs::read(format!("{base}/weir-manifest.json")).unwrap();
    let yaml: serde_yaml::Value =
        serde_yaml::from_str(&fs::read_to_string(&object).unwrap()).unwrap();
    let written = &yaml["spec"]["manifest"];
    assert_eq!(written["adapterOf"], Digest::of(&manifest).to_string());
    assert_eq!(written["architecture"], "LlamaForCausalLM");
    assert_eq!(written["precision"], "f32");
    assert_eq!(written["contextTokens"], 128);

    let longer = why(sign(&["--adapter-of", &base, "--context-tokens", "129"]));
    assert!(
        longer.contains("128 tokens of context, 129 were asked for"),
        "{longer}"
    );
    let of_adapter = why(sign(&["--adapter-of", &adapter]));
    assert!(
        of_adapter.contains("is of an adapter itself"),
        "{of_adapter}"
    );
    fs::write(format!("{adapter}/tokenizer.json"), "{\"a\":1}").unwrap();
    let tokenizer = why(sign(&["--adapter-of", &base]));
    assert!(
        tokenizer.contains("is another one than the base's"),
        "{tokenizer}"
    );
    fs::remove_file(format!("{adapter}/tokenizer.json")).unwrap();
    fs::copy(
        golden.join("qwen3/config.json"),
        format!("{base}/config.json"),
    )
    .unwrap();
    model.sign(&[]).unwrap();
    let other = why(sign(&["--adapter-of", &base]));
    assert!(
        other.contains("is no adapter of the model in") && other.contains("has shape"),
        "{other}"
    );
}
