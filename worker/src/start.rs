//! Puts a worker together: load, engine, admin server, sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weir_protocol::worker::LoadedModel;
use weir_scheduler::{Scheduler, cache_identity};
use weir_telemetry::admin::{Admin, Page};
use weir_telemetry::{Metrics, Readiness};

use crate::adapters::{AdapterBase, AdapterWatch};
use crate::announce::Announcer;
use crate::config::Config;
use crate::engine::core::{Identity, Parts};
use crate::engine::observe::Observer;
use crate::engine::request::Served;
use crate::engine::thread;
use crate::error::WorkerError;
use crate::grammar::Compiler;
use crate::listen::Listen;
use crate::load::{Files, LoadError, LoadPlan, Loaded, bring, drop_damaged, load};
use crate::metrics::SnapshotCollector;
use crate::server::{Ended, Patience, serve};

/// The component that objects to readiness while the model loads, drains or has failed.
const ENGINE: &str = "engine";

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
    let Config {
        name,
        load_plan,
        adapters,
        listen,
        callers,
        admin,
        engine,
        device,
        orphan_grace,
        drain,
    } = config;
    // Before the model, which may take long to load.
    let identity = listen.identity(callers)?;
    let (readiness, metrics, files) = (Readiness::new(), Metrics::new(), Files::default());
    readiness.set_not_ready(ENGINE, "loading the model");
    // Ends with this function, whichever way it returns.
    let admin_stop = CancellationToken::new();
    let _stop_admin = admin_stop.clone().drop_guard();
    if let Some(address) = admin {
        serve_admin(
            address,
            Admin {
                readiness: readiness.clone(),
                metrics: metrics.clone(),
                pages: BTreeMap::from([("/files", page(&files))]),
                actions: BTreeMap::new(),
                queries: BTreeMap::new(),
            },
            admin_stop,
        )
        .await?;
    }
    let mut plan = LoadPlan::read(&load_plan)?;
    let brought = tokio::select! {
        brought = bring(&mut plan, &load_plan, (&files, announcer)) => brought?,
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
    if let (Err(LoadError::Refused(_)), Some((how, digest))) = (&loaded, &fetched) {
        drop_damaged(how, digest).await;
    }
    let loaded = loaded?;
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
    let (digest, model, version) = (
        loaded.version_digest.clone(),
        loaded.model.clone(),
        loaded.version,
    );
    let end_tokens: Arc<[u32]> = loaded.end_tokens.as_slice().into();
    let compiler = Arc::new(Compiler::new(Arc::clone(&loaded.tokenizer), end_tokens));
    let block_tokens = loaded.backend.limits().block_tokens;
    let device = loaded.backend.name();
    let base = AdapterBase::of(&mut loaded);
    let observer = Observer::new(&metrics, &model);
    let parts = assemble(loaded, name, (max_waiting, draft_tokens), observer)?;
    let bind_failed = |source| WorkerError::Listen {
        address: listen.to_string(),
        source,
    };
    let listener = listen.bind().await.map_err(bind_failed)?;
    let address = listener.address().map_err(bind_failed)?;
    let engine =
        thread::start(parts, tokio::runtime::Handle::current()).map_err(WorkerError::Thread)?;
    let collector = SnapshotCollector {
        snapshot: engine.snapshot.clone(),
        model,
        version: version.to_string(),
        block_tokens,
        device,
    };
    metrics.with(|registry| registry.register_collector(Box::new(collector)));
    readiness.set_ready(ENGINE);
    announcer.ready(&address.to_string(), &digest);
    tracing::info!(%address, digest, "takes sessions");
    let watch = AdapterWatch::start(adapters, (base, engine.commands.clone()), announcer);

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
        compiler,
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
