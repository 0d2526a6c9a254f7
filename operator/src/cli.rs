//! The operator's command line, and its start.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Config};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_telemetry::admin::Admin;
use weir_telemetry::logging::LogFormat;
use weir_telemetry::service::{Failure, Service};
use weir_telemetry::{Metrics, Readiness, bind};

use crate::apply::Applier;
use crate::authority::Authority;
use crate::board::Board;
use crate::controllers::{Controllers, Counts};
use crate::events::Events;
use crate::fetches::Fetches;
use crate::figures::Figures;
use crate::gateways::Gateways;
use crate::http::Proof;
use crate::leader::Elector;
use crate::model::build::Shape;
use crate::model::{self, Models};
use crate::pool::{self, Pools};
use crate::quota::{self, Quotas};
use crate::statuses::Statuses;
use crate::verdicts::Verdicts;
use crate::verify::Verifier;
use crate::world::World;

/// The lease of who acts.
const LEASE: &str = "weir-operator";
/// How long the API server may take to answer what is no watch. One that hangs must not hold up what can be done without it.
const API_ANSWERS: Duration = Duration::from_secs(5);
/// From a signal to the end.
const GRACE: Duration = Duration::from_secs(15);

/// Turns model versions, pools and quotas into workers, and moves traffic between versions.
#[derive(Clone, Debug, clap::Args)]
pub struct OperatorArgs {
    /// The namespace whose objects are looked after; the one of the kubeconfig or of the pod where it is not given.
    #[arg(long, value_name = "NAME", env = "WEIR_NAMESPACE")]
    pub namespace: Option<String>,
    /// Image of the workers.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "WEIR_WORKER_IMAGE",
        default_value = "weir-worker:latest"
    )]
    pub worker_image: String,
    /// Where volumes with artifacts are mounted, each under its claim's name, here as in workers and gateways.
    #[arg(
        long,
        value_name = "FOLDER",
        env = "WEIR_ARTIFACTS",
        default_value = "/artifacts"
    )]
    pub artifacts: String,
    /// Folder of every node that workers keep fetched artifacts in, of pools that name no claim for it. It must be there, and writable by
    /// user 65532. Where it is not given, each pod has a cache of its own.
    #[arg(long, value_name = "FOLDER", env = "WEIR_NODE_CACHE")]
    pub node_cache: Option<String>,
    /// Seconds that a worker may take to finish its runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub worker_drain_s: u64,
    /// Make operator, gateways and workers prove themselves to each other by TLS: keep an authority of this namespace, issue their
    /// certificates into the Secrets weir-gateway-identity and weir-worker-identity, and renew them. Gateways need --workload-identity and
    /// --control then.
    #[arg(long, env = "WEIR_MUTUAL_TLS")]
    pub mutual_tls: bool,
    /// Hours that such a certificate lives; it is renewed at two thirds, and the authority lives twelve times as long.
    #[arg(long, value_name = "HOURS", default_value_t = 720, value_parser = clap::value_parser!(u32).range(1..=8784), requires = "mutual_tls")]
    pub certificate_hours: u32,
    /// Name of this process among several operators; the pod's name where it is not given.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    pub admin: SocketAddr,
    /// Format of the log on stderr: text or json.
    #[arg(long, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Runs until a signal; the exit status of the process.
pub fn main(args: OperatorArgs) -> ExitCode {
    let service = Service {
        name: "operator",
        log_format: args.log_format,
        deadline: GRACE,
    };
    service.run(Builder::new_multi_thread().worker_threads(2), |stop| {
        run(args, stop)
    })
}

async fn run(args: OperatorArgs, stop: CancellationToken) -> Result<(), Failure> {
    let OperatorArgs {
        namespace,
        worker_image,
        artifacts,
        node_cache,
        worker_drain_s,
        mutual_tls,
        certificate_hours,
        identity,
        admin,
        log_format: _,
    } = args;
    let config = Config::infer().await?;
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    let client = prompt(&config)?;
    let watching = Client::try_from(config)?;
    let made_up = format!("operator-{:08x}", getrandom::u32()?);
    let identity = identity.unwrap_or(made_up);
    tracing::info!(namespace, identity, worker_image, artifacts, "starting");
    let (metrics, readiness) = (Metrics::new(), Readiness::new());
    readiness.set_not_ready("watches", "not everything was listed yet");
    let admin = show(admin, &metrics, &readiness).await?;
    let tasks = TaskTracker::new();
    let world = World::watch(&watching, &namespace, &tasks);
    // Only whoever knows the world may lead it.
    tokio::select! {
        ready = world.ready() => ready?,
        () = stop.cancelled() => return Ok(()),
    }
    readiness.set_ready("watches");
    let proof = mutual_tls.then(Proof::default);
    let gateways = Gateways::new(world.pods.clone(), world.agenda.clone(), proof.clone());
    let elector = Elector::new(client.clone(), &namespace, LEASE, identity.clone());
    let leadership = elector.leadership();
    let figures = metrics.clone();
    let controllers = controllers(
        &client,
        world,
        gateways.clone(),
        Started {
            identity,
            leadership,
            metrics,
            shape: Shape {
                namespace: namespace.clone(),
                worker_image,
                artifacts,
                node_cache: node_cache.filter(|folder| !folder.is_empty()),
                drain_s: worker_drain_s,
                is_mutual: mutual_tls,
            },
        },
    )?;
    let life = Duration::from_hours(certificate_hours.into());
    let applier = controllers.models.applier.clone();
    let authority = proof.map(|own| Authority::new(applier, namespace, life, own, &figures));
    begin(&controllers, gateways, authority, &stop);
    // The lease is given back only when nothing is written any more.
    let released = CancellationToken::new();
    let elected = tokio::spawn(elector.run(released.clone()));
    Arc::new(controllers).run(stop).await;
    released.cancel();
    elected.await?;
    admin.abort();
    Ok(())
}

/// The admin server, which begins at once.
async fn show(
    address: SocketAddr,
    metrics: &Metrics,
    readiness: &Readiness,
) -> Result<JoinHandle<std::io::Result<()>>, Failure> {
    let (listener, _) = bind(address, "--admin").await?;
    let served = Admin {
        readiness: readiness.clone(),
        metrics: metrics.clone(),
        pages: BTreeMap::new(),
        actions: BTreeMap::new(),
        queries: BTreeMap::new(),
    };
    Ok(tokio::spawn(
        served.serve(listener, CancellationToken::new()),
    ))
}

/// Asks gateways and workers, and issues certificates where somebody is to, until `stop`.
fn begin(
    controllers: &Controllers,
    gateways: Gateways,
    authority: Option<Authority>,
    stop: &CancellationToken,
) {
    if let Some(authority) = authority {
        tokio::spawn(authority.run(stop.clone()));
    }
    tokio::spawn(gateways.run(stop.clone()));
    tokio::spawn(controllers.models.fetches.clone().run(stop.clone()));
}

/// A client for everything but watches, which may be silent for long.
fn prompt(config: &Config) -> Result<Client, kube::Error> {
    let mut config = config.clone();
    config.connect_timeout = Some(API_ANSWERS);
    config.read_timeout = Some(API_ANSWERS);
    // The time that a connection was idle is nobody's fault.
    config.reset_reader_on_write = true;
    Client::try_from(config)
}

struct Started {
    identity: String,
    leadership: crate::leader::Leadership,
    metrics: Metrics,
    shape: Shape,
}

fn controllers(
    client: &Client,
    world: World,
    gateways: Gateways,
    started: Started,
) -> Result<Controllers, Failure> {
    let Started {
        identity,
        leadership,
        metrics,
        shape,
    } = started;
    let applier = Applier::new(client.clone(), &shape.namespace, leadership.clone());
    let mut entropy = [0; 32];
    getrandom::fill(&mut entropy)?;
    let board = Board::default();
    Ok(Controllers {
        models: Models {
            world: world.clone(),
            gateways: gateways.clone(),
            applier: applier.clone(),
            leadership: leadership.clone(),
            verifier: Arc::new(Verifier::new(&shape.artifacts, world.agenda.clone())),
            events: Events::new(client.clone(), &identity),
            fetches: Fetches::new(world.pods.clone(), world.agenda.clone()),
            shape: shape.clone(),
            board: board.clone(),
            entropy,
            memories: parking_lot::Mutex::default(),
            statuses: Statuses::new("ModelVersion", model::status::MOVING),
            figures: Figures::new(&metrics, &world, &leadership),
        },
        pools: Pools {
            world: world.clone(),
            gateways: gateways.clone(),
            applier: applier.clone(),
            leadership: leadership.clone(),
            board,
            scalers: parking_lot::Mutex::default(),
            statuses: Statuses::new("GpuPool", pool::status::MOVING),
            verdicts: Verdicts::default(),
            shape,
            writes: parking_lot::Mutex::default(),
        },
        quotas: Quotas {
            world: world.clone(),
            gateways,
            applier,
            leadership: leadership.clone(),
            statuses: Statuses::new("TenantQuota", quota::status::MOVING),
            verdicts: Verdicts::default(),
        },
        counts: Counts::new(&metrics),
        leadership,
        world,
    })
}
