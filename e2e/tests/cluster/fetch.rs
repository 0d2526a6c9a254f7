//! `weir fetch` from a real registry and a real S3 server.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use weir_e2e::{RandomModel, Site, Tenant, weir_command};

use crate::places::{Bucket, Registry, SECRET, docker_config, files, programs, s3_environment};

/// A site with one version, and the folder with its files.
fn site() -> (Site, PathBuf) {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let dir = site.model_dir("random", 1);
    (site, dir)
}

/// Says that its only version is elsewhere.
fn point(site: &Site, uri: &str) {
    let path = site.manifests().join("model-random-v1.yaml");
    let mut object: Value = serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    object["spec"]["manifest"]["artifact"]["uri"] = json!(uri);
    fs::write(path, serde_yaml::to_string(&object).unwrap()).unwrap();
}

fn command(site: &Site, cache: &str, env: &[(&str, String)]) -> Command {
    let mut command = weir_command();
    command.args(["fetch", "-o", "json"]).arg(site.manifests());
    command.arg("--model-cache").arg(site.path().join(cache));
    // What this machine has of its own counts for nothing.
    command.env("DOCKER_CONFIG", site.path().join("no-docker"));
    command.envs(env.iter().map(|(name, value)| (*name, value)));
    command
}

fn fetch(site: &Site, cache: &str, env: &[(&str, String)]) -> Output {
    command(site, cache, env).output().unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    )
}

fn assert_fetched(output: &Output) {
    let said = said(output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\"signature\":\"checked\""), "{said}");
}

/// It failed for this reason, and said nothing that is secret.
fn assert_refused(output: &Output, reason: &str) {
    let said = said(output);
    assert!(!output.status.success() && said.contains(reason), "{said}");
    for secret in [SECRET, "another-secret"] {
        assert!(!said.contains(secret), "{said}");
    }
}

/// What of a version is in a cache under its own name.
fn is_kept(site: &Site, cache: &str) -> bool {
    let models = fs::read_dir(site.path().join(cache).join("models"));
    models.is_ok_and(|mut models| models.next().is_some())
}

#[test]
fn an_artifact_of_a_registry_is_read_whether_its_files_are_layers_or_in_archives() {
    let Some(programs) = programs("the registry") else {
        return;
    };
    let (site, dir) = site();
    let registry = Registry::open(&programs, &site.path().join("registry"));
    point(&site, &format!("oci://{}/team/random:1", registry.address));
    let env = [("WEIR_FETCH_PLAIN_HTTP", registry.address.clone())];
    assert_refused(&fetch(&site, "none", &env), "ArtifactMissing");
    registry.put("1", &dir);
    assert_fetched(&fetch(&site, "raw", &env));

    // One uncompressed archive.
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", &dir).unwrap();
    let archive = archive.into_inner().unwrap();
    let layer = registry.push("application/vnd.cncf.model.weight.v1.tar", &archive);
    registry.tag("1", &[layer]);
    assert_fetched(&fetch(&site, "archive", &env));

    // Compressed ones are refused by name.
    let layer = registry.push("application/vnd.cncf.model.weight.v1.tar+gzip", b"x");
    registry.tag("1", &[layer]);
    assert_refused(&fetch(&site, "compressed", &env), "tar+gzip");

    // Another content under a file's name.
    let mut layers = Vec::new();
    for (name, mut bytes) in files(&dir) {
        if name == "config.json" {
            bytes.push(b' ');
        }
        let mut layer = registry.push("application/octet-stream", &bytes);
        layer["annotations"] = json!({"org.opencontainers.image.title": name});
        layers.push(layer);
    }
    registry.tag("1", &layers);
    assert_refused(&fetch(&site, "other", &env), "has not the signed digest");
    assert!(!is_kept(&site, "other"));
}

#[test]
fn a_registry_is_read_with_the_right_credentials_only_and_they_are_never_shown() {
    let Some(programs) = programs("a registry with users") else {
        return;
    };
    let (site, dir) = site();
    let registry = Registry::closed(&programs, &site.path().join("registry"));
    let address = registry.address.as_str();
    point(&site, &format!("oci://{address}/team/random:1"));
    registry.put("1", &dir);
    let with = |secret: &str| {
        let folder = site.path().join(format!("docker-{}", secret.len()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), docker_config(address, secret)).unwrap();
        [
            ("WEIR_FETCH_PLAIN_HTTP", address.to_owned()),
            ("DOCKER_CONFIG", folder.display().to_string()),
        ]
    };
    let without = [("WEIR_FETCH_PLAIN_HTTP", address.to_owned())];
    assert_refused(&fetch(&site, "without", &without), "ArtifactDenied");
    assert_refused(
        &fetch(&site, "wrong", &with("another-secret")),
        "ArtifactDenied",
    );
    assert_fetched(&fetch(&site, "right", &with(SECRET)));
}

#[test]
fn a_bucket_is_read_with_the_right_credentials_only_and_what_is_not_the_signed_file_is_not_kept() {
    let Some(programs) = programs("the bucket") else {
        return;
    };
    let (site, dir) = site();
    let bucket = Bucket::start(&programs, &site.path().join("buckets"));
    point(&site, &bucket.put("random/1", &dir));
    let with = |secret| s3_environment(&bucket.address, secret);
    assert_refused(
        &fetch(&site, "wrong", &with("another-secret")),
        "ArtifactDenied",
    );
    assert_fetched(&fetch(&site, "right", &with(SECRET)));

    // As long as it was, and not what was signed.
    let path = bucket.folder("random/1/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_refused(&fetch(&site, "tampered", &with(SECRET)), "ArtifactMismatch");
    assert!(!is_kept(&site, "tampered"));
    fs::write(&path, &bytes[1..]).unwrap();
    assert_refused(&fetch(&site, "short", &with(SECRET)), "ArtifactMismatch");
    fs::remove_file(&path).unwrap();
    assert_refused(&fetch(&site, "gone", &with(SECRET)), "ArtifactMissing");
    // Whoever has it needs nobody.
    assert_fetched(&fetch(&site, "right", &with("another-secret")));
}
