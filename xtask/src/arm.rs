//! The engine's kernels for ARM, on an emulated processor: with the dot product of bytes, and without.

use std::process::Command;

use anyhow::Result;
use weir_e2e::cluster::Architecture;

use crate::test::{cargo, package, rustup};

/// Compiler, C library and emulator.
const PACKAGES: &str = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// Runs programs for ARM; the libraries are where the packages put them.
const EMULATOR: &str = "qemu-aarch64-static -L /usr/aarch64-linux-gnu";
/// One processor with everything, and the first one of 64 bits.
const PROCESSORS: [&str; 2] = ["max", "cortex-a53"];

/// Runs the tests that compare every level of instructions with the plain code.
pub(crate) fn test() -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        println!("== the kernels of this machine are tested with everything else");
        return Ok(());
    }
    let runs = |program: &str| {
        let said = Command::new(program).arg("--version").output();
        said.is_ok_and(|said| said.status.success())
    };
    let is_installed = || runs(COMPILER) && runs("qemu-aarch64-static");
    println!(
        "{}",
        package("a compiler and an emulator of ARM", PACKAGES, is_installed)
    );
    if !is_installed() {
        return Ok(());
    }
    rustup(&["target", "add", Architecture::Arm64.target()])?;
    for processor in PROCESSORS {
        let settings = [
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", EMULATOR),
            ("QEMU_CPU", processor),
        ];
        let tests = [
            "test",
            "--package",
            "weir-model",
            "--lib",
            "--target",
            Architecture::Arm64.target(),
        ];
        cargo(
            &[&tests[..], &["--quiet", "--", "kernels"]].concat(),
            &settings,
        )?;
    }
    Ok(())
}
