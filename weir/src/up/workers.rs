//! The worker processes of all versions: which there are, how they are started, and how they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_api::{Accelerator, ValidGpuPool};
use weir_gateway::{WorkerAddress, WorkerEndpoint};
use weir_manifest::Digest;

use super::supervisor::{AdaptersSaid, WorkerSpec, WorkerState, supervise};
use super::verify::Verified;

/// A Unix socket's address holds 107 bytes and a zero.
const SOCKET_PATH_BYTES: usize = 107;
/// Workers outlive a killed `weir up` by this long, so that the next one finds their runs alive.
const ORPHAN_GRACE_S: u64 = 30;

/// One worker process under supervision.
pub struct Worker {
    /// The version's object.
    pub version: String,
    /// Its pool.
    pub pool: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// Manifest digest of what it loaded.
    pub digest: String,
    /// Plans of the adapters that it serves beside.
    adapters: PathBuf,
    /// What it said of each.
    pub said: AdaptersSaid,
    /// How it is.
    pub state: watch::Receiver<WorkerState>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// All of them, by name.
pub struct Workers {
    by_name: BTreeMap<String, Worker>,
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
            folder,
            sockets,
            changed,
            drain,
        })
    }

    /// Starts the workers of a version that are not there yet; the names of all `replicas` it should have.
    ///
    /// # Errors
    /// Its load plan cannot be written.
    pub fn ensure(
        &mut self,
        version: &str,
        verified: &Verified,
        pool: &ValidGpuPool,
        replicas: u32,
    ) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for replica in 0..replicas {
            let (name, spec) = self.spec(version, verified, pool, replica)?;
            if !self.by_name.contains_key(&name) {
                let of = (version, verified.digest.as_str());
                self.start(of, pool, name.clone(), spec);
            }
            names.push(name);
        }
        Ok(names)
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
            sync_folder(&worker.adapters, &plans)?;
        }
        Ok(())
    }

    /// Stops every worker that is not in `wanted`. They drain in the background.
    pub fn retain(&mut self, wanted: &BTreeSet<String>) {
        for (_, worker) in self
            .by_name
            .iter()
            .filter(|(name, _)| !wanted.contains(*name))
        {
            worker.stop.cancel();
        }
        self.by_name
            .retain(|name, worker| wanted.contains(name) || !worker.task.is_finished());
    }

    /// Lets a version's workers that refused it be started anew.
    pub fn forget_refused(&mut self, version: &str) {
        self.by_name.retain(|_, worker| {
            let goes = worker.version == version
                && matches!(&*worker.state.borrow(), WorkerState::Refused { .. });
            if goes {
                worker.stop.cancel();
            }
            !goes
        });
        for worker in self.by_name.values() {
            worker.said.lock().remove(&adapter_file(version));
        }
    }

    /// Adapters that a worker refused: the version, and the digest of the plan.
    pub fn refused_adapters(&self) -> Vec<(String, String)> {
        let said = self
            .by_name
            .values()
            .flat_map(|worker| worker.said.lock().clone());
        said.filter(|(_, said)| said.state == "refused")
            .filter_map(|(file, said)| Some((file.strip_suffix(".json")?.to_owned(), said.text)))
            .collect()
    }

    /// What a base's workers said against an adapter: one word, and the cause.
    pub fn against_adapter(&self, base: &str, version: &str) -> Option<(String, String)> {
        let file = adapter_file(version);
        let mut workers = self.by_name.values().filter(|worker| worker.digest == base);
        workers.find_map(|worker| {
            let said = worker.said.lock().get(&file)?.clone();
            (!said.reason.is_empty()).then_some((said.reason, said.message))
        })
    }

    /// All, by name; those that drain too.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Worker)> {
        self.by_name.iter()
    }

    /// What the gateway connects to.
    pub fn endpoints(&self) -> Vec<WorkerEndpoint> {
        let endpoint = |(name, worker): (&String, &Worker)| WorkerEndpoint {
            name: name.clone(),
            pool: worker.pool.clone(),
            address: WorkerAddress::Unix(worker.socket.clone()),
            version: None,
        };
        self.by_name.iter().map(endpoint).collect()
    }

    /// Stops all and waits for their end.
    pub async fn stop(self) {
        for worker in self.by_name.values() {
            worker.stop.cancel();
        }
        for (_, worker) in self.by_name {
            // A task that panicked has no worker left to wait for.
            let _ = worker.task.await;
        }
    }

    fn spec(
        &self,
        version: &str,
        verified: &Verified,
        pool: &ValidGpuPool,
        replica: u32,
    ) -> io::Result<(String, WorkerSpec)> {
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
        // Trust is not part of what a running worker is: an edited policy must not restart what serves.
        let identity = format!(
            "{arguments:?} {} {}",
            verified.digest,
            verified.plan.dir.display()
        );
        let hash = Digest::of(identity.as_bytes()).to_hex();
        let name = format!("{}/{version}/{replica}/{}", pool.name, &hash[..8]);
        let short = &Digest::of(name.as_bytes()).to_hex()[..12];
        let adapters = self.folder.join(format!("{short}.adapters"));
        let plan = self.folder.join(format!("{short}.plan"));
        write_if_changed(&plan, &plan_text(verified)?)?;
        let socket = self.sockets.join(format!("{short}.sock"));
        arguments.extend(["--name", &name, "--load-plan"].map(str::to_owned));
        arguments.push(plan.display().to_string());
        arguments.extend(["--adapters".to_owned(), adapters.display().to_string()]);
        arguments.extend(["--listen".to_owned(), format!("unix:{}", socket.display())]);
        let footprint = self.folder.join(format!("{short}.json"));
        let program = std::env::current_exe()?;
        Ok((
            name.clone(),
            WorkerSpec {
                name,
                program,
                arguments,
                hash,
                footprint,
                plan,
            },
        ))
    }

    fn start(
        &mut self,
        (version, digest): (&str, &str),
        pool: &ValidGpuPool,
        name: String,
        spec: WorkerSpec,
    ) {
        let (sender, state) = watch::channel(WorkerState::Starting {
            progress: "starting".to_owned(),
        });
        let stop = CancellationToken::new();
        let socket = spec.footprint.with_extension("sock");
        let socket = self
            .sockets
            .join(socket.file_name().expect("a footprint has a name"));
        let adapters = spec.footprint.with_extension("adapters");
        let said = AdaptersSaid::default();
        let changed = self.changed.clone();
        let mut seen = state.clone();
        tokio::spawn(async move {
            while seen.changed().await.is_ok() {
                // A full channel already holds the news.
                let _ = changed.try_send(());
            }
            let _ = changed.try_send(());
        });
        let task = tokio::spawn(supervise(
            spec,
            (sender, Arc::clone(&said)),
            stop.clone(),
            self.drain + Duration::from_secs(5),
        ));
        let worker = Worker {
            version: version.to_owned(),
            pool: pool.name.clone(),
            socket,
            digest: digest.to_owned(),
            adapters,
            said,
            state,
            stop,
            task,
        };
        self.by_name.insert(name, worker);
    }
}

fn plan_text(verified: &Verified) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&verified.plan)?)
}

/// Digest of what a worker would be told to load.
pub fn plan_digest(verified: &Verified) -> Option<String> {
    Some(Digest::of(&plan_text(verified).ok()?).to_string())
}

/// A reader sees the old content or the new, never a part.
fn write_if_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let partial = path.with_extension("partial");
    fs::write(&partial, content)?;
    fs::rename(partial, path)
}

/// Name of the plan of an adapter. Names of objects are names of files.
pub fn adapter_file(version: &str) -> String {
    format!("{version}.json")
}

/// Makes a folder hold these files and no other plans.
fn sync_folder(folder: &Path, plans: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    if plans.is_empty() && !folder.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    for (name, text) in plans {
        write_if_changed(&folder.join(name), text)?;
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry
            .file_name()
            .to_str()
            .is_some_and(|name| plans.contains_key(name))
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
