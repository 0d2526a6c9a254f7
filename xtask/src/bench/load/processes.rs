//! The processes of one measurement: what answers, a gateway before it, and the client.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::super::http::Connection;
use super::super::target;
use super::rows::{Row, Subject};
use crate::repo;

const KEY: &str = "bench-dev-key";
const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const GATEWAY: &str = "127.0.0.1:8480";
const BACKEND: &str = "127.0.0.1:9001";
const PATIENCE: Duration = Duration::from_secs(90);

/// A child; killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything but the client.
pub(super) struct Site {
    /// Dropped in this order: the gateway first.
    gateway: Option<Process>,
    _behind: Process,
    url: String,
    folder: TempDir,
}

impl Site {
    /// Starts what answers and the gateway, and waits until a request is answered.
    pub(super) fn start(row: &Row, subject: &Subject<'_>) -> Result<Self> {
        let base = target().join("bench");
        fs::create_dir_all(&base)?;
        // On the disk that the build is on: in a file system in memory every commit would be free.
        let folder = TempDir::new_in(base)?;
        let interval = row.interval_ms.to_string();
        let (behind, gateway, url) = match subject {
            Subject::Weir(mode) => {
                let socket = folder.path().join("worker");
                let mut worker = tool();
                worker.args([
                    "worker",
                    "--digest",
                    DIGEST,
                    "--interval-ms",
                    &interval,
                    "--listen",
                ]);
                let worker = spawn(worker.arg(&socket), &folder, "worker")?;
                let snapshot = folder.path().join("snapshot.json");
                let mut make = tool();
                make.args(["snapshot", "--digest", DIGEST, "--key", KEY, "--worker"]);
                make.arg(&socket).arg("--text");
                let printed = make
                    .arg(repo::root().join("examples/models/tiny-chat-v1"))
                    .output()?;
                ensure!(printed.status.success(), "no snapshot could be made");
                fs::write(&snapshot, printed.stdout)?;
                let mut gateway = Command::new(release("weir-gateway"));
                gateway.args([
                    "--listen",
                    GATEWAY,
                    "--admin",
                    "127.0.0.1:9480",
                    "--durability",
                ]);
                gateway.arg(mode.durability).arg("--snapshot").arg(snapshot);
                gateway.arg("--data").arg(folder.path().join("data"));
                let path = if mode.is_native {
                    "inference"
                } else {
                    "v1/chat/completions"
                };
                let url = format!("http://{GATEWAY}/{path}");
                (worker, Some(spawn(&mut gateway, &folder, "gateway")?), url)
            }
            Subject::Direct | Subject::Peer(_) => {
                let mut backend = tool();
                backend.args(["backend", "--listen", BACKEND, "--interval-ms", &interval]);
                let backend = spawn(&mut backend, &folder, "backend")?;
                let (gateway, at) = match subject {
                    Subject::Peer(peer) => {
                        let mut command = peer.command(BACKEND, GATEWAY, folder.path())?;
                        (Some(spawn(&mut command, &folder, "gateway")?), GATEWAY)
                    }
                    _ => (None, BACKEND),
                };
                (backend, gateway, format!("http://{at}/v1/chat/completions"))
            }
        };
        let site = Self {
            gateway,
            _behind: behind,
            url,
            folder,
        };
        site.wait_ready()?;
        Ok(site)
    }

    fn wait_ready(&self) -> Result<()> {
        let address = if self.gateway.is_some() {
            GATEWAY
        } else {
            BACKEND
        };
        let chat = r#"{"model":"fake","messages":[{"role":"user","content":"x"}],"max_tokens":1}"#;
        let until = Instant::now() + PATIENCE;
        loop {
            let answered = Connection::open(&format!("http://{address}"), KEY)
                .and_then(|mut connection| connection.post("/v1/chat/completions", chat));
            match answered {
                Ok(200) => return Ok(()),
                _ if Instant::now() < until => std::thread::sleep(Duration::from_millis(100)),
                Ok(status) => bail!("not ready: status {status}; {}", self.log()),
                Err(error) => return Err(error.context(self.log())),
            }
        }
    }

    /// Puts the load on it; what the client found.
    pub(super) fn load(&self, row: &Row) -> Result<Value> {
        let mut client = tool();
        let (n, tokens) = (row.n.to_string(), row.tokens.to_string());
        let mode = if row.is_requests() {
            "requests"
        } else {
            "streams"
        };
        client.args([
            mode, "--url", &self.url, "--key", KEY, "--n", &n, "--tokens", &tokens,
        ]);
        if let Some(gateway) = &self.gateway {
            client.arg("--pids").arg(gateway.0.id().to_string());
        }
        if row.is_requests() {
            client.arg("--rate").arg(row.rate.to_string());
        } else {
            client.arg("--ramp-ms").arg(row.ramp_ms.to_string());
            client
                .arg("--per-connection")
                .arg(row.per_connection.to_string());
            // Three times as long as it takes where nobody is late.
            let ideal = u64::from(row.ramp_ms) + u64::from(row.tokens * row.interval_ms);
            client
                .arg("--timeout-s")
                .arg((ideal * 3 / 1000).to_string());
        }
        let output = client.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "the client failed");
        let mut result: Value = serde_json::from_slice(&output.stdout).context("no result")?;
        if let Some(complete) = result["complete"].as_u64() {
            result["incomplete"] = (u64::from(row.n) - complete).into();
        }
        Ok(result)
    }

    /// The end of what the gateway said.
    pub(super) fn log(&self) -> String {
        let bytes = fs::read(self.folder.path().join("gateway.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

fn release(name: &str) -> PathBuf {
    target().join("release").join(name)
}

fn tool() -> Command {
    Command::new(release("weir-load"))
}

fn spawn(command: &mut Command, folder: &TempDir, name: &str) -> Result<Process> {
    let log = File::create(folder.path().join(format!("{name}.log")))?;
    let child = command
        .env("WEIR_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    let program = command.get_program().display();
    Ok(Process(
        child.with_context(|| format!("cannot start {program}"))?,
    ))
}
