//! The gateway as its owner sees it: start, apply, serve, drain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_identity::{Identity, Reload};
use weir_ledger::Actor;
use weir_rollout::routing::TableOrder;
use weir_store::{Store, StoreError};
use weir_telemetry::Readiness;
use weir_telemetry::trace::Tracer;

use crate::admit::{Queues, TokenizerPool};
use crate::alerts::{self, AlertState};
use crate::audit::{self, AuditSender};
use crate::auth::KeyUse;
use crate::batches::{Batches, keep_working};
use crate::clock::now_ms;
use crate::config::Config;
use crate::core::Core;
use crate::directory::Directory;
use crate::evidence::{Evidence, Times};
use crate::files::keep_swept;
use crate::http::receive::Bodies;
use crate::http::server;
use crate::hub::Hub;
use crate::links::Links;
use crate::metrics::{LiveCollector, Metrics};
use crate::recover::Orphans;
use crate::shadow::Shadow;
use crate::snapshot::Snapshot;
use crate::tables::Tables;
use crate::timers::Timers;
use crate::vllm_metrics::VllmCollector;
use crate::worker_metrics::WorkerCollector;

/// How often ended runs are looked through for events whose retention is over.
const EXPIRE_EVERY: Duration = Duration::from_secs(30);
/// How soon a full disk, and the space on it afterwards, shows in readiness.
const LOOK_AT_STORE_EVERY: Duration = Duration::from_millis(500);
/// How long a store refuses every write before its gateway ends: a server's refusal may pass, a medium's does not.
const BROKEN_FOR: Duration = Duration::from_secs(2);
/// Runs whose events are dropped in one commit.
const EXPIRE_AT_ONCE: usize = 256;

/// A running gateway. Cloning shares it.
#[derive(Clone)]
pub struct Gateway(Arc<Core>);

/// What a worker looks like from here.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Whether there is a session with it.
    pub connected: bool,
    /// Whether it takes no new runs.
    pub draining: bool,
    /// Digests of the versions it serves.
    pub digests: Vec<String>,
    /// Runs of this gateway on it.
    pub in_flight: u32,
    /// KV positions it has.
    pub kv_tokens: u64,
    /// What it last said of itself.
    pub status: weir_protocol::worker::WorkerStatus,
}

impl Gateway {
    /// Starts a gateway on a store: makes its live runs known, opens sessions with the workers, and begins to settle what no worker
    /// holds. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn start(
        config: Config,
        store: Arc<dyn Store>,
        registry: &weir_telemetry::Metrics,
        snapshot: Snapshot,
    ) -> Result<Self, StoreError> {
        let (audit, applied) = AuditSender::new();
        let core = Arc::new(Core {
            alerts: AlertState::new(registry),
            audit,
            hub: Arc::new(Hub::new(config.tail_events)),
            bodies: Bodies::new(config.bodies_bytes),
            tokenizers: TokenizerPool::new(config.tokenizer_threads, config.tokenizer_queue),
            evidence: Evidence::new(
                config.replica.clone(),
                Times {
                    settle: config.settle,
                    warm_up: config.warm_up,
                },
            ),
            config,
            store,
            metrics: Arc::new(Metrics::new(registry)),
            tracer: Tracer::from_env_or_off("weir-gateway", registry),
            directory: ArcSwap::from_pointee(Directory::new(
                Snapshot::default(),
                &Tables::default(),
                &Arc::default(),
                &KeyUse::default(),
            )),
            key_use: KeyUse::default(),
            shadow: Shadow::default(),
            tables: Tables::default(),
            queues: Queues::default(),
            links: Links::default(),
            orphans: Orphans::default(),
            adopting: parking_lot::Mutex::default(),
            batches: Batches::default(),
            timers: Timers::default(),
            draining: false.into(),
            tls: std::sync::OnceLock::new(),
            handshakes: crate::http::secured::Handshakes::default(),
            identity: std::sync::OnceLock::new(),
            quieter: tokio::sync::Notify::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let workers = WorkerCollector(Arc::downgrade(&core));
        let live = LiveCollector(Arc::downgrade(&core));
        registry.with(|registry| {
            registry.register_collector(Box::new(workers));
            registry.register_collector(Box::new(live));
        });
        let found = core.find_orphans().await?;
        if found > 0 {
            tracing::info!(runs = found, "runs were live when the last gateway ended");
        }
        let gateway = Self(core);
        gateway.apply(snapshot);
        let core = &gateway.0;
        core.spawn(Arc::clone(core).keep_time());
        core.spawn(Arc::clone(core).settle_orphans());
        core.spawn(Arc::clone(core).keep_company());
        core.spawn(Arc::clone(core).sweep());
        core.spawn(Arc::clone(core).keep_evidence());
        core.spawn(Arc::clone(core).keep_key_uses());
        core.spawn(expire(Arc::clone(core)));
        core.spawn(keep_working(Arc::clone(core)));
        core.spawn(keep_swept(Arc::clone(core)));
        core.spawn(alerts::watch(Arc::clone(core)));
        core.spawn(alerts::deliver(Arc::clone(core)));
        core.spawn(audit::follow(Arc::clone(&core.store), applied));
        Ok(gateway)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Swaps everything that can change. Live runs go on as they were accepted.
    pub fn apply(&self, snapshot: Snapshot) {
        let workers = snapshot.workers.clone();
        let actor = Actor::new("manifests", &self.0.config.replica);
        self.0.audit.snapshot(&snapshot, actor);
        for tenant in &snapshot.tenants {
            // Its limits may be others: what is used may be beyond a threshold now.
            self.0.alerts.touch(&tenant.name);
        }
        let before = Arc::clone(&self.0.directory.load().identity);
        self.0.shadow.apply(&self.0, &snapshot.models);
        let directory = Directory::new(snapshot, &self.0.tables, &before, &self.0.key_use);
        self.0.directory.store(Arc::new(directory));
        self.0.links.apply(&self.0, &workers);
        self.0.quieter.notify_waiters();
    }

    /// The first snapshot was applied: says so in `readiness` as soon as its workers were reached, or after a few seconds without them.
    pub(crate) fn take_part(&self, readiness: Readiness) {
        let core = Arc::clone(&self.0);
        self.0.spawn(async move {
            core.meet_workers().await;
            readiness.set_ready("snapshot");
        });
    }

    /// From now on [`Gateway::serve`] speaks HTTPS with this certificate, and takes over new content of its files. Once for a gateway.
    pub fn secure(&self, tls: crate::Tls) {
        let core = &self.0;
        if core.tls.set(tls).is_err() {
            tracing::error!("the listener has a certificate already; the second one is not used");
            return;
        }
        let following = Arc::clone(core);
        core.spawn(async move {
            if let Some(tls) = following.tls.get() {
                let (metrics, stop) = (Arc::clone(&following.metrics), following.stop.clone());
                tls.follow(metrics, stop).await;
            }
        });
    }

    /// From now on workers reached by TCP must prove themselves, and this gateway does to them; new content of the files is taken over. Before
    /// there is a worker, and once for a gateway.
    pub fn identify(&self, identity: Arc<Identity>) {
        let core = &self.0;
        if core.identity.set(Arc::clone(&identity)).is_err() {
            tracing::error!("the gateway has an identity already; the second one is not used");
            return;
        }
        let metrics = Arc::clone(&core.metrics);
        core.spawn(identity.follow(core.stop.clone(), move |reload| {
            if let Reload::Taken(now) = reload {
                metrics.identity(now.life());
            }
        }));
    }

    /// Shows the workers and their runs under vLLM's names too: on one machine nobody scrapes the workers themselves. On a cluster the workers
    /// do that, and the same figures must not come from two processes.
    pub fn show_as_vllm(&self, registry: &weir_telemetry::Metrics) {
        self.0.metrics.show_as_vllm(registry);
        let collector = VllmCollector(Arc::downgrade(&self.0));
        registry.with(|registry| registry.register_collector(Box::new(collector)));
    }

    /// Serves HTTP until `stop`; then refuses new runs, finishes the streams that are open, for at most `grace`, and returns. Runs that
    /// are still live stay with their workers and in the store for the next gateway.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken, grace: Duration) {
        let core = Arc::clone(&self.0);
        let draining = stop.clone();
        let mark = async {
            draining.cancelled().await;
            core.draining.store(true, Ordering::Release);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server::serve(Arc::clone(&self.0), listener, stop, grace) => {}
            () = mark => {}
        }
    }

    /// Says whether the store lets runs in, in `readiness`, and returns when it will take no write any more, with what it says: a store
    /// whose medium failed, or whose server refuses what it is told. Whoever runs the gateway then ends the process without waiting for
    /// anything: the store's next opening, or another gateway, knows what is durable and carries the runs on. Of a store that is full or
    /// away it only tells.
    pub async fn watch_store(&self, readiness: Readiness) -> StoreError {
        let mut broken_since = None;
        loop {
            let now = Instant::now();
            if let Some(error) = self.0.store.closed_to_runs() {
                readiness.set_not_ready("store", error.to_string());
                let broken = matches!(error, StoreError::Write { .. });
                broken_since = broken.then(|| broken_since.unwrap_or(now));
                if broken_since.is_some_and(|since| now - since >= BROKEN_FOR) {
                    return error;
                }
            } else {
                readiness.set_ready("store");
                broken_since = None;
            }
            tokio::time::sleep(LOOK_AT_STORE_EVERY).await;
        }
    }

    /// Refuses new runs from now on and waits until no run is live, for at most `within`; how many are left.
    pub async fn drain(&self, within: Duration) -> usize {
        self.0.draining.store(true, Ordering::Release);
        let until = Instant::now() + within;
        loop {
            let mut quieter = std::pin::pin!(self.0.quieter.notified());
            quieter.as_mut().enable();
            let live = self.0.hub.len();
            if live == 0 || tokio::time::timeout_at(until, quieter).await.is_err() {
                return live;
            }
        }
    }

    /// Ends the sessions with the workers once what they sent is durable, and every task of the gateway. Live runs stay in the store and
    /// with their workers; the store may be closed afterwards.
    pub async fn stop(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        if let Err(error) = self.0.key_use.write(&*self.0.store).await {
            tracing::warn!(%error, "cannot write when keys were last used");
        }
    }

    /// The supervisor saw this worker's process end: its runs need not wait for it to come back.
    pub fn worker_died(&self, name: &str) {
        self.0.links.died(name);
    }

    /// Whether a request for this version would find a worker.
    pub fn is_served(&self, pool: &str, digest: &str) -> bool {
        self.0.links.serves(pool, digest)
    }

    /// The workers, as last heard.
    pub fn workers(&self) -> Vec<WorkerView> {
        let handles = self.0.links.handles();
        handles
            .iter()
            .map(|link| {
                let facts = link.facts.lock().clone();
                WorkerView {
                    name: link.endpoint.name.clone(),
                    pool: link.endpoint.pool.clone(),
                    connected: link.connected.load(Ordering::Acquire),
                    draining: link.draining.load(Ordering::Acquire),
                    digests: facts.digests,
                    in_flight: link.in_flight.load(Ordering::Acquire),
                    kv_tokens: link.kv_tokens(),
                    status: facts.status,
                }
            })
            .collect()
    }

    /// The order of the routing table that new runs of a model follow, and for how long they have; none before there is one.
    pub fn acknowledged(&self, model: &str) -> Option<(TableOrder, Duration)> {
        let in_force = self.0.tables.get(model)?;
        Some((in_force.table.order, in_force.since.elapsed()))
    }

    /// What this gateway has counted of a model's versions since it started, by the table under which each run was assigned.
    pub fn evidence(&self, model: &str) -> weir_rollout::evidence::Snapshot {
        self.0.evidence.snapshot(model)
    }

    /// What this gateway has counted of a model's version in the shadow, if one is there.
    pub fn shadow(&self, model: &str) -> Option<weir_rollout::report::ShadowReport> {
        self.0.shadow.counts(model)
    }

    /// Runs that are not terminal.
    pub fn live_runs(&self) -> usize {
        self.0.hub.len()
    }

    /// Runs that wait for a worker of a pool.
    pub fn queue_depth(&self, pool: &str) -> usize {
        self.0.queues.depth(pool)
    }

    /// Waits until something about workers or live runs changed.
    pub async fn changed(&self) {
        self.0.quieter.notified().await;
    }
}

async fn expire(core: Arc<Core>) {
    loop {
        match core.store.expire(now_ms(), EXPIRE_AT_ONCE).await {
            Ok(EXPIRE_AT_ONCE..) => continue,
            Ok(_) => {}
            Err(StoreError::Closed) => return,
            Err(error) => tracing::warn!(%error, "cannot drop events whose retention is over"),
        }
        tokio::time::sleep(EXPIRE_EVERY).await;
    }
}
