//! Images for the node, made from the repository's Dockerfiles on a Debian base made here: no registry is asked.

mod measured;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::architecture::Architecture;
use super::binaries::cache_root;
use crate::repository;

pub use self::measured::Measured;

/// Packages of the base: the C library, what Rust's unwinder links, certificates, names and times.
const BASE: &str =
    "libc6,libgcc-s1,libstdc++6,ca-certificates,base-files,base-passwd,netbase,tzdata";
/// Image archives in a temporary folder.
pub struct Images {
    architecture: Architecture,
    folder: TempDir,
    archives: Vec<PathBuf>,
}

impl Images {
    /// Makes the base and the pause image, for this machine.
    ///
    /// # Errors
    /// A tool fails: the text holds what it said.
    pub fn new() -> Result<Self> {
        let mut images = Self::of(Architecture::HERE)?;
        let context = images.folder.path().join("pause");
        std::fs::create_dir_all(&context)?;
        run(Command::new("cc")
            .args(["-O2", "-static", "-o"])
            .arg(context.join("pause"))
            .arg(repository().join("xtask/cluster/images/pause.c")))?;
        let pause = "FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT [\"/pause\"]\n";
        images.build("pause", &context, pause, &[])?;
        images.archive("pause")?;
        Ok(images)
    }

    /// Makes the base for a family of processors.
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn of(architecture: Architecture) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-images-").tempdir()?;
        let images = Self {
            architecture,
            folder,
            archives: Vec::new(),
        };
        let context = images.folder.path().join("base");
        std::fs::create_dir_all(&context)?;
        std::fs::copy(base(architecture)?, context.join("base.tar"))?;
        images.build("base", &context, "FROM scratch\nADD base.tar /\n", &[])?;
        Ok(images)
    }

    /// Makes the image of `Dockerfile.PART` from the program `weir-PART` in a folder, stripped of its symbols. Its name is
    /// [`image_name`].
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn weir(&mut self, part: &str, programs: &Path) -> Result<()> {
        let program = format!("weir-{part}");
        let context = self.folder.path().join(part);
        let place = context.join("prebuilt").join(self.architecture.name());
        std::fs::create_dir_all(&place)?;
        run(Command::new(self.architecture.tool("strip"))
            .arg("-o")
            .arg(place.join(&program))
            .arg(programs.join(&program)))?;
        let file = repository().join(format!("Dockerfile.{part}"));
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("reading {}", file.display()))?;
        let base = format!("BASE={}", image_name("base"));
        let architecture = format!("TARGETARCH={}", self.architecture.name());
        let arguments = [
            "BINARY=prebuilt",
            "CUDA=without",
            "CERTIFICATES=without",
            &base,
            &architecture,
        ];
        self.build(part, &context, &text, &arguments)?;
        self.archive(part)
    }

    /// Makes an image whose files are those of a folder: a model, to be mounted as a volume.
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn files(&mut self, name: &str, files: &Path) -> Result<()> {
        self.build(name, files, "FROM scratch\nCOPY . /\n", &[])?;
        self.archive(name)
    }

    /// The archives made so far, for `ctr images import`.
    pub fn archives(&self) -> &[PathBuf] {
        &self.archives
    }

    fn buildah(&self) -> Command {
        let mut command = Command::new("buildah");
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(self.folder.path().join("storage"))
            .arg("--runroot")
            .arg(self.folder.path().join("run"));
        command
    }

    fn build(&self, name: &str, context: &Path, text: &str, arguments: &[&str]) -> Result<()> {
        let file = self.folder.path().join(format!("Dockerfile.{name}"));
        std::fs::write(&file, text)?;
        let mut command = self.buildah();
        command.args([
            "build",
            "--isolation",
            "chroot",
            "--pull-never",
            "--timestamp",
            "0",
            "--platform",
            &format!("linux/{}", self.architecture.name()),
        ]);
        for argument in arguments {
            command.args(["--build-arg", argument]);
        }
        command.args(["--tag", &image_name(name), "--file"]);
        run(command.arg(file).arg(context))
    }

    fn archive(&mut self, name: &str) -> Result<()> {
        let path = self.folder.path().join(format!("{name}.tar"));
        let image = image_name(name);
        let target = format!("docker-archive:{}:{image}", path.display());
        run(self.buildah().args(["push", &image, &target]))?;
        self.archives.push(path);
        Ok(())
    }
}

/// The folder with the compiled `weir-operator`, `weir-gateway` and `weir-worker`: `WEIR_BIN_DIR`, else built here.
///
/// # Errors
/// They do not build.
pub fn programs() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WEIR_BIN_DIR") {
        return Ok(folder.into());
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet"])
        .args([
            "-p",
            "weir-operator",
            "-p",
            "weir-gateway",
            "-p",
            "weir-worker",
            "--bins",
        ])
        .current_dir(repository())
        .status()?;
    ensure!(
        status.success(),
        "weir-operator, weir-gateway and weir-worker do not build"
    );
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), PathBuf::from);
    Ok(target.join("debug"))
}

/// The name of an image that was made here.
pub fn image_name(part: &str) -> String {
    format!("localhost/weir/{part}:test")
}

/// A Debian of the same release as this machine's, so that programs built here find the C library they know; made once.
fn base(architecture: Architecture) -> Result<PathBuf> {
    let release = std::fs::read_to_string("/etc/os-release")?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release names no Debian release to make a base image from")?;
    let path = cache_root()?.join(format!("base-{suite}-{}.tar", architecture.name()));
    if path.is_file() {
        return Ok(path);
    }
    std::fs::create_dir_all(cache_root()?)?;
    // A format that mmdebstrap tells from the name.
    let part = path.with_extension("part.tar");
    // Packages are unpacked and not configured: nothing of another family of processors is run.
    run(Command::new("mmdebstrap")
        .args(["--variant=extract", "--skip=check/qemu"])
        .arg(format!("--architectures={}", architecture.name()))
        .args([&format!("--include={BASE}"), suite])
        .arg(&part))?;
    std::fs::rename(&part, &path)?;
    Ok(path)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(())
}
