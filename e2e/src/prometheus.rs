//! A Prometheus server of a test's own, from the Debian package, and its tool for rules and formats.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Client, wait_for};

/// How a test says that it cannot run.
pub const MISSING: &str =
    "skipped: prometheus and promtool are not installed (cargo xtask test installs them)";

/// Whether both programs are there.
pub fn is_installed() -> bool {
    ["prometheus", "promtool"].into_iter().all(|program| {
        let found = Command::new(program).arg("--version").output();
        found.is_ok_and(|output| output.status.success())
    })
}

/// Runs `promtool`, with this on its input; its status and everything it said.
///
/// # Errors
/// It cannot be started.
pub fn promtool(arguments: &[&str], folder: &Path, input: &str) -> Result<(bool, String)> {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting promtool")?;
    let mut stdin = child.stdin.take().context("stdin")?;
    let input = input.to_owned();
    let feeder = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    // What it does not read it needs not.
    let _ = feeder.join();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Ok((output.status.success(), text.into_owned()))
}

/// A running server; stopped when dropped.
pub struct Prometheus {
    child: Child,
    client: Client,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes these `http://…` addresses twice a second, as the job `weir`.
    ///
    /// # Errors
    /// It does not come up.
    pub fn scraping(targets: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let hosts: Vec<&str> = targets
            .iter()
            .filter_map(|target| target.strip_prefix("http://"))
            .collect();
        let config = serde_json::json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
            "scrape_configs": [{"job_name": "weir", "static_configs": [{"targets": hosts}]}],
        });
        let path = folder.path().join("prometheus.yaml");
        std::fs::write(&path, serde_yaml::to_string(&config)?)?;
        let listen = free_address()?;
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={listen}"))
            .args(["--log.level=error", "--enable-feature=exemplar-storage"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("starting prometheus")?;
        let client = Client::new(&format!("http://{listen}"), "");
        let server = Self {
            child,
            client,
            _folder: folder,
        };
        wait_for("prometheus to be ready", 30, || {
            let reply = server.client.get("/-/ready").ok()?;
            (reply.status == 200).then_some(())
        })?;
        Ok(server)
    }

    /// The series that a query has now.
    ///
    /// # Errors
    /// The query is wrong, or nothing answers.
    pub fn query(&self, query: &str) -> Result<Vec<Value>> {
        let reply = self
            .client
            .get(&format!("/api/v1/query?query={}", encode(query)))?;
        ensure!(
            reply.body["status"] == "success",
            "the query {query:?} is refused: {}",
            reply.body
        );
        let result = &reply.body["data"]["result"];
        // A scalar is one pair.
        Ok(match reply.body["data"]["resultType"].as_str() {
            Some("scalar") => vec![result.clone()],
            _ => result.as_array().cloned().unwrap_or_default(),
        })
    }

    /// The exemplars of a metric's last minute.
    ///
    /// # Errors
    /// Nothing answers.
    pub fn exemplars(&self, metric: &str) -> Result<Vec<Value>> {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_secs();
        let (from, until) = (now - 60, now + 1);
        let path = format!("/api/v1/query_exemplars?query={metric}&start={from}&end={until}");
        let reply = self.client.get(&path)?;
        Ok(reply.body["data"].as_array().cloned().unwrap_or_default())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of this machine that nobody has at this moment.
///
/// # Errors
/// There is none.
pub fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

fn encode(query: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in query.bytes() {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
