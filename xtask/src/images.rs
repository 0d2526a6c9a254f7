//! `cargo xtask images`: the three images for a family of processors, measured, and their programs started in them.

use anyhow::{Context as _, Result, bail};
use weir_e2e::cluster::{Architecture, Images};

use crate::test::{cargo, package, runs, rustup, target};

const HELP: &str = "\
cargo xtask images [--arch ARCH]   makes the images of operator, gateway and worker from the Dockerfiles, and says what they weigh

  --arch  amd64 or arm64 [default: that of this machine]

The programs are compiled here for release, with a cross compiler where they are for other processors, and run in their image, emulated
then. The base is a Debian of this machine's release, so that no registry of images is asked; the libraries of a GPU are left out.
";
/// What makes and opens images.
const TOOLS: &str = "buildah mmdebstrap";
/// Compiles for the other family, and runs its programs.
const CROSS: &str =
    "gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static";

/// Runs the command.
pub(crate) fn run(options: &[&str]) -> Result<String> {
    match options {
        [] => of(Architecture::HERE),
        ["--arch", name] => of(Architecture::named(name)?),
        _ => bail!("{HELP}"),
    }
}

/// Of all families of processors.
pub(crate) fn all() -> Result<()> {
    for architecture in [Architecture::Amd64, Architecture::Arm64] {
        println!("{}", of(architecture)?);
    }
    Ok(())
}

fn of(architecture: Architecture) -> Result<String> {
    let programs = compile(architecture)?;
    let mut images = Images::of(architecture)?;
    let mut lines = vec![format!(
        "{:<9} {:<6} {:>9} {:>9} {:>9}  digest",
        "image", "for", "program", "pulled", "its base"
    )];
    for part in ["operator", "gateway", "worker"] {
        images.weir(part, &programs)?;
        let found = images.measure(part)?;
        lines.push(format!(
            "{part:<9} {:<6} {:>5.1} MiB {:>5.1} MiB {:>5.1} MiB  {} ({})",
            architecture.name(),
            mebibytes(found.program),
            mebibytes(found.pulled),
            mebibytes(found.base),
            found.digest,
            found.version,
        ));
    }
    Ok(lines.join("\n"))
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The folder of the programs.
fn compile(architecture: Architecture) -> Result<std::path::PathBuf> {
    let triple = architecture.target();
    let mut settings = Vec::new();
    let mut needed = TOOLS.to_owned();
    let compiler = architecture.tool("gcc");
    let linker = architecture.setting("LINKER");
    let is_foreign = architecture != Architecture::HERE;
    if is_foreign {
        if architecture == Architecture::Amd64 {
            bail!("images for amd64 are made on amd64; this machine can make those for arm64");
        }
        needed = format!("{needed} {CROSS}");
        settings.push((linker.as_str(), compiler.as_str()));
    }
    let is_installed = || {
        let tools = runs("buildah") && runs("mmdebstrap");
        tools && (!is_foreign || (runs(&compiler) && runs(architecture.emulator())))
    };
    println!("{}", package("what makes images", &needed, is_installed));
    if !is_installed() {
        bail!("images cannot be made without {needed}");
    }
    if is_foreign {
        rustup(&["target", "add", triple])?;
    }
    let mut arguments = vec![
        "build",
        "--release",
        "--quiet",
        "--locked",
        "--bins",
        "--target",
        triple,
    ];
    for part in ["weir-operator", "weir-gateway", "weir-worker"] {
        arguments.extend(["--package", part]);
    }
    cargo(&arguments, &settings).context("the programs do not compile")?;
    Ok(target().join(triple).join("release"))
}
