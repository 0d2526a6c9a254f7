//! A process whose wall clock and whose disk's syncs are a test's to set: unmodified programs, with a library loaded before libc.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::repository;

/// What one process is told.
pub struct Preload {
    file: std::fs::File,
    path: PathBuf,
}

impl Preload {
    /// Nothing is changed yet. `file` is made.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(file: &Path) -> Result<Self> {
        std::fs::write(file, [0; 16])?;
        let open = std::fs::OpenOptions::new().write(true).open(file)?;
        Ok(Self {
            file: open,
            path: file.to_owned(),
        })
    }

    /// What the process is started with.
    ///
    /// # Errors
    /// The library does not build.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let library = library()?.display().to_string();
        let file = self.path.display().to_string();
        Ok(vec![
            ("LD_PRELOAD".to_owned(), library),
            ("WEIR_FAULTS".to_owned(), file),
        ])
    }

    /// Its wall clock is so far ahead of the true one from now on, or behind.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_clock(&self, ahead_ms: i64) -> Result<()> {
        Ok(self.file.write_all_at(&ahead_ms.to_ne_bytes(), 0)?)
    }

    /// Its so many-th sync from now on fails with EIO; those after it succeed again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn fail_sync(&self, number: i64) -> Result<()> {
        Ok(self.file.write_all_at(&number.to_ne_bytes(), 8)?)
    }
}

/// The library, built once a process.
fn library() -> Result<&'static Path> {
    static LIBRARY: OnceLock<Result<(tempfile::TempDir, PathBuf), String>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    let built = built.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(&built.1)
}

fn build() -> Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("libfaults.so");
    let output = Command::new("rustc")
        .args(["--edition", "2024", "--crate-type", "cdylib", "-O"])
        .args(["-C", "panic=abort", "-o"])
        .arg(&library)
        .arg(repository().join("e2e/preload/faults.rs"))
        .current_dir(repository())
        .output()
        .context("starting rustc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "the library does not build: {said}"
    );
    Ok((folder, library))
}
