//! The CUDA engine: what a step costs the host, then on a real GPU parity with the CPU backend and speed. Where there is no GPU it says so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use super::{Options, cargo, target};
use crate::repo;

/// The program's exit status where it finds no GPU.
const NO_GPU: i32 = 3;
/// Shapes of models, with random weights.
const SHAPES: [&str; 3] = ["0.5B", "1B", "8B"];

/// Runs everything, in the order in which a failure says most, and `transformers` of a Python where one is named. Raw lines are appended to
/// `target/bench/gpu.jsonl`. A machine that can build and fetch nothing is told the program and its libraries.
pub(super) fn run(options: &Options) -> Result<String> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    let models = repo::root().join("crates/model/tests/golden");
    let models = models.to_str().context("the repository's path is text")?;
    let libraries = match &options.libraries {
        // The driver may be in a folder that only this variable names.
        Some(folder) => match std::env::var("LD_LIBRARY_PATH") {
            Ok(others) => format!("{}:{others}", folder.display()),
            Err(_) => folder.display().to_string(),
        },
        None => crate::test::gpu_libraries()?,
    };
    let kernels = target().join("bench/kernels");
    std::fs::create_dir_all(&kernels)?;
    let start = |command: &mut Command| -> Result<Output> {
        let command = command.env("LD_LIBRARY_PATH", &libraries);
        let command = command.env("WEIR_KERNEL_CACHE", &kernels);
        command.output().context("cannot start a program")
    };
    keep(&start(Command::new(&program).arg("host"))?)?;
    let parity = start(Command::new(&program).args(["parity", models]))?;
    if parity.status.code() == Some(NO_GPU) {
        let why = String::from_utf8_lossy(&parity.stderr);
        return Ok(format!(
            "bench gpu: {}; besides the host's part nothing was measured, and nothing was run on a GPU",
            why.trim()
        ));
    }
    keep(&parity)?;
    keep(&start(Command::new(&program).arg("speed").args(SHAPES))?)?;
    match &options.python {
        Some(python) => {
            let script = repo::root().join("xtask/src/bench/peers/transformers_gpu.py");
            // Its own libraries of CUDA come with it.
            let mut peer = Command::new(python);
            let output = peer.arg(script).args(SHAPES).output();
            keep(&output.with_context(|| format!("cannot start {}", python.display()))?)?;
        }
        None => println!("transformers was not measured: --python names a Python that has it"),
    }
    for tool in ["memcheck", "racecheck"] {
        println!("{tool}: {}", sanitized(tool, &program, models, &start)?);
    }
    Ok("bench gpu: all lines are in target/bench/gpu.jsonl".to_owned())
}

/// Runs parity under a tool of compute-sanitizer, which looks at a library's kernels, too, and names those that it finds something in. Where
/// the tool cannot reach the device, as inside of some sandboxes, it says so of a program that only opens it, too.
fn sanitized(
    tool: &str,
    program: &Path,
    models: &str,
    start: &dyn Fn(&mut Command) -> Result<Output>,
) -> Result<String> {
    let under = |arguments: &[&str]| {
        let mut sanitizer = Command::new("compute-sanitizer");
        sanitizer.args(["--tool", tool, "--error-exitcode", "9"]);
        sanitizer.args(["--report-api-errors", "no"]);
        sanitizer.arg(program).args(arguments);
        start(&mut sanitizer)
    };
    let Ok(reached) = under(&["devices"]) else {
        return Ok("there is no compute-sanitizer".to_owned());
    };
    if !reached.status.success() {
        let why = String::from_utf8_lossy(&reached.stderr);
        return Ok(format!(
            "the tool does not reach the device: {}",
            why.trim()
        ));
    }
    keep(&under(&["parity", models])?).with_context(|| format!("{tool} found something"))?;
    Ok("nothing was found".to_owned())
}

fn build() -> Result<PathBuf> {
    let arguments = ["-p", "weir-cuda", "--features", "cuda", "--example", "gpu"];
    cargo(&[&["build", "--release"][..], &arguments[..]].concat())?;
    Ok(target().join("release/examples/gpu"))
}

/// Shows what a program said and keeps it.
fn keep(output: &Output) -> Result<()> {
    let folder = target().join("bench");
    std::fs::create_dir_all(&folder)?;
    append(&folder.join("gpu.jsonl"), &output.stdout)?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    ensure!(
        output.status.success(),
        "it ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(path)?;
    file.write_all(bytes)?;
    Ok(())
}
