//! Puts a worker together: load, engine, admin server, sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_protocol::worker::LoadedModel;
use weir_scheduler::{Scheduler, cache_identity};
use weir_telemetry::admin::{Admin, Page};
use weir_telemetry::{Metrics, Readiness};

use crate::adapters::{self, AdapterBase};
use crate::announce::Announcer;
use crate::config::{Config, Holds};
use crate::doors::{Door, Doors};
use crate::engine::core::{Identity, Parts};
use crate::engine::observe::{Observer, Observers};
use crate::engine::request::Served;
use crate::engine::thread::{self, EngineHandle};
use crate::error::WorkerError;
use crate::grammar::Compiler;
use crate::listen::Listen;
use crate::load::{Files, LoadError, LoadPlan, Loaded, bring, load, mend};
use crate::metrics::{About, Labels, SnapshotCollector};
use crate::server::{Ended, Patience, serve};
use crate::several;

/// The component that objects to readiness while the model loads, drains or has failed.
pub(crate) const ENGINE: &str = "engine";

/// How a loaded model is served.
#[derive(Clone, Debug)]
pub struct Serving {
    /// See [`Config::name`].
    pub name: String,
    /// See [`Config::listen`].
    pub listen: Listen,
    /// What callers by TCP are asked to prove themselves with, if they are: see [`Config::callers`].
    pub identity: Option<Arc<weir_identity::Identity>>,
    /// See [`Config::orphan_grace`].
    pub orphan_grace: Option<Duration>,
    /// See [`Config::drain`].
    pub drain: Duration,
    /// Sequences that may wait.
    pub max_waiting: u32,
    /// Tokens guessed ahead per sequence and step.
    pub draft_tokens: u32,
    /// See [`Config::adapters`].
    pub adapters: Option<PathBuf>,
    /// Behind `/readyz`.
    pub readiness: Readiness,
    /// Behind `/metrics`.
    pub metrics: Metrics,
}

/// Loads and serves until `shutdown`, orphanhood or a failure.
///
/// # Errors
/// The model cannot be loaded, an address cannot be bound, or the engine fails.
pub async fn run(
    config: Config,
    announcer: &Announcer,
    shutdown: CancellationToken,
) -> Result<Ended, WorkerError> {
    // Before the model, which may take long to load.
    let identity = config.listen.identity(config.callers.clone())?;
    let (readiness, metrics) = (Readiness::new(), Metrics::new());
    readiness.set_not_ready(ENGINE, "loading the model");
    let basis = Basis {
        identity,
        readiness,
        metrics,
    };
    match config.holds.clone() {
        Holds::One { plan, adapters } => {
            run_one(config, (&plan, adapters), basis, announcer, shutdown).await
        }
        Holds::Several { plans, most } => {
            several::run(config, (plans, most), basis, announcer, shutdown).await
        }
    }
}

/// What a worker has before it holds anything.
pub(crate) struct Basis {
    pub(crate) identity: Option<Arc<weir_identity::Identity>>,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
}

impl Basis {
    /// Serves the admin port, where there is one, with this page. Ends with what comes back.
    pub(crate) async fn serve_admin(
        &self,
        address: Option<SocketAddr>,
        page: (&'static str, Page),
    ) -> Result<DropGuard, WorkerError> {
        let stop = CancellationToken::new();
        if let Some(address) = address {
            let admin = Admin {
                readiness: self.readiness.clone(),
                metrics: self.metrics.clone(),
                pages: BTreeMap::from([page]),
                actions: BTreeMap::new(),
                queries: BTreeMap::new(),
            };
            serve_admin(address, admin, stop.clone()).await?;
        }
        Ok(stop.drop_guard())
    }
}

async fn run_one(
    config: Config,
    (load_plan, adapters): (&Path, Option<PathBuf>),
    basis: Basis,
    announcer: &Announcer,
    shutdown: CancellationToken,
) -> Result<Ended, WorkerError> {
    let Config {
        name,
        listen,
        admin,
        engine,
        device,
        orphan_grace,
        drain,
        ..
    } = config;
    let files = Files::default();
    let _admin = basis.serve_admin(admin, ("/files", page(&files))).await?;
    let mut plan = LoadPlan::read(load_plan)?;
    let brought = tokio::select! {
        brought = bring(&mut plan, load_plan, (&files, announcer)) => brought?,
        () = shutdown.cancelled() => return Ok(Ended::Drained),
    };
    let fetched = plan.fetch.clone().map(|how| (how, plan.digest));
    let loading = tokio::task::spawn_blocking({
        let announcer = announcer.clone();
        move || load(&plan, (&engine, &device), &announcer)
    });
    let loaded = tokio::select! {
        loaded = loading => loaded.map_err(|_| WorkerError::LoaderDied)?,
        () = shutdown.cancelled() => return Ok(Ended::Drained),
    };
    if let (Err(LoadError::Refused(error)), Some((how, digest))) = (&loaded, &fetched)
        && error.is_of_a_file()
    {
        shutdown.run_until_cancelled(mend(how, digest)).await;
    }
    let loaded = loaded?;
    let Basis {
        identity,
        readiness,
        metrics,
    } = basis;
    let serving = Serving {
        name,
        listen,
        identity,
        orphan_grace,
        drain,
        max_waiting: engine.max_waiting,
        draft_tokens: engine.draft_tokens,
        adapters,
        readiness,
        metrics,
    };
    let ended = serve_loaded(loaded, serving, announcer, shutdown).await;
    // Until here nobody else may throw the files away: a worker that starts again needs them.
    drop(brought);
    ended
}

fn page(files: &Files) -> Page {
    let files = files.clone();
    Page(Arc::new(move || files.page().to_string()))
}

/// Serves a loaded model until `shutdown`, orphanhood or a failure.
///
/// # Errors
/// The limits make no sense, the address cannot be bound, or the engine fails.
pub async fn serve_loaded(
    mut loaded: Loaded,
    serving: Serving,
    announcer: &Announcer,
    shutdown: CancellationToken,
) -> Result<Ended, WorkerError> {
    let Serving {
        name,
        listen,
        identity,
        orphan_grace,
        drain,
        max_waiting,
        draft_tokens,
        adapters,
        readiness,
        metrics,
    } = serving;
    let digest = loaded.version_digest.clone();
    let base = AdapterBase::of(&mut loaded);
    let bind_failed = |source| WorkerError::Listen {
        address: listen.to_string(),
        source,
    };
    let listener = listen.bind().await.map_err(bind_failed)?;
    let address = listener.address().map_err(bind_failed)?;
    let observers = Observers::new(&metrics);
    let doors = Doors::default();
    let limits = (max_waiting, draft_tokens);
    let (engine, door) = raise(loaded, (name, 0), limits, (&observers, &doors))?;
    doors.open(digest.clone(), door);
    let collector = SnapshotCollector(doors.clone());
    metrics.with(|registry| registry.register_collector(Box::new(collector)));
    readiness.set_ready(ENGINE);
    announcer.ready(&address.to_string(), &digest);
    tracing::info!(%address, digest, "takes sessions");
    let watch = adapters::follow(adapters, (base, engine.commands.clone()), announcer);

    let draining = tokio::spawn({
        let (readiness, shutdown) = (readiness.clone(), shutdown.clone());
        async move {
            shutdown.cancelled().await;
            readiness.set_not_ready(ENGINE, "draining");
        }
    });
    let ended = serve(
        engine,
        (listener, identity),
        doors,
        Patience {
            drain,
            orphan_grace,
        },
        shutdown,
    )
    .await;
    draining.abort();
    drop(watch);
    if let Err(error) = &ended {
        readiness.set_not_ready(ENGINE, error.to_string());
    }
    ended
}

/// Starts the engine of a loaded version, which is the process's `number`th, beside those behind `doors`.
pub(crate) fn raise(
    loaded: Loaded,
    (name, number): (String, u32),
    limits: (u32, u32),
    (observers, doors): (&Observers, &Doors),
) -> Result<(EngineHandle, Door), WorkerError> {
    let of = (
        loaded.model.as_str(),
        loaded.version,
        loaded.version_digest.as_str(),
    );
    let labels = Labels::beside(doors, of, number);
    let end_tokens: Arc<[u32]> = loaded.end_tokens.as_slice().into();
    let compiler = Arc::new(Compiler::new(Arc::clone(&loaded.tokenizer), end_tokens));
    let about = Arc::new(About {
        block_tokens: loaded.backend.limits().block_tokens,
        device: loaded.backend.name(),
        labels,
    });
    let parts = assemble(loaded, name, limits, observers.of(&about.labels))?;
    let engine =
        thread::start(parts, tokio::runtime::Handle::current()).map_err(WorkerError::Thread)?;
    let door = Door {
        commands: engine.commands.clone(),
        snapshot: engine.snapshot.clone(),
        compiler,
        about,
    };
    Ok((engine, door))
}

fn assemble(
    loaded: Loaded,
    name: String,
    (max_waiting, draft_tokens): (u32, u32),
    observer: Observer,
) -> Result<Parts, WorkerError> {
    let Loaded {
        version_digest,
        model,
        version,
        vocab,
        end_tokens,
        tokenizer,
        backend,
    } = loaded;
    let device = backend.limits();
    let grammars = tokenizer.table().is_exact();
    // Precision of weights and KV are those of this process's one backend, and the key is this process's own, so the digest of
    // the version is all that tells two caches apart.
    let identity = cache_identity(&[("version", version_digest.as_bytes())]);
    let mut config = weir_scheduler::Config::new(device.plan(), random()?, identity);
    config.max_waiting = max_waiting;
    config.max_drafts = draft_tokens.min(device.max_drafts);
    let scheduler = Scheduler::new(config).map_err(|error| WorkerError::Limits {
        reason: error.to_string(),
    })?;
    Ok(Parts {
        scheduler,
        backend,
        tokenizer,
        served: Served {
            version_digest: version_digest.clone(),
            end_tokens: Arc::from(end_tokens),
            vocab,
            context_tokens: device.context_tokens,
            scores_prompts: device.scores_prompts,
            adapters: BTreeMap::new(),
        },
        identity: Identity {
            worker: name,
            boot: format!("{:032x}", u128::from_be_bytes(random()?)),
            base: LoadedModel {
                version_digest,
                model,
                version,
                context_tokens: device.context_tokens,
                vocab,
                grammars,
                scores_prompts: device.scores_prompts,
                adapter_of: String::new(),
            },
        },
        observer,
    })
}

fn random<const N: usize>() -> Result<[u8; N], WorkerError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| WorkerError::Random)?;
    Ok(bytes)
}

async fn serve_admin(
    address: SocketAddr,
    admin: Admin,
    stop: CancellationToken,
) -> Result<(), WorkerError> {
    let failed = |source| WorkerError::Admin {
        address: address.to_string(),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    tokio::spawn(async move {
        if let Err(error) = admin.serve(listener, stop).await {
            tracing::error!(%error, "the admin server has failed");
        }
    });
    Ok(())
}
