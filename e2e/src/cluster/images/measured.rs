//! What an image weighs, and whether its program starts in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Architecture, Images, image_name, run, said};

/// What was found of an image.
#[derive(Debug)]
pub struct Measured {
    /// The digest of its manifest (`sha256:…`).
    pub digest: String,
    /// Bytes of its program, without symbols.
    pub program: u64,
    /// Bytes that a node pulls: all layers, compressed.
    pub pulled: u64,
    /// Of these, bytes of the base.
    pub base: u64,
    /// What the program says of itself, run in the image's files.
    pub version: String,
}

impl Images {
    /// Measures the image of a part, and runs its program in it.
    ///
    /// # Errors
    /// As for [`Images::new`]; its family of processors or its user is not as it should be; the program does not start.
    pub fn measure(&self, part: &str) -> Result<Measured> {
        let folder = self.folder.path().join("measured").join(part);
        std::fs::create_dir_all(&folder)?;
        let target = format!("oci:{}:it", folder.display());
        run(self
            .buildah()
            .args(["push", "--format", "oci", &image_name(part), &target]))?;
        let index = json(&folder.join("index.json"))?;
        let digest = text(&index["manifests"][0]["digest"])?;
        let manifest = json(&blob(&folder, &digest)?)?;
        let config = json(&blob(&folder, &text(&manifest["config"]["digest"])?)?)?;
        ensure!(
            config["architecture"] == self.architecture.name(),
            "the image of {part} is for {}, not for {}",
            config["architecture"],
            self.architecture.name()
        );
        ensure!(
            config["config"]["User"] == "65532:65532",
            "the image of {part} runs as {}",
            config["config"]["User"]
        );
        let layers = manifest["layers"].as_array().context("no layers")?;
        let sizes: Vec<u64> = layers
            .iter()
            .filter_map(|layer| layer["size"].as_u64())
            .collect();
        let program = format!("usr/local/bin/weir-{part}");
        let files = self.mounted(part)?;
        Ok(Measured {
            digest,
            program: std::fs::metadata(files.join(&program))?.len(),
            pulled: sizes.iter().sum(),
            base: sizes.first().copied().unwrap_or(0),
            version: self.version(&files, &program)?,
        })
    }

    /// The files of an image as a container sees them.
    fn mounted(&self, part: &str) -> Result<PathBuf> {
        let container = said(
            self.buildah()
                .args(["from", "--pull-never", &image_name(part)]),
        )?;
        Ok(said(self.buildah().args(["mount", &container]))?.into())
    }

    fn version(&self, files: &Path, program: &str) -> Result<String> {
        let mut command = if self.architecture == Architecture::HERE {
            let mut command = Command::new("chroot");
            command.arg(files).arg(Path::new("/").join(program));
            command
        } else {
            let mut command = Command::new(self.architecture.emulator());
            command.arg("-L").arg(files).arg(files.join(program));
            command
        };
        said(command.arg("--version"))
    }
}

fn blob(folder: &Path, digest: &str) -> Result<PathBuf> {
    let hex = digest.strip_prefix("sha256:").context("not a SHA-256")?;
    Ok(folder.join("blobs/sha256").join(hex))
}

fn json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().context("no text")?.to_owned())
}
