//! Other gateways from PyPI, pinned, in a Python environment of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::target;

/// Name of a peer, what is installed for it, and the program.
const PEERS: &[(&str, &str, &str)] = &[
    ("smg", "smg==1.13.0", "smg"),
    ("vllm-router", "vllm-router==0.1.17", "vllm-router"),
    ("litellm", "litellm[proxy]==1.108.7", "litellm"),
];

/// A peer that is installed.
pub(super) struct Peer {
    pub(super) name: String,
    program: PathBuf,
}

/// Installs those that are wanted; what cannot be installed is said and left out.
pub(super) fn install(wanted: &[String]) -> Vec<Peer> {
    let folder = target().join("python-peers");
    let mut all = Vec::new();
    for (name, package, program) in PEERS {
        if !wanted.iter().any(|peer| peer == name) {
            continue;
        }
        match installed(&folder, package, program) {
            Ok(program) => all.push(Peer {
                name: package.replace("==", " ").replace("[proxy]", ""),
                program,
            }),
            Err(error) => println!("{name} is not measured: {error:#}"),
        }
    }
    all
}

/// Names of all peers.
pub(crate) fn names() -> Vec<String> {
    PEERS.iter().map(|(name, ..)| (*name).to_owned()).collect()
}

fn installed(folder: &Path, package: &str, program: &str) -> Result<PathBuf> {
    let bin = folder.join("bin");
    let stamp = folder.join(format!("{program}.installed"));
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == package) {
        return Ok(bin.join(program));
    }
    println!("installing {package} into {}", folder.display());
    if !bin.join("pip").exists() {
        execute(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    execute(Command::new(bin.join("pip")).args(["install", "--quiet", package]))?;
    std::fs::write(&stamp, package)?;
    Ok(bin.join(program))
}

fn execute(command: &mut Command) -> Result<()> {
    let status = command.status();
    let program = command.get_program().display().to_string();
    let status = status.with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

impl Peer {
    /// Of thousands of streams it brings none to its end: only its requests are measured.
    pub(super) fn is_slow(&self) -> bool {
        self.name.starts_with("litellm")
    }

    /// The gateway at `listen` in front of a backend; none of them checks a key but litellm, which does not start without one.
    pub(super) fn command(&self, backend: &str, listen: &str, folder: &Path) -> Result<Command> {
        let (host, port) = listen.split_once(':').context("no port")?;
        let url = format!("http://{backend}");
        let mut command = Command::new(&self.program);
        if self.name.starts_with("litellm") {
            let file = folder.join("litellm.yaml");
            let config = serde_json::json!({
                "model_list": [{"model_name": "fake", "litellm_params": {
                    "model": "openai/fake", "api_base": format!("{url}/v1"), "api_key": "none",
                }}],
                "general_settings": {"master_key": "bench-dev-key"},
            });
            std::fs::write(&file, config.to_string())?;
            command.args([
                "--host",
                host,
                "--port",
                port,
                "--num_workers",
                "1",
                "--config",
            ]);
            command.arg(file);
            return Ok(command);
        }
        if self.name.starts_with("smg") {
            command.args([
                "launch",
                "--disable-tokenizer-autoload",
                "--log-level",
                "warn",
            ]);
        }
        command.args(["--host", host, "--port", port, "--worker-urls", &url]);
        command.args([
            "--policy",
            "round_robin",
            "--max-concurrent-requests",
            "50000",
        ]);
        Ok(command)
    }
}
