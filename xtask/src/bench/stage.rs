//! A copy of the manifests under measurement with one more tenant, whom no limit stops: a measurement must not measure a quota.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_e2e::{Client, Weir, weir_command};

use super::target;

/// The model that the manifests serve.
pub(super) const MODEL: &str = "tiny-chat";

const KEY: &str = "bench-dev-key";

/// A running `weir up` and where it keeps its files.
pub(super) struct Stage {
    pub(super) weir: Weir,
    /// From the start of the command to its line `ready`.
    pub(super) ready_after: Duration,
    // Dropped last: the processes above have files in it.
    _folder: TempDir,
}

impl Stage {
    /// Serves `dir` as it is, with fresh state.
    pub(super) fn plain(dir: &Path) -> Result<Self> {
        let folder = folder()?;
        Self::start(dir, folder)
    }

    /// Serves a copy of `dir` with the tenant of [`Stage::client`] and room for this many waiting runs.
    pub(super) fn unlimited(dir: &Path, queue_depth: u32) -> Result<Self> {
        let folder = folder()?;
        let copy = folder.path().join("manifests");
        fs::create_dir(&copy)?;
        for file in yaml_files(dir)? {
            let text = fs::read_to_string(&file)?;
            let name = file.file_name().context("a file has a name")?;
            fs::write(copy.join(name), adapt(&text, dir, queue_depth)?)?;
        }
        fs::write(copy.join("bench-tenant.yaml"), tenant()?)?;
        Self::start(&copy, folder)
    }

    fn start(dir: &Path, folder: TempDir) -> Result<Self> {
        let begun = Instant::now();
        let weir = Weir::start(dir, &folder.path().join("data"))?;
        Ok(Self {
            weir,
            ready_after: begun.elapsed(),
            _folder: folder,
        })
    }

    pub(super) fn client(&self) -> Client {
        self.weir.client(KEY)
    }

    /// The tenant's key.
    pub(super) fn key() -> &'static str {
        KEY
    }

    pub(super) fn worker_pid(&self) -> Result<i32> {
        let pids = self.weir.worker_pids();
        pids.first().copied().context("no worker runs")
    }
}

/// On the disk that the build is on: a temporary file system in memory would make every append free.
fn folder() -> Result<TempDir> {
    let base = target().join("bench");
    fs::create_dir_all(&base)?;
    Ok(TempDir::new_in(base)?)
}

fn yaml_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            files.push(path);
        }
    }
    Ok(files)
}

/// Makes relative artifacts absolute and lets more runs wait.
fn adapt(text: &str, dir: &Path, queue_depth: u32) -> Result<String> {
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut object: Value = serde::Deserialize::deserialize(document)?;
        if object["kind"] == "ModelVersion" {
            let uri = object["spec"]["manifest"]["artifact"]["uri"].as_str();
            if let Some(path) = uri.and_then(|uri| uri.strip_prefix("file:")) {
                let absolute = fs::canonicalize(dir.join(path))
                    .with_context(|| format!("no artifact {path}"))?;
                object["spec"]["manifest"]["artifact"]["uri"] =
                    format!("file:{}", absolute.display()).into();
            }
        }
        if object["kind"] == "GpuPool" {
            object["spec"]["queue"] = json!({"maxDepth": queue_depth, "maxWait": "24h"});
        }
        documents.push(serde_yaml::to_string(&object)?);
    }
    Ok(documents.join("---\n"))
}

fn tenant() -> Result<String> {
    let output = weir_command()
        .args(["key", "--json", "--key", KEY])
        .output()?;
    ensure!(output.status.success(), "weir key failed");
    let printed: Value = serde_json::from_slice(&output.stdout)?;
    let quota = json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "bench"},
        "spec": {
            "tenant": "bench", "priority": "interactive", "models": [{"name": MODEL}], "trustScope": "bench",
            "keys": [{"name": "dev", "secretRef": {"name": "bench-keys", "key": "dev"}}],
        },
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bench-keys"}, "stringData": {"dev": printed["hash"]},
    });
    Ok(format!(
        "{}---\n{}",
        serde_yaml::to_string(&quota)?,
        serde_yaml::to_string(&secret)?
    ))
}
