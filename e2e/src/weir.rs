//! A running `weir up`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Client, wait_for};

/// The checkout.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("e2e lies in the repository")
}

/// The `weir` program: `WEIR_BIN`, else built here once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(path) = std::env::var_os("WEIR_BIN") {
            return path.into();
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--bin", "weir"])
            .current_dir(repository())
            .status()
            .expect("cargo runs");
        assert!(status.success(), "weir does not build");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository().join("target"), PathBuf::from);
        target.join("debug/weir")
    })
}

/// A `weir` command to add arguments to.
pub fn weir_command() -> Command {
    Command::new(program())
}

/// A running `weir up`; killed when dropped.
pub struct Weir {
    child: Child,
    lines: Mutex<Receiver<Value>>,
    /// Every line printed so far.
    pub printed: Vec<Value>,
    /// Where its state is.
    pub data: PathBuf,
    /// `http://…` or `https://…` of the gateway.
    pub listen: String,
    /// What its clients have to trust, where it vouches for itself.
    pub ca: Option<PathBuf>,
    /// `http://…` of the admin port.
    pub admin: String,
    /// From start to `ready`.
    pub ready_after: Duration,
}

impl Weir {
    /// Starts `weir up DIR --json` and waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready within a minute; the text holds what it printed.
    pub fn start(manifests: &Path, data: &Path) -> Result<Self> {
        let mut weir = Self::spawn(manifests, data, "127.0.0.1:0", &[])?;
        weir.wait_ready()?;
        Ok(weir)
    }

    /// Starts without waiting.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(manifests: &Path, data: &Path, listen: &str, more: &[&str]) -> Result<Self> {
        Self::spawn_as(weir_command(), manifests, data, listen, more)
    }

    /// The same with another program.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn_as(
        mut program: Command,
        manifests: &Path,
        data: &Path,
        listen: &str,
        more: &[&str],
    ) -> Result<Self> {
        let mut child = program
            .arg("up")
            .arg(manifests)
            .args([
                "--json",
                "--listen",
                listen,
                "--admin",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(data)
            .args(more)
            .env(
                "WEIR_LOG",
                std::env::var("WEIR_LOG").unwrap_or_else(|_| "warn".to_owned()),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting weir up")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            lines: Mutex::new(lines),
            printed: Vec::new(),
            data: data.to_owned(),
            listen: String::new(),
            ca: None,
            admin: String::new(),
            ready_after: Duration::ZERO,
        })
    }

    /// Waits for `ready`.
    ///
    /// # Errors
    /// It ends first, or a minute passes.
    pub fn wait_ready(&mut self) -> Result<()> {
        let started = Instant::now();
        let line = self.wait_line("ready", 60, |line| line["event"] == "ready")?;
        self.ready_after = started.elapsed();
        line["url"]
            .as_str()
            .context("url")?
            .clone_into(&mut self.listen);
        self.ca = line["ca"].as_str().map(PathBuf::from);
        self.admin = format!("http://{}", line["admin"].as_str().context("admin")?);
        Ok(())
    }

    /// Waits for a printed line.
    ///
    /// # Errors
    /// It ends first, or the time is over; the text holds what it printed.
    pub fn wait_line(
        &mut self,
        what: &str,
        seconds: u64,
        want: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            match self
                .lines
                .get_mut()
                .expect("no reader panics")
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    self.printed.push(line.clone());
                    if want(&line) {
                        return Ok(line);
                    }
                }
                Err(error) => {
                    let ended = self.child.try_wait()?;
                    bail!(
                        "no line {what:?} from weir up ({error}, exit {ended:?}); it printed {:#?}",
                        self.printed
                    );
                }
            }
        }
    }

    /// A client of one tenant.
    pub fn client(&self, key: &str) -> Client {
        Client::new(&self.listen, key)
    }

    /// The sum over all series of a metric on the admin port; 0 when there is none.
    ///
    /// # Errors
    /// The admin port does not answer.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let reply = Client::new(&self.admin, "").get("/metrics")?;
        let text = reply.body.as_str().context("metrics are text")?.to_owned();
        let value = |line: &str| -> Option<f64> {
            let (series, value) = line.rsplit_once(' ')?;
            let series_name = series.split('{').next()?;
            (series_name == name).then(|| value.parse().ok())?
        };
        Ok(text.lines().filter_map(value).sum())
    }

    /// Process id of `weir up`.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits")
    }

    /// Process ids of its workers.
    pub fn worker_pids(&self) -> Vec<i32> {
        let files = std::fs::read_dir(self.data.join("workers"))
            .into_iter()
            .flatten()
            .flatten();
        files
            .filter(|file| file.path().extension().is_some_and(|e| e == "json"))
            .filter_map(|file| {
                serde_json::from_slice::<Value>(&std::fs::read(file.path()).ok()?).ok()
            })
            .filter_map(|footprint| i32::try_from(footprint["pid"].as_i64()?).ok())
            .collect()
    }

    /// `kill -9` of `weir up` alone.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, then waits for the end.
    ///
    /// # Errors
    /// It does not end within `seconds`.
    pub fn stop(self, seconds: u64) -> Result<std::process::ExitStatus> {
        send(self.pid(), Signal::TERM);
        self.ended(seconds)
    }

    /// Waits for the end that it was told of before: a second signal would be an order to end at once.
    ///
    /// # Errors
    /// It does not end within `seconds`.
    pub fn ended(mut self, seconds: u64) -> Result<std::process::ExitStatus> {
        wait_for("weir up to end", seconds, || {
            self.child.try_wait().ok().flatten()
        })
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        for pid in self.worker_pids() {
            send(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal; a process that is gone already is what was wanted.
pub fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
