//! Where the repository is and which files belong to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the repository")
}

/// Files that git tracks or would track, relative to the root.
pub(crate) fn files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root())
        .output()
        .context("cannot start git")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let paths = names.split('\0').filter(|name| !name.is_empty());
    // Deleted files stay in the index until they are committed.
    let existing = paths
        .map(PathBuf::from)
        .filter(|path| root().join(path).is_file());
    Ok(existing.collect())
}

/// The content of a file of the repository.
pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(root().join(path))
        .with_context(|| format!("cannot read \"{}\"", path.display()))
}

/// What cargo says of the workspace, with further options.
pub(crate) fn metadata(options: &[&str]) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1"])
        .args(options)
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("cargo metadata is no JSON")
}

/// One error from all findings, or the summary where there is none.
pub(crate) fn verdict(findings: &[String], summary: String) -> Result<String> {
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(summary)
}
