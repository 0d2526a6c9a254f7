//! The engine's kernels for ARM, on an emulated processor: with the dot product of bytes, and without.

use anyhow::Result;
use weir_e2e::cluster::Architecture;

use crate::test::{cargo, package, runs, rustup};

const ARM: Architecture = Architecture::Arm64;
/// Compiler, C library and emulator.
const PACKAGES: &str = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static";
/// Where the packages put the libraries.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// One processor with everything, and the first one of 64 bits.
const PROCESSORS: [&str; 2] = ["max", "cortex-a53"];

/// Runs the tests that compare every level of instructions with the plain code.
pub(crate) fn test() -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        println!("== the kernels of this machine are tested with everything else");
        return Ok(());
    }
    let compiler = ARM.tool("gcc");
    let is_installed = || runs(&compiler) && runs(ARM.emulator());
    println!(
        "{}",
        package("a compiler and an emulator of ARM", PACKAGES, is_installed)
    );
    if !is_installed() {
        return Ok(());
    }
    rustup(&["target", "add", ARM.target()])?;
    let (linker, runner) = (ARM.setting("LINKER"), ARM.setting("RUNNER"));
    let emulator = format!("{} -L {LIBRARIES}", ARM.emulator());
    for processor in PROCESSORS {
        let settings = [
            (linker.as_str(), compiler.as_str()),
            (&runner, &emulator),
            ("QEMU_CPU", processor),
        ];
        let tests = [
            "test",
            "--package",
            "weir-model",
            "--lib",
            "--target",
            ARM.target(),
        ];
        cargo(
            &[&tests[..], &["--quiet", "--", "kernels"]].concat(),
            &settings,
        )?;
    }
    Ok(())
}
