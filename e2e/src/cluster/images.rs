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
/// Packages of the image of PostgreSQL: the server of the release, and what its script is made of.
const POSTGRESQL: &str =
    "libc6,libgcc-s1,base-files,base-passwd,netbase,tzdata,dash,coreutils,postgresql";
const POSTGRESQL_FILE: &str = "FROM scratch\n\
    ADD base.tar /\n\
    COPY --chmod=0555 postgresql.sh /usr/local/bin/postgresql.sh\n\
    RUN [\"/bin/sh\", \"/usr/local/bin/postgresql.sh\", \"prepare\"]\n\
    USER 999:999\n\
    ENTRYPOINT [\"/bin/sh\", \"/usr/local/bin/postgresql.sh\"]\n";
/// The tag of what is made of this repository.
const TAG: &str = "test";

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
        std::fs::copy(
            debian("base", BASE, architecture)?,
            context.join("base.tar"),
        )?;
        images.build("base", &context, "FROM scratch\nADD base.tar /\n", &[])?;
        Ok(images)
    }

    /// Makes the image of `Dockerfile.PART` from the program `weir-PART` in a folder, stripped of its symbols. Its name is
    /// [`image_name`].
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn weir(&mut self, part: &str, programs: &Path) -> Result<()> {
        self.weir_as(part, TAG, programs)
    }

    /// The same with another tag, as that of the release before.
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn weir_as(&mut self, part: &str, tag: &str, programs: &Path) -> Result<()> {
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
        self.build_as(part, tag, &context, &text, &arguments)?;
        self.archive_as(part, tag)
    }

    /// An image with kubectl on its path and nothing else.
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn kubectl(&mut self, program: &Path) -> Result<()> {
        let context = self.folder.path().join("kubectl");
        std::fs::create_dir_all(&context)?;
        std::fs::copy(program, context.join("kubectl"))?;
        let text = "FROM scratch\nCOPY --chmod=0555 kubectl /usr/local/bin/kubectl\nENV PATH=/usr/local/bin\n";
        self.build("kubectl", &context, text, &[])?;
        self.archive("kubectl")
    }

    /// A PostgreSQL of Debian's that takes the variables of the official image.
    ///
    /// # Errors
    /// As for [`Images::new`].
    pub fn postgresql(&mut self) -> Result<()> {
        let context = self.folder.path().join("postgresql");
        std::fs::create_dir_all(&context)?;
        let base = debian("postgresql", POSTGRESQL, self.architecture)?;
        std::fs::copy(base, context.join("base.tar"))?;
        let script = repository().join("xtask/cluster/images/postgresql.sh");
        std::fs::copy(script, context.join("postgresql.sh"))?;
        self.build("postgresql", &context, POSTGRESQL_FILE, &[])?;
        self.archive("postgresql")
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
        self.build_as(name, TAG, context, text, arguments)
    }

    fn build_as(
        &self,
        name: &str,
        tag: &str,
        context: &Path,
        text: &str,
        arguments: &[&str],
    ) -> Result<()> {
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
        command.args(["--tag", &tagged(name, tag), "--file"]);
        run(command.arg(file).arg(context))
    }

    fn archive(&mut self, name: &str) -> Result<()> {
        self.archive_as(name, TAG)
    }

    fn archive_as(&mut self, name: &str, tag: &str) -> Result<()> {
        let path = self.folder.path().join(format!("{name}-{tag}.tar"));
        let image = tagged(name, tag);
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
    tagged(part, TAG)
}

fn tagged(part: &str, tag: &str) -> String {
    format!("localhost/weir/{part}:{tag}")
}

/// A Debian with these packages, of the same release as this machine's, so that programs built here find the C library they know; made once.
fn debian(name: &str, packages: &str, architecture: Architecture) -> Result<PathBuf> {
    let release = std::fs::read_to_string("/etc/os-release")?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release names no Debian release to make a base image from")?;
    let path = cache_root()?.join(format!("{name}-{suite}-{}.tar", architecture.name()));
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
        .args([&format!("--include={packages}"), suite])
        .arg(&part))?;
    std::fs::rename(&part, &path)?;
    Ok(path)
}

fn run(command: &mut Command) -> Result<()> {
    said(command).map(drop)
}

/// What a program that ends well wrote, without the last line's end.
fn said(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}{said}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said.trim().to_owned())
}
