//! `cargo xtask test`: everything a change must pass, and the installation of what that needs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use weir_e2e::cluster::Layer;

use crate::repo::root;

/// The peers whose clients and tools the tests run, pinned: a test must not change because a package did.
const PYTHON_PACKAGES: &[&str] = &[
    "openai==3.57.0",
    // With it the client speaks HTTP/2.
    "h2==4.4.1",
    "pytest==9.2.0",
    "jsonschema==4.26.0",
    "model-signing==1.1.1",
    "cryptography==50.0.2",
    // model-signing imports it without declaring it.
    "pyOpenSSL==26.4.0",
];

/// Compiles the kernels of GPUs (90 MB); of the version that drivers of the 580 line take, and that the worker's image has.
const GPU_COMPILER: &str = "nvidia-cuda-nvrtc==13.0.88";

/// The other official client, pinned likewise; where npm is not installed its test is skipped.
const NODE_PACKAGE: &str = "openai@6.49.0";

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What every change must pass.
    Usual,
    /// With full fault counts.
    Full,
}

impl Extent {
    /// How often the tests that count faults inject one: kills of processes (with each store), crash points in process, worlds in which
    /// the power is cut eight times, request keys that two gateways are asked for at once, schemas that outputs follow, and how many times
    /// the usual number of hostile clients come; changes of each file a parser is given, and how many seconds the engine's soak takes; deaths in the model of a run's life, seeds of the simulations of queues and of rollouts, and whether
    /// the larger worlds of a rollout's pointers are looked through.
    fn counts(self) -> [(&'static str, &'static str); 13] {
        match self {
            Self::Usual => [
                ("WEIR_KILLS", "60"),
                ("WEIR_STORE_KILLS", "60"),
                ("WEIR_CRASHES", "300"),
                ("WEIR_POWER_CUT_SEEDS", "40"),
                ("WEIR_RACE_KEYS", "200"),
                ("WEIR_SCHEMAS", "50"),
                ("WEIR_MODEL_CRASHES", "1"),
                ("WEIR_SEEDS", "1"),
                ("WEIR_ROLLOUTS", "3000"),
                ("WEIR_HOSTILE", "1"),
                ("WEIR_FUZZ_ROUNDS", "400"),
                ("WEIR_SOAK_S", "0"),
                ("WEIR_POINTERS", "0"),
            ],
            Self::Full => [
                ("WEIR_KILLS", "500"),
                ("WEIR_STORE_KILLS", "500"),
                ("WEIR_CRASHES", "10000"),
                ("WEIR_POWER_CUT_SEEDS", "1250"),
                ("WEIR_RACE_KEYS", "10000"),
                ("WEIR_SCHEMAS", "1000"),
                ("WEIR_MODEL_CRASHES", "2"),
                ("WEIR_SEEDS", "20"),
                ("WEIR_ROLLOUTS", "100000"),
                ("WEIR_HOSTILE", "10"),
                ("WEIR_FUZZ_ROUNDS", "100000"),
                ("WEIR_SOAK_S", "1800"),
                ("WEIR_POINTERS", "1"),
            ],
        }
    }
}

/// A step and how long it took.
struct Done {
    name: &'static str,
    took: Duration,
}

/// Runs all steps; the first that fails ends it.
pub(crate) fn run(extent: Extent) -> Result<String> {
    let mut done = Vec::new();
    let mut step = |name: &'static str, work: &dyn Fn() -> Result<()>| -> Result<()> {
        println!("== {name}");
        let start = Instant::now();
        work().with_context(|| format!("step \"{name}\" failed"))?;
        done.push(Done {
            name,
            took: start.elapsed(),
        });
        Ok(())
    };
    step("format", &|| cargo(&["fmt", "--all", "--check"], &[]))?;
    step("structure", &|| {
        for check in [crate::crds::check, crate::deps::check, crate::tidy::check] {
            println!("{}", check()?);
        }
        Ok(())
    })?;
    step("lints", &|| {
        cargo(
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
            &[],
        )
    })?;
    packages();
    let python = python()?;
    let node = node()?.map_or_else(String::new, |folder| folder.display().to_string());
    let python_text = python.display().to_string();
    let nvrtc = gpu_libraries()?;
    step("unit and component tests", &|| {
        unit_tests(extent, &python_text, &nvrtc)
    })?;
    if extent == Extent::Full {
        step("kernels of ARM", &crate::arm::test)?;
        step("images", &crate::images::all)?;
    }
    step("release build", &|| {
        cargo(&["build", "--release", "--quiet", "--bin", "weir"], &[])
    })?;
    let weir = target().join("release/weir").display().to_string();
    if extent == Extent::Full {
        step("broken build", &|| {
            broken_build(&target().join("faults").display().to_string())
        })?;
    }
    let layers = names(&crate::e2e::ready(extent));
    step("end-to-end tests", &|| {
        let settings = [
            ("WEIR_CLUSTER_LAYERS", layers.as_str()),
            ("WEIR_PYTHON", &python_text),
            ("WEIR_NODE", &node),
        ];
        end_to_end(extent, &weir, &settings)
    })?;
    let lines: Vec<String> = done
        .iter()
        .map(|done| format!("{:>7.1} s  {}", done.took.as_secs_f64(), done.name))
        .collect();
    Ok(format!("all steps passed\n{}", lines.join("\n")))
}

/// Everything but the tests on real processes. What is in the folder `nvrtc` compiles the kernels of GPUs.
fn unit_tests(extent: Extent, python: &str, nvrtc: &str) -> Result<()> {
    let mut settings = vec![("WEIR_PYTHON_SIGN", python), ("LD_LIBRARY_PATH", nvrtc)];
    settings.extend(extent.counts());
    let tests = ["test", "--workspace", "--exclude", "weir-e2e", "--quiet"];
    cargo(&tests, &settings)
}

/// A build whose durability can be broken on purpose.
fn broken_build(folder: &str) -> Result<()> {
    let features = ["--features", "faults", "--target-dir", folder];
    let build = ["build", "--release", "--quiet", "--bin", "weir"];
    cargo(&[&build[..], &features[..]].concat(), &[])
}

/// On real processes, with the official clients, and on a cluster.
fn end_to_end(extent: Extent, weir: &str, more: &[(&str, &str)]) -> Result<()> {
    let mut settings = vec![("WEIR_BIN", weir)];
    settings.extend(more);
    settings.extend(extent.counts());
    let broken = target().join("faults/release/weir").display().to_string();
    if extent == Extent::Full {
        settings.push(("WEIR_BROKEN_BIN", &broken));
    }
    let arguments = [
        "test",
        "--package",
        "weir-e2e",
        "--",
        "--test-threads",
        "2",
        "--nocapture",
    ];
    cargo(&arguments, &settings)
}

/// Only the tests on a cluster, on these layers.
pub(crate) fn cluster(layers: &[Layer]) -> Result<String> {
    let layers = names(layers);
    cluster_with(&[("WEIR_CLUSTER_LAYERS", &layers)])?;
    Ok(format!("the tests on a cluster passed: {layers}"))
}

/// The same with these settings.
pub(crate) fn cluster_with(settings: &[(&str, &str)]) -> Result<()> {
    let arguments = ["test", "--package", "weir-e2e", "--test", "cluster"];
    cargo(&arguments, settings)
}

fn names(layers: &[Layer]) -> String {
    let names: Vec<&str> = layers.iter().map(|layer| layer.name()).collect();
    names.join(",")
}

pub(crate) fn cargo(arguments: &[&str], settings: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(root());
    for (name, value) in settings {
        command.env(name, value);
    }
    execute(&mut command)
}

/// Whether a program is there and says its version.
pub(crate) fn runs(program: &str) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|said| said.status.success())
}

/// Asks the installer of compilers for something.
pub(crate) fn rustup(arguments: &[&str]) -> Result<()> {
    execute(Command::new("rustup").args(arguments).current_dir(root()))
}

fn execute(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    ensure!(
        status.success(),
        "{} {:?} ended with {status}",
        command.get_program().display(),
        command.get_args().collect::<Vec<_>>()
    );
    Ok(())
}

/// A Python with the pinned packages, made once per set of pins.
fn python() -> Result<PathBuf> {
    let venv = target().join("python");
    let python = venv.join("bin/python");
    let stamp = venv.join("packages");
    let wanted = PYTHON_PACKAGES.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    println!(
        "== installing {} for Python into {}",
        PYTHON_PACKAGES.join(", "),
        venv.display()
    );
    if venv.exists() {
        std::fs::remove_dir_all(&venv).context("cannot remove the old Python environment")?;
    }
    execute(Command::new("python3").args(["-m", "venv"]).arg(&venv)).context(
        "Python 3 with its venv module is needed (Debian: apt-get install python3-venv)",
    )?;
    execute(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(PYTHON_PACKAGES),
    )?;
    std::fs::write(&stamp, wanted)?;
    Ok(python)
}

/// Where the compiler for GPUs is, for the loader; installed into the Python of the tests where it is not there. Of the other library
/// that a GPU needs beside its driver, cuBLASLt, a machine with one has its own.
pub(crate) fn gpu_libraries() -> Result<String> {
    let python = python()?;
    let find = || -> Result<Option<String>> {
        let script =
            "import nvidia.cu13, os; print(os.path.join(list(nvidia.cu13.__path__)[0], 'lib'))";
        let output = Command::new(&python).args(["-c", script]).output()?;
        let folder = String::from_utf8(output.stdout)?;
        Ok(output.status.success().then_some(folder))
    };
    let folder = if let Some(folder) = find()? {
        folder
    } else {
        println!("== installing {GPU_COMPILER}");
        let install = ["-m", "pip", "install", "--quiet", GPU_COMPILER];
        execute(Command::new(&python).args(install))?;
        find()?.context("the compiler for GPUs is not where its package puts it")?
    };
    let others = std::env::var("LD_LIBRARY_PATH").ok();
    let folders = [Some(folder.trim().to_owned()), others];
    Ok(folders.into_iter().flatten().collect::<Vec<_>>().join(":"))
}

/// The Debian packages that tests need.
fn packages() {
    println!(
        "{}",
        package("PostgreSQL", "postgresql", || weir_e2e::postgres::bin()
            .is_some())
    );
    println!(
        "{}",
        package(
            "Prometheus",
            "prometheus",
            weir_e2e::prometheus::is_installed
        )
    );
    println!(
        "{}",
        package("Chromium", "chromium", weir_e2e::browser::is_installed)
    );
}

/// Sees to it that a Debian package is there for the tests that need it; says what came of it. Where it cannot be installed those tests say
/// that they were skipped.
pub(crate) fn package(what: &str, packages: &str, is_installed: impl Fn() -> bool) -> String {
    if is_installed() {
        return format!("== {what} is installed");
    }
    let install = format!("apt-get install -y --no-install-recommends {packages}");
    println!("== installing {what} ({install})");
    let installed = Command::new("sh")
        .args([
            "-c",
            &format!("{install} >/dev/null || (apt-get update >/dev/null && {install} >/dev/null)"),
        ])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status();
    if is_installed() {
        return format!("== {what} is installed now");
    }
    format!(
        "== SKIPPING every test on {what}: it is not installed and could not be ({installed:?}); as root run {install}"
    )
}

/// A folder with the pinned package for Node, made once per pin; none without npm.
fn node() -> Result<Option<PathBuf>> {
    let found = Command::new("npm").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("== no npm: the official client for Node is not tested");
        return Ok(None);
    }
    let folder = target().join("node");
    let stamp = folder.join("package");
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == NODE_PACKAGE) {
        return Ok(Some(folder));
    }
    std::fs::create_dir_all(&folder)?;
    println!(
        "== installing {NODE_PACKAGE} for Node into {}",
        folder.display()
    );
    execute(
        Command::new("npm")
            .args([
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--no-save",
                "--prefix",
            ])
            .arg(&folder)
            .arg(NODE_PACKAGE),
    )?;
    std::fs::write(&stamp, NODE_PACKAGE)?;
    Ok(Some(folder))
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| Path::new(&dir).to_owned())
}
