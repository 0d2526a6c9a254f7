//! A worker of several versions: each has an engine of its own, and comes and goes with its plan in a folder while the others serve.
//!
//! The versions share the CPU's threads, turn by turn of a step each, and the memory for keys and values, which is divided into equal places: a
//! version has a place from before it is loaded until its memory is given back, so together they never take more than what was told. A version
//! that leaves takes no new runs; those it has go on until they end or the drain is over.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use weir_model::CpuThreads;
use weir_telemetry::admin::Page;

use crate::adapters::{self, AdapterBase};
use crate::announce::{Announcer, Said};
use crate::config::{Config, DeviceChoice, DeviceSettings, EngineSettings, KV_BYTES_ON_CPU};
use crate::doors::{Door, Doors};
use crate::engine::command::Command;
use crate::engine::observe::Observers;
use crate::engine::thread::EngineHandle;
use crate::error::{WorkerError, chain};
use crate::folder::{FolderWatch, Holder};
use crate::load::{LoadError, LoadPlan, Loaded, load_on};
use crate::metrics::SnapshotCollector;
use crate::server::{Ended, FLUSH, engine_failed, serve_grpc, until_drained};
use crate::session::SessionService;
use crate::start::{Basis, ENGINE, raise};

/// How often it is looked whether anybody has a session, or all have left.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The event that says what became of a version.
const EVENT: &str = "version";

/// Serves what the plans in a folder name, until `shutdown`, orphanhood or the end of the listener.
///
/// # Errors
/// An address cannot be bound, or a setting makes no sense.
pub(crate) async fn run(
    config: Config,
    (plans, most): (PathBuf, NonZeroU32),
    basis: Basis,
    announcer: &Announcer,
    shutdown: CancellationToken,
) -> Result<Ended, WorkerError> {
    if config.device.choice == DeviceChoice::Cuda {
        return Err(WorkerError::Limits {
            reason: "--versions: several versions in one worker run on the CPU only; give each a worker with --load-plan, or use --device cpu".to_owned(),
        });
    }
    let doors = Doors::default();
    let shown = doors.clone();
    let page = Page(Arc::new(move || page(&shown)));
    let _admin = basis.serve_admin(config.admin, ("/versions", page)).await?;
    let bind_failed = |source| WorkerError::Listen {
        address: config.listen.to_string(),
        source,
    };
    let listener = config.listen.bind().await.map_err(bind_failed)?;
    let address = listener.address().map_err(bind_failed)?.to_string();
    let collector = SnapshotCollector(doors.clone());
    basis
        .metrics
        .with(|registry| registry.register_collector(Box::new(collector)));
    let orphan_grace = config.orphan_grace;
    let (lost, gone) = mpsc::unbounded_channel();
    let all = All::new(config, most, (&basis, &doors), (announcer, lost))?;
    let holder = Versions {
        all: Arc::clone(&all),
        gone,
    };
    let has_looked = CancellationToken::new();
    let watch = FolderWatch::new(plans, holder, announcer).start({
        let (readiness, announcer) = (basis.readiness.clone(), announcer.clone());
        let (has_looked, mut is_ready) = (has_looked.clone(), false);
        move |serves| {
            if !has_looked.is_cancelled() {
                has_looked.cancel();
                announcer.ready(&address, "");
                tracing::info!(address, "takes sessions");
            }
            // Once for all: whoever took the place of another one holds something, and a plan that comes later disturbs nobody.
            if serves && !is_ready {
                is_ready = true;
                readiness.set_ready(ENGINE);
            }
        }
    });
    let stop = CancellationToken::new();
    let service = SessionService(doors.clone());
    let mut server = tokio::spawn(serve_grpc(
        service,
        (listener, basis.identity),
        stop.clone(),
    ));
    let ended = tokio::select! {
        outcome = &mut server => Err(match outcome {
            Ok(Err(error)) => WorkerError::Serve { source: error },
            _ => WorkerError::ServerEnded,
        }),
        () = shutdown.cancelled() => Ok(Ended::Drained),
        () = until_orphaned(&doors, &has_looked, orphan_grace) => Ok(Ended::Orphaned),
    };
    basis.readiness.set_not_ready(ENGINE, "draining");
    drop(watch);
    let was_cut = all.leave(matches!(ended, Ok(Ended::Drained))).await;
    stop.cancel();
    if !server.is_finished() && timeout(FLUSH, &mut server).await.is_err() {
        server.abort();
    }
    ended.map(|ended| match ended {
        Ended::Drained if was_cut => Ended::DrainDeadline,
        ended => ended,
    })
}

/// What is held, and what it does, as JSON.
fn page(doors: &Doors) -> String {
    let versions = doors.all().into_iter().map(|door| {
        let now = door.snapshot.borrow();
        let models = now.models.iter();
        json!({
            "model": door.about.labels.model, "version": door.about.labels.version,
            "digests": models.map(|model| model.version_digest.clone()).collect::<Vec<_>>(),
            "draining": now.draining, "runs": now.runs_live, "sessions": now.sessions,
            "kvBlocks": now.blocks_total, "kvBlocksFree": now.blocks_free, "steps": now.steps,
        })
    });
    json!({"versions": versions.collect::<Vec<_>>()}).to_string()
}

/// Waits until there was no session with any version for the grace.
async fn until_orphaned(doors: &Doors, has_looked: &CancellationToken, grace: Option<Duration>) {
    let Some(grace) = grace else {
        return std::future::pending().await;
    };
    // Nobody can visit what is still loading.
    has_looked.cancelled().await;
    let mut visited = Instant::now();
    while visited.elapsed() < grace {
        if doors
            .all()
            .iter()
            .any(|door| door.snapshot.borrow().sessions > 0)
        {
            visited = Instant::now();
        }
        sleep(LOOK_EVERY).await;
    }
    tracing::warn!(?grace, "no gateway has a session");
}

/// What all versions of a worker have in common.
struct All {
    threads: CpuThreads,
    places: Places,
    doors: Doors,
    observers: Observers,
    announcer: Announcer,
    /// Cancelled when a version is to leave, by digest.
    leaves: Mutex<BTreeMap<String, CancellationToken>>,
    /// Whether runs were left when a drain was over.
    cut: AtomicBool,
    lost: mpsc::UnboundedSender<(String, LoadError)>,
    name: String,
    /// With the memory of one place.
    engine: EngineSettings,
    device: DeviceSettings,
    drain: Duration,
}

impl All {
    fn new(
        config: Config,
        most: NonZeroU32,
        (basis, doors): (&Basis, &Doors),
        (announcer, lost): (&Announcer, mpsc::UnboundedSender<(String, LoadError)>),
    ) -> Result<Arc<Self>, LoadError> {
        let threads = CpuThreads::new(config.engine.threads.unwrap_or(0))
            .map_err(|error| LoadError::Engine(chain(&error)))?;
        let kv_bytes = config.engine.kv_bytes.unwrap_or(KV_BYTES_ON_CPU);
        Ok(Arc::new(Self {
            threads,
            places: Places::new(most),
            doors: doors.clone(),
            observers: Observers::new(&basis.metrics),
            announcer: announcer.clone(),
            leaves: Mutex::default(),
            cut: AtomicBool::new(false),
            lost,
            name: config.name,
            engine: EngineSettings {
                kv_bytes: Some(kv_bytes / u64::from(most.get())),
                ..config.engine
            },
            device: config.device,
            drain: config.drain,
        }))
    }

    /// Ends every version, in the end; whether runs were cut. Who does not drain does not wait for runs.
    async fn leave(&self, drains: bool) -> bool {
        let leaves = std::mem::take(&mut *self.leaves.lock());
        leaves.values().for_each(CancellationToken::cancel);
        let wait = if drains { self.drain + FLUSH } else { FLUSH };
        let left = async {
            while !self.doors.is_empty() {
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(wait, left).await.is_err() || self.cut.load(Ordering::Acquire)
    }
}

/// The holder of the versions whose plans are in the folder.
struct Versions {
    all: Arc<All>,
    gone: mpsc::UnboundedReceiver<(String, LoadError)>,
}

impl Holder for Versions {
    const EVENT: &'static str = EVENT;
    const GONE: &'static str = "leaving";

    async fn load(&mut self, path: PathBuf) -> Option<Result<String, LoadError>> {
        Some(load(&self.all, &path).await)
    }

    async fn remove(&mut self, digest: &str) -> Option<()> {
        if let Some(leave) = self.all.leaves.lock().remove(digest) {
            leave.cancel();
        }
        Some(())
    }

    fn lost(&mut self) -> Vec<(String, LoadError)> {
        std::iter::from_fn(|| self.gone.try_recv().ok()).collect()
    }
}

async fn load(all: &Arc<All>, path: &Path) -> Result<String, LoadError> {
    let plan = LoadPlan::read(path)?;
    if plan.fetch.is_some() {
        return Err(LoadError::Elsewhere);
    }
    let digest = plan.digest.to_string();
    if all.doors.has(&digest) {
        return Err(LoadError::Held);
    }
    let place = all.places.take().ok_or(LoadError::Full {
        most: all.places.most,
    })?;
    let plan_name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let loading = tokio::task::spawn_blocking({
        let all = Arc::clone(all);
        move || {
            let threads = Some(all.threads.clone());
            load_on(
                &plan,
                (&all.engine, &all.device),
                threads,
                &Announcer::silent(),
            )
        }
    });
    let mut loaded: Loaded = loading.await.map_err(|_| LoadError::Crashed)??;
    let base = AdapterBase::of(&mut loaded);
    let limits = (all.engine.max_waiting, all.engine.draft_tokens);
    let (engine, door) = raise(
        loaded,
        (all.name.clone(), place.number),
        limits,
        (&all.observers, &all.doors),
    )
    .map_err(|error| LoadError::Engine(chain(&error)))?;
    let leave = CancellationToken::new();
    all.leaves.lock().insert(digest.clone(), leave.clone());
    all.doors.open(digest.clone(), door.clone());
    let adapters = adapters::follow(
        Some(path.with_extension("adapters")),
        (base, door.commands.clone()),
        &all.announcer,
    );
    let (all, held) = (Arc::clone(all), digest.clone());
    tokio::spawn(async move {
        let failed = keep(&all, (engine, &door), &leave).await;
        drop(adapters);
        all.observers.forget(&door.about.labels);
        all.leaves.lock().remove(&held);
        drop(place);
        match failed {
            // The folder's watch says so, and tries again.
            Some(error) => drop(all.lost.send((held.clone(), error))),
            None => all.announcer.said(EVENT, &removed(&plan_name, &held)),
        }
        // Last: from here on the same version may come again.
        all.doors.close(&held);
    });
    Ok(digest)
}

/// Until the engine's memory is given back; why it ended, where nobody asked for that.
async fn keep(
    all: &All,
    (engine, door): (EngineHandle, &Door),
    leave: &CancellationToken,
) -> Option<LoadError> {
    let EngineHandle { mut end, gone, .. } = engine;
    let failed = tokio::select! {
        end = &mut end => Some(LoadError::Engine(chain(&engine_failed(end)))),
        ended = until_drained(&door.commands, door.snapshot.clone(), all.drain, leave) => {
            if ended == Ended::DrainDeadline {
                all.cut.store(true, Ordering::Release);
                tracing::warn!(model = door.about.labels.model, version = door.about.labels.version, "runs were left at the drain's deadline; their gateways see them interrupted");
            }
            let _ = timeout(FLUSH, door.commands.send(Command::Stop)).await;
            None
        }
    };
    // Nobody sends: it closes.
    let _ = gone.await;
    failed
}

fn removed<'a>(plan: &'a str, digest: &'a str) -> Said<'a> {
    Said {
        plan,
        state: "removed",
        digest,
        reason: "",
        message: "",
        text: "",
    }
}

/// Places for versions. Cloning shares them.
#[derive(Clone)]
struct Places {
    most: u32,
    taken: Arc<Mutex<Vec<bool>>>,
}

/// One version's place, until it is dropped.
struct Place {
    number: u32,
    taken: Arc<Mutex<Vec<bool>>>,
}

impl Places {
    fn new(most: NonZeroU32) -> Self {
        let most = most.get();
        Self {
            most,
            taken: Arc::new(Mutex::new(vec![false; most as usize])),
        }
    }

    fn take(&self) -> Option<Place> {
        let mut taken = self.taken.lock();
        let free = taken.iter().position(|taken| !taken)?;
        taken[free] = true;
        Some(Place {
            number: u32::try_from(free).expect("below the most"),
            taken: Arc::clone(&self.taken),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.lock()[self.number as usize] = false;
    }
}
