//! A worker process: started as a child, or found again after this process was killed and started anew.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use weir_telemetry::shutdown::EXIT_CONFIGURATION;

use super::lines::Lines;

/// What is written beside a worker's socket, so that the next start can find the process again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Footprint {
    /// Process id.
    pub pid: i32,
    /// Start time of the process in clock ticks since boot: tells a reused pid from the worker's.
    pub start_ticks: u64,
    /// Hash over everything the process was started with.
    pub spec_hash: String,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It said itself that starting it again cannot help: what it was given is wrong.
    Configuration,
    /// Anything else, described for people.
    Other(String),
}

/// A running worker process.
#[derive(Debug)]
pub struct Process {
    child: Option<Child>,
    pidfd: AsyncFd<rustix::fd::OwnedFd>,
    footprint_path: PathBuf,
    /// What it prints on stdout.
    pub lines: Lines,
}

impl Process {
    /// Starts `command` in a session of its own, so that Ctrl-C at a terminal reaches only this process, which drains first.
    ///
    /// # Errors
    /// The program cannot be started, or its footprint cannot be written.
    pub fn start(mut command: Command, spec_hash: &str, footprint_path: &Path) -> io::Result<Self> {
        let (lines, stdout) = Lines::new()?;
        command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::inherit())
            .process_group(0);
        let child = command.spawn()?;
        let raw = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .ok_or(io::ErrorKind::NotFound)?;
        let pidfd = open_pidfd(raw)?;
        let footprint = Footprint {
            pid: raw,
            start_ticks: start_ticks(raw).unwrap_or_default(),
            spec_hash: spec_hash.to_owned(),
        };
        fs::write(footprint_path, serde_json::to_vec(&footprint)?)?;
        Ok(Self {
            child: Some(child),
            pidfd,
            footprint_path: footprint_path.to_owned(),
            lines,
        })
    }

    /// Takes over the process that a killed `weir up` left behind, if it still lives. A process that was started with something
    /// else than `spec_hash` is told to stop and is not taken over.
    pub fn find(spec_hash: &str, footprint_path: &Path) -> Option<Self> {
        let footprint: Footprint = serde_json::from_slice(&fs::read(footprint_path).ok()?).ok()?;
        let pidfd = open_pidfd(footprint.pid).ok()?;
        let lines = Lines::of(footprint.pid);
        // The descriptor pins the process: if the start time matches now, no other process can take its place later.
        if start_ticks(footprint.pid) != Some(footprint.start_ticks) {
            return None;
        }
        let process = Self {
            child: None,
            pidfd,
            footprint_path: footprint_path.to_owned(),
            lines,
        };
        if footprint.spec_hash == spec_hash {
            return Some(process);
        }
        process.signal(Signal::TERM);
        None
    }

    /// Waits for the end.
    pub async fn wait(&mut self) -> Exit {
        let exit = match &mut self.child {
            Some(child) => match child.wait().await {
                Ok(status) if status.code() == Some(EXIT_CONFIGURATION.into()) => {
                    Exit::Configuration
                }
                Ok(status) => Exit::Other(status.to_string()),
                Err(error) => Exit::Other(format!("cannot be waited for: {error}")),
            },
            None => match self.pidfd.readable().await {
                Ok(_) => Exit::Other(
                    "ended (found again after a restart, so its status is unknown)".to_owned(),
                ),
                Err(error) => Exit::Other(format!("cannot be watched: {error}")),
            },
        };
        let _ = fs::remove_file(&self.footprint_path);
        exit
    }

    /// Asks it to drain, waits, and kills what is still there.
    pub async fn stop(mut self, within: Duration) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(within, self.wait()).await.is_err() {
            self.signal(Signal::KILL);
            self.wait().await;
        }
    }

    fn signal(&self, signal: Signal) {
        // The only failure is that the process is gone, which is what a signal is for.
        let _ = pidfd_send_signal(self.pidfd.get_ref(), signal);
    }
}

#[expect(
    deprecated,
    reason = "`AsyncFd::new` is unsound only for types that may change their descriptor, which `OwnedFd` cannot; its successor is unsafe"
)]
fn open_pidfd(raw: i32) -> io::Result<AsyncFd<rustix::fd::OwnedFd>> {
    let pid = Pid::from_raw(raw).ok_or(io::ErrorKind::NotFound)?;
    AsyncFd::new(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
}

/// Field 22 of `/proc/PID/stat`. The command name in field 2 may hold blanks and parentheses, so counting starts after the last one.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    async fn says_up(process: &mut Process) {
        let said = async {
            while process.lines.whole() != ["up"] {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let within = Duration::from_secs(20);
        tokio::time::timeout(within, said).await.unwrap();
    }

    #[tokio::test]
    async fn a_process_left_behind_is_found_again_and_its_end_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.json");
        let mut first = Process::start(shell("echo up; exec sleep 60"), "s1", &path).unwrap();
        says_up(&mut first).await;
        let mut again = Process::find("s1", &path).expect("lives and matches");
        // What it said before is read again.
        says_up(&mut again).await;
        first.signal(Signal::KILL);
        // A zombie keeps its pid until it is reaped, and a pidfd is readable all the same.
        assert!(matches!(again.wait().await, Exit::Other(_)));
    }

    #[tokio::test]
    async fn a_process_of_another_spec_is_told_to_stop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.json");
        let mut first = Process::start(shell("exec sleep 60"), "s1", &path).unwrap();
        assert!(Process::find("s2", &path).is_none());
        assert!(matches!(first.wait().await, Exit::Other(text) if text.contains("15")));
        assert!(
            Process::find("s1", &path).is_none(),
            "the footprint went with the process"
        );
    }

    #[tokio::test]
    async fn a_process_that_ignores_the_request_to_stop_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.json");
        let script = "trap '' TERM; echo up; while :; do sleep 0.1; done";
        let mut process = Process::start(shell(script), "s", &path).unwrap();
        says_up(&mut process).await;
        process.stop(Duration::from_millis(200)).await;
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn exit_78_means_the_configuration_is_at_fault() {
        let dir = tempfile::tempdir().unwrap();
        let mut process =
            Process::start(shell("exit 78"), "s", &dir.path().join("w.json")).unwrap();
        assert_eq!(process.wait().await, Exit::Configuration);
    }
}
