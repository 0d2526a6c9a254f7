//! One process of a cluster: started, frozen, killed and started again with the same arguments.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to end in order.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// A process and how to start it again; killed when dropped.
pub struct Process {
    name: &'static str,
    command: Vec<String>,
    folder: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// A process that is not started yet. Its log is `folder/logs/NAME.log`; while it runs its number stands in `folder/pids/NAME`, where
    /// a watch over the folder finds it (see [`watch`]).
    pub(crate) fn new(name: &'static str, folder: &Path, command: Vec<String>) -> Self {
        Self {
            name,
            command,
            folder: folder.to_owned(),
            child: Mutex::new(None),
        }
    }

    /// Where it logs.
    pub fn log(&self) -> PathBuf {
        self.folder.join("logs").join(format!("{}.log", self.name))
    }

    /// Starts it; nothing where it runs.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self) -> Result<()> {
        let mut child = self.child.lock();
        if child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
        {
            return Ok(());
        }
        for folder in ["logs", "pids"] {
            std::fs::create_dir_all(self.folder.join(folder))?;
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())?;
        let (program, arguments) = self.command.split_first().context("no program")?;
        let started = Command::new(program)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        std::fs::write(self.pid_file(), started.id().to_string())?;
        *child = Some(started);
        Ok(())
    }

    /// Ends it in order (SIGTERM), by force where it does not end in time.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + ENDS_WITHIN;
        while Instant::now() < deadline {
            if self.ended()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill()
    }

    /// Kills it.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        let mut child = self.child.lock();
        if let Some(mut child) = child.take() {
            child.wait()?;
        }
        drop(child);
        Ok(())
    }

    /// Stops it where it is, with its sockets open.
    ///
    /// # Errors
    /// It does not run.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Its number; `None` where it does not run.
    pub fn pid(&self) -> Option<Pid> {
        let child = self.child.lock();
        child
            .as_ref()
            .and_then(|child| i32::try_from(child.id()).ok())
            .and_then(Pid::from_raw)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = self.pid() else {
            bail!("\"{}\" does not run", self.name)
        };
        let forks = |program: &String| program == "nsenter" || program == "unshare";
        let target = if self.command.first().is_some_and(forks) {
            // It forked so that the program is in the namespace of processes.
            child_of(pid).unwrap_or(pid)
        } else {
            pid
        };
        kill_process(target, signal).with_context(|| format!("{signal:?} to \"{}\"", self.name))
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Errors
    /// The system does not say.
    pub fn ended(&self) -> Result<Option<String>> {
        let mut slot = self.child.lock();
        let Some(child) = slot.as_mut() else {
            return Ok(Some("not started".to_owned()));
        };
        let ended = child.try_wait()?.map(|status| status.to_string());
        if ended.is_some() {
            *slot = None;
        }
        Ok(ended)
    }

    /// Waits until `check` holds, but not longer than the process lives.
    ///
    /// # Errors
    /// It ended, or the time is over; the text holds the end of its log.
    pub fn wait_until(
        &self,
        what: &str,
        within: Duration,
        mut check: impl FnMut() -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        while !check() {
            if let Some(status) = self.ended()? {
                bail!(
                    "\"{}\" ended with {status} before {what}:\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            ensure!(
                Instant::now() < deadline,
                "\"{}\": waited {} s in vain for {what}:\n{}",
                self.name,
                within.as_secs(),
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let bytes = std::fs::read(self.log()).unwrap_or_default();
        let from = bytes.len().saturating_sub(4000);
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join("pids").join(self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that was frozen or never started needs nothing else.
        let _ = self.kill();
        let _ = std::fs::remove_file(self.pid_file());
    }
}

/// The first child of a process.
pub(super) fn child_of(parent: Pid) -> Option<Pid> {
    let wanted = format!("PPid:\t{}\n", parent.as_raw_nonzero());
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))
                .is_ok_and(|status| status.contains(&wanted))
        })
}

/// Leaves somebody behind who ends every process of `folder/pids`, runs `folder/cleanup` where there is one and removes the folder,
/// should this process be killed: a test that is interrupted leaves no API server running.
pub(crate) fn watch(folder: &Path) -> Result<()> {
    const WATCH: &str = "while kill -0 \"$1\" 2>/dev/null && [ -d \"$2\" ]; do sleep 0.5; done
        for it in \"$2\"/pids/*; do kill -KILL \"$(cat \"$it\")\"; done
        sleep 0.5; [ -x \"$2/cleanup\" ] && \"$2/cleanup\"; rm -rf \"$2\"";
    Command::new("setsid")
        .args(["sh", "-c", WATCH, "watch", &std::process::id().to_string()])
        .arg(folder)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
        .context("cannot start a watch over the cluster")
}
