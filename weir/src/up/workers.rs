//! Where all versions are computed: which workers there are, how they are started, and how they are.

mod host;
mod plans;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use weir_api::gpu_pool::Sharing;
use weir_api::{Accelerator, ValidGpuPool};
use weir_gateway::WorkerEndpoint;
use weir_manifest::Digest;

use super::supervisor::{WorkerSpec, WorkerState};
use super::verify::Verified;
use host::Host;
use plans::{keep_only, plan_text, write, write_all, write_if_changed};
use worker::Seat;

pub use plans::plan_digest;
pub use worker::Worker;

/// A Unix socket's address holds 107 bytes and a zero.
const SOCKET_PATH_BYTES: usize = 107;
/// Workers outlive a killed `weir up` by this long, so that the next one finds their runs alive.
const ORPHAN_GRACE_S: u64 = 30;

/// All of them, by name.
pub struct Workers {
    by_name: BTreeMap<String, Worker>,
    /// Processes that hold several, by name.
    shared: BTreeMap<String, Arc<Host>>,
    tasks: TaskTracker,
    /// Footprints, plans and sockets.
    folder: PathBuf,
    /// Shorter than `folder` where that is too long for a socket.
    sockets: PathBuf,
    /// Told whenever one changed.
    changed: mpsc::Sender<()>,
    drain: Duration,
}

impl Workers {
    /// Makes the folders under `data`.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn new(data: &Path, drain: Duration, changed: mpsc::Sender<()>) -> io::Result<Self> {
        let folder = data.join("workers");
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let longest_name = 24;
        let sockets = if folder.as_os_str().len() + longest_name <= SOCKET_PATH_BYTES {
            folder.clone()
        } else {
            let short = Digest::of(folder.as_os_str().as_encoded_bytes()).to_hex();
            let short = std::env::temp_dir().join(format!("weir-{}", &short[..16]));
            // Nobody else may put a socket there.
            match fs::DirBuilder::new().mode(0o700).create(&short) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => short,
            }
        };
        Ok(Self {
            by_name: BTreeMap::new(),
            shared: BTreeMap::new(),
            tasks: TaskTracker::new(),
            folder,
            sockets,
            changed,
            drain,
        })
    }

    /// Makes the workers of a version that are not there yet; the names of all `replicas` it should have. Where the pool is shared, a worker
    /// has so many places for versions.
    ///
    /// # Errors
    /// Its load plan cannot be written.
    pub fn ensure(
        &mut self,
        version: &str,
        verified: &Verified,
        (pool, places): (&ValidGpuPool, NonZeroU32),
        replicas: u32,
    ) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for replica in 0..replicas {
            names.push(match pool.sharing {
                Sharing::Dedicated => self.ensure_own(version, verified, pool, replica)?,
                Sharing::Shared => self.ensure_seat(version, verified, (pool, places), replica)?,
            });
        }
        Ok(names)
    }

    fn ensure_own(
        &mut self,
        version: &str,
        verified: &Verified,
        pool: &ValidGpuPool,
        replica: u32,
    ) -> io::Result<String> {
        let mut arguments = self.arguments(pool);
        // Trust is not part of what a running worker is: an edited policy must not restart what serves.
        let identity = format!(
            "{arguments:?} {} {}",
            verified.digest,
            verified.plan.dir.display()
        );
        let (name, hash) = name(&pool.name, version, replica, &identity);
        let files = self.folder.join(short(&name));
        let (plan, adapters) = (
            files.with_extension("plan"),
            files.with_extension("adapters"),
        );
        write_if_changed(&plan, &plan_text(verified)?)?;
        if !self.by_name.contains_key(&name) {
            arguments.extend(["--load-plan".to_owned(), plan.display().to_string()]);
            arguments.extend(["--adapters".to_owned(), adapters.display().to_string()]);
            let host = self.host((name.clone(), hash), arguments, (Some(plan), None))?;
            host.go();
            let worker = Worker::new((version, verified), pool, adapters, host);
            self.by_name.insert(name.clone(), worker);
        }
        Ok(name)
    }

    fn ensure_seat(
        &mut self,
        version: &str,
        verified: &Verified,
        (pool, places): (&ValidGpuPool, NonZeroU32),
        replica: u32,
    ) -> io::Result<String> {
        let mut arguments = self.arguments(pool);
        arguments.extend(["--max-versions".to_owned(), places.to_string()]);
        let identity = format!("{arguments:?}");
        let (process, hash) = name(&pool.name, "shared", replica, &identity);
        let identity = format!("{identity} {}", verified.digest);
        let (name, _) = name(&pool.name, version, replica, &identity);
        let text = plan_text(verified)?;
        if let Some(worker) = self.by_name.get_mut(&name) {
            worker.seat = worker.seat.take().map(|seat| Seat { text, ..seat });
            return Ok(name);
        }
        let versions = self.folder.join(short(&process)).with_extension("versions");
        if !self.shared.contains_key(&process) {
            arguments.extend(["--versions".to_owned(), versions.display().to_string()]);
            let holds = (None, Some(versions.clone()));
            let host = self.host((process.clone(), hash), arguments, holds)?;
            self.shared.insert(process.clone(), host);
        }
        let host = &self.shared[&process];
        // One that is about to end gets no new versions; its successor does.
        if !host.is_stopping() {
            let file = format!("{}.json", short(&name));
            let adapters = versions.join(&file).with_extension("adapters");
            let mut worker = Worker::new((version, verified), pool, adapters, Arc::clone(host));
            worker.seat = Some(Seat { file, text });
            self.by_name.insert(name.clone(), worker);
        }
        Ok(name)
    }

    /// Lets go of workers that were to leave and have nothing left; their names.
    pub fn sweep(&mut self) -> Vec<String> {
        let gone = self.by_name.extract_if(.., |_, worker| worker.is_gone());
        let gone: Vec<_> = gone.collect();
        for (_, worker) in &gone {
            if let Some(seat) = &worker.seat {
                worker.host.said.lock().versions.remove(&seat.file);
            }
        }
        gone.into_iter().map(|(name, _)| name).collect()
    }

    /// Makes processes and plans what the workers are: after all that should be there were asked for. Plans that nobody has asked for stay
    /// where it is `unsure` that nobody will.
    ///
    /// # Errors
    /// A plan cannot be written or removed.
    pub fn settle(&mut self, unsure: bool) -> io::Result<()> {
        for (process, host) in &self.shared {
            let seats = || {
                let workers = self.by_name.values();
                let here = workers.filter(|worker| worker.host.name == *process);
                here.filter_map(|worker| Some((worker, worker.seat.as_ref()?)))
            };
            if seats().next().is_none() {
                host.stop();
                continue;
            }
            let staying = seats().filter(|(worker, _)| !worker.is_leaving);
            let plans = staying.map(|(_, seat)| (seat.file.clone(), seat.text.clone()));
            let plans: BTreeMap<_, _> = plans.collect();
            let Some(folder) = &host.versions else {
                continue;
            };
            write_all(folder, &plans)?;
            if !unsure {
                let adapters =
                    seats().filter_map(|(worker, _)| worker.adapters.file_name()?.to_str());
                keep_only(
                    folder,
                    &plans.keys().map(String::as_str).chain(adapters).collect(),
                )?;
            }
            host.go();
        }
        self.shared.retain(|_, host| !host.is_over());
        Ok(())
    }

    /// Has every worker of a base serve these adapters of it, by the names of their objects, and no others.
    ///
    /// # Errors
    /// A plan cannot be written or removed.
    pub fn adapt(&self, base: &str, adapters: &BTreeMap<&str, &Verified>) -> io::Result<()> {
        let mut plans = BTreeMap::new();
        for (version, verified) in adapters {
            plans.insert(adapter_file(version), plan_text(verified)?);
        }
        for worker in self.by_name.values().filter(|worker| worker.digest == base) {
            if !plans.is_empty() {
                write_all(&worker.adapters, &plans)?;
            }
            let kept = plans.keys().map(String::as_str).collect();
            keep_only(&worker.adapters, &kept)?;
        }
        Ok(())
    }

    /// Has every worker that is not in `wanted` end what it has in the background, and go.
    pub fn retain(&mut self, wanted: &BTreeSet<String>) {
        for (name, worker) in &mut self.by_name {
            // A process that was told to end cannot be called back.
            worker.is_leaving = !wanted.contains(name) || worker.host.is_stopping();
            if worker.is_leaving && worker.seat.is_none() {
                worker.host.stop();
            }
        }
    }

    /// Lets a version's workers that refused it try anew.
    ///
    /// # Errors
    /// Its plan cannot be written.
    pub fn forget_refused(&mut self, version: &str) -> io::Result<()> {
        let mut again = Ok(());
        self.by_name.retain(|_, worker| {
            let refused = |state: &WorkerState| matches!(state, WorkerState::Refused { .. });
            if worker.version != version || !refused(&worker.state()) {
                return true;
            }
            if refused(&worker.host.state.borrow()) {
                worker.host.stop();
                return false;
            }
            if let (Some(seat), Some(folder)) = (&worker.seat, &worker.host.versions) {
                worker.host.said.lock().versions.remove(&seat.file);
                again = write(&folder.join(&seat.file), &seat.text);
            }
            true
        });
        for worker in self.by_name.values() {
            let file = adapter_file(version);
            worker.host.said.lock().adapters.remove(&file);
        }
        again
    }

    /// Adapters that a worker refused: the version, and the digest of the plan.
    pub fn refused_adapters(&self) -> Vec<(String, String)> {
        let said = self
            .by_name
            .values()
            .flat_map(|worker| worker.host.said.lock().adapters.clone());
        said.filter(|(_, said)| said.state == "refused")
            .filter_map(|(file, said)| Some((file.strip_suffix(".json")?.to_owned(), said.text)))
            .collect()
    }

    /// What a base's workers said against an adapter: one word, and the cause.
    pub fn against_adapter(&self, base: &str, version: &str) -> Option<(String, String)> {
        let file = adapter_file(version);
        let mut workers = self.by_name.values().filter(|worker| worker.digest == base);
        workers.find_map(|worker| {
            let said = worker.host.said.lock().adapters.get(&file)?.clone();
            (!said.reason.is_empty()).then_some((said.reason, said.message))
        })
    }

    /// All, by name; those that drain too.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Worker)> {
        self.by_name.iter()
    }

    /// What the gateway connects to.
    pub fn endpoints(&self) -> Vec<WorkerEndpoint> {
        let workers = self.by_name.iter();
        workers
            .map(|(name, worker)| worker.endpoint(name))
            .collect()
    }

    /// Stops all and waits for their end.
    pub async fn stop(self) {
        let own = self.by_name.values().map(|worker| &worker.host);
        own.chain(self.shared.values()).for_each(|host| host.stop());
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What every worker of a pool is told of its engine.
    fn arguments(&self, pool: &ValidGpuPool) -> Vec<String> {
        let engine = &pool.engine;
        let mut arguments: Vec<String> = vec!["worker".to_owned()];
        let mut option = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
        option("max-running", engine.max_running.to_string());
        option("max-batch-tokens", engine.max_batch_tokens.to_string());
        option("block-tokens", engine.block_tokens.to_string());
        option("kv-dtype", engine.kv_dtype.as_str().to_owned());
        option("weights", engine.weights.as_str().to_owned());
        if let Some(bytes) = engine.kv_bytes {
            option("kv-bytes", bytes.to_string());
        }
        if pool.accelerator != Accelerator::Cpu {
            option("device", "cuda".to_owned());
        }
        if let Some(tokens) = engine.draft_tokens {
            option("draft-tokens", tokens.to_string());
        }
        option("orphan-grace-s", ORPHAN_GRACE_S.to_string());
        option("drain-s", self.drain.as_secs().to_string());
        arguments
    }

    /// A process that is supervised, and starts when it may go. It holds one plan, or those of a folder.
    fn host(
        &self,
        (name, hash): (String, String),
        mut arguments: Vec<String>,
        (plan, versions): (Option<PathBuf>, Option<PathBuf>),
    ) -> io::Result<Arc<Host>> {
        let short = short(&name);
        let socket = self.sockets.join(format!("{short}.sock"));
        arguments.extend(["--name", &name, "--listen"].map(str::to_owned));
        arguments.push(format!("unix:{}", socket.display()));
        let spec = WorkerSpec {
            name,
            program: std::env::current_exe()?,
            arguments,
            hash,
            footprint: self.folder.join(format!("{short}.json")),
            plan,
        };
        let drain = self.drain + Duration::from_secs(5);
        let told = (&self.tasks, self.changed.clone());
        Ok(Host::new(spec, (socket, versions), told, drain))
    }
}

/// A worker's name, which no other one has, and the hash over what it is.
fn name(pool: &str, of: &str, replica: u32, identity: &str) -> (String, String) {
    let hash = Digest::of(identity.as_bytes()).to_hex();
    (format!("{pool}/{of}/{replica}/{}", &hash[..8]), hash)
}

/// What files of a worker are called.
fn short(name: &str) -> String {
    Digest::of(name.as_bytes()).to_hex()[..12].to_owned()
}

/// Name of the plan of an adapter. Names of objects are names of files.
fn adapter_file(version: &str) -> String {
    format!("{version}.json")
}
