//! A PostgreSQL server of a test's own, from the Debian packages, in a temporary folder, reached by a socket in it.
//!
//! Needs only the standard library: tests of other crates take this file in by its path.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The server refuses to run as root; tests that are root use this user of the base system.
const USER: &str = "nobody";
/// How long a server may take to come up on a busy machine.
const UP_WITHIN: Duration = Duration::from_mins(1);

/// A server; stopped and removed when dropped.
pub struct PostgresServer {
    bin: PathBuf,
    folder: PathBuf,
    databases: AtomicU32,
}

/// Where Debian puts the newest server's programs; `None` where none is installed.
pub fn bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<(u32, PathBuf)> = versions
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().map(|(_, bin)| bin)
}

fn is_root() -> bool {
    // Who owns what this process makes is who it is.
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

/// A command of an unprivileged user, in a folder that it can see.
fn unprivileged(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                USER,
                "--regid",
                "nogroup",
                "--clear-groups",
                "--",
            ])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/").env("LC_ALL", "C.UTF-8");
    command
}

fn run(command: &mut Command) -> Result<Output, String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {said}", output.status))
}

impl PostgresServer {
    /// Starts a server, or says why there is none to start: no test may take a missing server for a passed test.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or does not come up.
    pub fn start() -> Result<Self, String> {
        let bin = bin().ok_or(
            "PostgreSQL is not installed (Debian: apt-get install postgresql; `cargo xtask test` does it)",
        )?;
        // Its own even where a process with the same number left one: `create_dir` refuses one that is there, whose server may be at work.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let moment = since.unwrap_or_default().as_nanos();
        let name = format!("weir-pg-{}-{number}-{moment:x}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        if is_root() {
            run(Command::new("chown")
                .arg(format!("{USER}:nogroup"))
                .arg(&folder))?;
        }
        let server = Self {
            bin,
            folder,
            databases: AtomicU32::new(0),
        };
        run(unprivileged(&server.bin.join("initdb"))
            .args([
                "--auth=trust",
                "--username=weir",
                "--no-sync",
                "--encoding=UTF8",
                "-D",
            ])
            .arg(server.data()))?;
        server.up()?;
        server.watch()?;
        Ok(server)
    }

    /// Leaves somebody behind who stops the server and removes its folder should this process be killed.
    fn watch(&self) -> Result<(), String> {
        const WATCH: &str = "while kill -0 \"$1\" 2>/dev/null; do sleep 0.5; done
            kill -QUIT \"$(head -1 \"$2/data/postmaster.pid\")\" 2>/dev/null; sleep 0.5; rm -rf \"$2\"";
        Command::new("setsid")
            .args(["sh", "-c", WATCH, "watch", &std::process::id().to_string()])
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(drop)
            .map_err(|error| format!("cannot start a watch over the server: {error}"))
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the server on its data; it listens on a socket only.
    ///
    /// # Errors
    /// It does not come up.
    pub fn up(&self) -> Result<(), String> {
        let options = format!(
            "-k {} -c listen_addresses= -c max_connections=200 -c shared_buffers=64MB -c log_min_messages=warning",
            self.folder.display()
        );
        run(unprivileged(&self.bin.join("pg_ctl"))
            .args(["start", "--wait", "--timeout"])
            .arg(UP_WITHIN.as_secs().to_string())
            .arg("-D")
            .arg(self.data())
            .arg("-l")
            .arg(self.folder.join("log"))
            .args(["-o", &options])
            .stdout(Stdio::null()))
        .map(drop)
    }

    /// Stops it. `immediate` is a crash: nothing is written, the next start recovers.
    ///
    /// # Errors
    /// It does not stop.
    pub fn down(&self, how: Stop) -> Result<(), String> {
        let mode = match how {
            Stop::Kill => return self.kill(),
            Stop::Crash => "immediate",
            Stop::Fast => "fast",
        };
        run(unprivileged(&self.bin.join("pg_ctl"))
            .args(["stop", "--wait", "-m", mode, "-D"])
            .arg(self.data()))
        .map(drop)
    }

    /// Kills its first process and then all that are left, and waits until they are gone.
    fn kill(&self) -> Result<(), String> {
        let first = self.pid().ok_or("the server has no process")?;
        run(Command::new("kill").args(["-9", &first.to_string()]))?;
        let until = Instant::now() + UP_WITHIN;
        loop {
            let left = processes_in(&self.data());
            if left.is_empty() {
                // Where nobody waits for the first one its number stays taken, and the next start would think that it lives.
                for lock in ["data/postmaster.pid", ".s.PGSQL.5432.lock"] {
                    drop(std::fs::remove_file(self.folder.join(lock)));
                }
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("the server's processes do not die: {left:?}"));
            }
            // Some end by themselves when they miss the first one.
            drop(run(Command::new("kill").arg("-9").args(&left)));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether its first process lives.
    pub fn is_up(&self) -> bool {
        self.pid().is_some_and(|pid| lives(&pid.to_string()))
    }

    /// The server's process, to be stopped and continued.
    pub fn pid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }

    /// Makes a database and says how to reach it.
    ///
    /// # Errors
    /// The server does not make it.
    pub fn database(&self) -> Result<String, String> {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        run(unprivileged(&self.bin.join("createdb"))
            .args(["-U", "weir", "-h"])
            .arg(&self.folder)
            .arg(&name))?;
        Ok(self.url(&name))
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// How a database of this server is reached.
    pub fn url(&self, database: &str) -> String {
        let socket = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://weir@{socket}/{database}")
    }

    /// Runs SQL and gives what it prints.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let output = run(unprivileged(&self.bin.join("psql"))
            .args(["-U", "weir", "-Atq", "-v", "ON_ERROR_STOP=1", "-h"])
            .arg(&self.folder)
            .args(["-d", database, "-c", sql]))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Processes that live in a folder, as all of a server's do in its data.
fn processes_in(folder: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at == folder))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|pid| lives(pid))
        .collect()
}

/// Whether a process is there and no zombie.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    !matches!(after.split_whitespace().next(), None | Some("Z"))
}

static NEXT: AtomicU32 = AtomicU32::new(1);

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `kill -9` of all its processes, the first one first.
    Kill,
    /// As if its machine's process had died.
    Crash,
    /// In order, cutting connections.
    Fast,
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // It may be down already.
        drop(self.down(Stop::Crash));
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
