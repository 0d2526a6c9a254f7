use super::*;

fn entry(path: &str) -> FileEntry {
    FileEntry {
        path: path.parse().unwrap(),
        sha256: Digest::of(path.as_bytes()),
        size: 7,
    }
}

fn manifest() -> ArtifactManifest {
    ArtifactManifest {
        model: "tiny-chat".to_owned(),
        version: 2,
        architecture: "LlamaForCausalLM".to_owned(),
        precision: "bf16".to_owned(),
        context_tokens: 2048,
        request_schema: 1,
        tokenizer: Some(Digest::of(b"t")),
        template: None,
        adapter_of: None,
        references: None,
        files: vec![entry("config.json"), entry("model.safetensors")],
    }
}

fn claim() -> VersionClaim {
    VersionClaim {
        model: "tiny-chat".to_owned(),
        version: 2,
        files: vec![
            entry("model.safetensors"),
            entry("config.json"),
            entry(MANIFEST_FILE),
        ],
        architecture: "LlamaForCausalLM".to_owned(),
        precision: "bf16".to_owned(),
        context_tokens: 2048,
        request_schema: 1,
        adapter_of: None,
    }
}

#[test]
fn the_manifest_has_fixed_bytes() {
    let mut manifest = manifest();
    manifest.files.truncate(1);
    let tokenizer = Digest::of(b"t");
    let config = Digest::of(b"config.json").to_hex();
    let want = format!(
        r#"{{"architecture":"LlamaForCausalLM","contextTokens":2048,"files":[{{"path":"config.json","sha256":"{config}","size":7}}],"model":"tiny-chat","precision":"bf16","requestSchema":1,"tokenizer":"{tokenizer}","version":2}}"#
    );
    assert_eq!(
        String::from_utf8(manifest.to_bytes().unwrap()).unwrap(),
        want
    );
    assert_eq!(manifest.digest().unwrap(), Digest::of(want.as_bytes()));
    assert_eq!(
        ArtifactManifest::from_bytes(want.as_bytes()).unwrap(),
        manifest
    );
}

#[test]
fn an_object_that_says_the_same_is_accepted() {
    manifest().check_claim(&claim()).unwrap();
}

#[test]
fn every_field_of_the_object_is_compared() {
    type Edit = fn(&mut VersionClaim);
    let edits: [(&str, Edit); 12] = [
        ("spec.model", |c| c.model = "other".to_owned()),
        ("spec.version", |c| c.version = 3),
        ("spec.manifest.architecture", |c| {
            c.architecture = "MistralForCausalLM".to_owned();
        }),
        ("spec.manifest.precision", |c| {
            c.precision = "f32".to_owned();
        }),
        ("spec.manifest.contextTokens", |c| c.context_tokens = 4096),
        ("spec.manifest.requestSchema", |c| c.request_schema = 2),
        ("spec.manifest.adapterOf", |c| {
            c.adapter_of = Some(Digest::of(b""));
        }),
        ("spec.manifest.files[\"model.safetensors\"].sha256", |c| {
            c.files[0].sha256 = Digest::of(b"");
        }),
        ("spec.manifest.files[\"model.safetensors\"].size", |c| {
            c.files[0].size = 8;
        }),
        ("spec.manifest.files[\"config.json\"]", |c| {
            drop(c.files.remove(1));
        }),
        ("spec.manifest.files[\"extra\"]", |c| {
            c.files.push(entry("extra"));
        }),
        ("spec.manifest.files[\"config.json\"]", |c| {
            c.files.push(entry("config.json"));
        }),
    ];
    for (want, edit) in edits {
        let mut claim = claim();
        edit(&mut claim);
        match manifest().check_claim(&claim) {
            Err(VerifyError::ManifestMismatch { field, .. }) => assert_eq!(field, want),
            other => panic!("{want}: {other:?}"),
        }
    }
}

#[test]
fn impossible_manifests_are_refused() {
    let edits: [fn(&mut ArtifactManifest); 6] = [
        |m| m.model.clear(),
        |m| m.version = 0,
        |m| m.context_tokens = 0,
        |m| m.request_schema = 0,
        |m| m.files.reverse(),
        |m| m.files.push(entry("model.safetensors")),
    ];
    for (row, edit) in edits.into_iter().enumerate() {
        let mut manifest = manifest();
        edit(&mut manifest);
        assert_eq!(
            manifest.to_bytes().unwrap_err().reason(),
            "ManifestInvalid",
            "row {row}"
        );
    }
}
