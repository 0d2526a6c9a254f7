//! Gateways and workers as processes of their own, which a test may kill, freeze and start again.

mod snapshot;

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

pub use self::snapshot::{snapshot_tenant, write_snapshot};
use crate::checker::Dump;
use crate::{Client, Site, Weir, send, wait_for, weir_command};

/// A program that is built to be broken, and how: see `weir_store::fault`.
pub type Broken<'a> = Option<(&'a Path, &'a str)>;

/// The `weir` to run: the broken one, where one is given.
pub fn program(broken: Broken) -> Command {
    broken.map_or_else(weir_command, |(program, name)| {
        let mut command = Command::new(program);
        command.env("WEIR_BREAK", name);
        command
    })
}

/// A port that nobody has, below those that the system gives to outgoing connections: a process that dies finds it again.
fn port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let mine = u16::try_from(std::process::id() % 200).unwrap_or(0) * 100;
    for _ in 0..20_000 {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (mine + next) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no free port")
}

/// Resident memory of a process in bytes; 0 when it is gone.
pub fn resident_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// A process that comes and goes; killed when dropped.
pub struct Process {
    /// What it is called, in its log too.
    pub name: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    fn new(name: &str, folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            log: folder.join(format!("{name}.log")),
            child: None,
        }
    }

    fn spawn(&mut self, command: &mut Command) -> Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let level = std::env::var("WEIR_LOG").unwrap_or_else(|_| "warn".to_owned());
        command
            .env("WEIR_LOG", level)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().with_context(|| self.name.clone())?);
        Ok(())
    }

    /// Its id; 0 while it is not there.
    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref();
        child.map_or(0, |child| i32::try_from(child.id()).expect("a pid fits"))
    }

    /// Whether it was started and has not ended.
    pub fn is_up(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// It stands still.
    pub fn freeze(&self) {
        send(self.pid(), Signal::STOP);
    }

    /// It goes on.
    pub fn thaw(&self) {
        send(self.pid(), Signal::CONT);
    }

    /// Waits for its end, which something else brings about.
    ///
    /// # Errors
    /// It does not end within `seconds`.
    pub fn ended(&mut self, seconds: u64) -> Result<std::process::ExitStatus> {
        let child = self.child.as_mut().context("it was not started")?;
        wait_for(&format!("{} to end", self.name), seconds, || {
            child.try_wait().ok().flatten()
        })
    }

    /// SIGTERM, then waits for the end.
    ///
    /// # Errors
    /// It does not end within `seconds`.
    pub fn stop(&mut self, seconds: u64) -> Result<std::process::ExitStatus> {
        send(self.pid(), Signal::TERM);
        self.ended(seconds)
    }

    /// What it has logged; `WEIR_LOG` says how much that is.
    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.logged();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            eprintln!("== {} logged last:\n{}", self.name, last.join("\n"));
        }
    }
}

/// What a worker is told to load.
#[derive(Clone, Debug)]
pub struct Plan {
    path: PathBuf,
    digest: String,
}

impl Plan {
    /// As `weir up` makes it for the site's model.
    ///
    /// # Errors
    /// It does not serve the site.
    pub fn of(site: &Site) -> Result<Self> {
        let weir = Weir::start(&site.manifests(), &site.path().join("plan"))?;
        Self::at(site, &weir)
    }

    /// As a `weir up` that runs has made it.
    ///
    /// # Errors
    /// It has no worker.
    pub fn at(site: &Site, weir: &Weir) -> Result<Self> {
        let folder = std::fs::read_dir(weir.data.join("workers"))?;
        let mut plans = folder.flatten().map(|entry| entry.path());
        let made = plans.find(|path| path.extension().is_some_and(|e| e == "plan"));
        let path = site.path().join("worker.plan");
        std::fs::copy(made.context("no plan")?, &path)?;
        let plan: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let digest = plan["digest"].as_str().context("digest")?.to_owned();
        Ok(Self { path, digest })
    }
}

/// `weir worker`.
pub struct WorkerProcess {
    /// The process.
    pub process: Process,
    plan: Plan,
    /// Where it listens, unless that is an address.
    pub socket: PathBuf,
    /// The address where it listens instead, and the folder of what it proves itself with there.
    secured: Option<(SocketAddr, PathBuf)>,
}

impl WorkerProcess {
    /// Not started yet.
    pub fn new(site: &Site, plan: &Plan, name: &str) -> Self {
        Self {
            process: Process::new(name, site.path()),
            plan: plan.clone(),
            socket: site.path().join(format!("{name}.sock")),
            secured: None,
        }
    }

    /// Not started yet; it will listen at an address, and let in who proves by TLS to be a gateway.
    ///
    /// # Errors
    /// There is no port.
    pub fn secured(site: &Site, plan: &Plan, name: &str, identity: &Path) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port()?));
        let mut worker = Self::new(site, plan, name);
        worker.secured = Some((address, identity.to_owned()));
        Ok(worker)
    }

    /// Where it listens, as a snapshot names it.
    pub fn address(&self) -> String {
        match &self.secured {
            Some((address, _)) => address.to_string(),
            None => format!("unix:{}", self.socket.display()),
        }
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// It does not within a minute.
    pub fn start(&mut self) -> Result<()> {
        let mut command = weir_command();
        command
            .args(["worker", "--name", &self.process.name, "--threads", "1"])
            .args(["--kv-bytes", "67108864", "--listen", &self.address()])
            .arg("--load-plan")
            .arg(&self.plan.path);
        if let Some((_, identity)) = &self.secured {
            command.arg("--workload-identity").arg(identity);
        }
        // A socket of its last life says nothing.
        drop(std::fs::remove_file(&self.socket));
        self.process.spawn(&mut command)?;
        let (process, socket) = (&mut self.process, &self.socket);
        let listens = || match &self.secured {
            Some((address, _)) => TcpStream::connect(address).is_ok(),
            None => socket.exists(),
        };
        wait_for("the worker to listen", 60, || {
            (listens() || !process.is_up()).then_some(())
        })?;
        ensure!(self.process.is_up(), "the worker ended");
        Ok(())
    }
}

/// `weir gateway`, always at the same address.
pub struct GatewayProcess {
    /// The process.
    pub process: Process,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Set for it alone.
    pub environment: Vec<(String, String)>,
    /// `http://…`
    pub listen: String,
    /// `http://…` of its admin port.
    pub admin: String,
}

impl GatewayProcess {
    /// Not started yet. `store` is an engine, in a folder named after the gateway, or a URL.
    ///
    /// # Errors
    /// There is no port.
    pub fn new(site: &Site, name: &str, store: &str, snapshot: &Path) -> Result<Self> {
        let (listen, admin) = (port()?, port()?);
        let (listen, admin) = (format!("127.0.0.1:{listen}"), format!("127.0.0.1:{admin}"));
        let data = site.path().join(name).display().to_string();
        let snapshot = snapshot.display().to_string();
        let mut arguments: Vec<String> = ["gateway", "--store", store, "--replica", name]
            .map(str::to_owned)
            .into();
        arguments.extend(
            [
                "--data",
                &data,
                "--listen",
                &listen,
                "--admin",
                &admin,
                "--drain-s",
                "10",
                "--snapshot",
                &snapshot,
            ]
            .map(str::to_owned),
        );
        Ok(Self {
            process: Process::new(name, site.path()),
            arguments,
            environment: vec![],
            listen: format!("http://{listen}"),
            admin: format!("http://{admin}"),
        })
    }

    /// Starts it without waiting.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(&mut self, broken: Broken) -> Result<()> {
        let mut command = program(broken);
        command.args(&self.arguments);
        command.envs(self.environment.iter().cloned());
        self.process.spawn(&mut command)
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// It is not within a minute.
    pub fn start(&mut self, broken: Broken) -> Result<()> {
        self.spawn(broken)?;
        self.ready()
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    /// It does not within a minute.
    pub fn ready(&mut self) -> Result<()> {
        let admin = Client::new(&self.admin, "");
        let process = &mut self.process;
        wait_for(&format!("{} to be ready", process.name), 60, || {
            let ready = admin.get("/readyz").is_ok_and(|reply| reply.status == 200);
            (ready || !process.is_up()).then_some(())
        })?;
        ensure!(self.process.is_up(), "the gateway ended");
        Ok(())
    }

    /// Waits until it has a worker to give runs to.
    ///
    /// # Errors
    /// It has none within a minute.
    pub fn serves(&self) -> Result<()> {
        let client = self.client("acme");
        let warm = json!({"model": "random", "input": "hi", "maxOutputTokens": 1, "requestKey": self.listen});
        wait_for("a gateway to serve", 60, || {
            let reply = client.post("/inference", &warm).ok()?;
            (reply.status < 300).then_some(())
        })
    }

    /// A client of one tenant.
    pub fn client(&self, tenant: &str) -> Client {
        Client::new(&self.listen, &format!("{tenant}-dev-key"))
    }

    /// Everything in its store, which it must not have open unless that is a server's.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn dump(&self) -> Result<Dump> {
        let after = |flag: &str| {
            let place = self.arguments.iter().position(|word| word == flag);
            place.and_then(|place| self.arguments.get(place + 1))
        };
        let mut command = weir_command();
        command.arg("dump");
        for flag in ["--store", "--data"] {
            command.arg(flag).arg(after(flag).context("no store")?);
        }
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Dump::parse(&String::from_utf8(output.stdout)?)
    }
}
