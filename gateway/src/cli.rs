//! The gateway as a process of its own: a snapshot from a file, a store in a folder, two ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use weir_identity::Identity;
use weir_store::{Durability, Store};
use weir_telemetry::admin::Admin;
use weir_telemetry::logging::LogFormat;
use weir_telemetry::service::{Failure, Service};
use weir_telemetry::{Metrics, Readiness, bind};

use crate::cluster::Cluster;
use crate::control::Asked;
use crate::{Config, Gateway, Snapshot, SnapshotFile, StoreChoice, Tls, TlsFiles, open_store};

/// How often the snapshot's file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Beyond the drain: time to end sessions and close the store.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

/// Serves inference over HTTP in front of workers.
#[derive(Clone, Debug, clap::Args)]
pub struct GatewayArgs {
    /// JSON file that says who may use what, and which workers there are; followed while it changes.
    #[arg(
        long,
        value_name = "FILE",
        env = "WEIR_SNAPSHOT",
        required_unless_present = "cluster",
        conflicts_with = "cluster"
    )]
    pub snapshot: Option<PathBuf>,
    /// Follow the API server instead: quotas, pools, versions that the operator verified, their workers and the shares of new runs.
    #[arg(long)]
    pub cluster: bool,
    /// The namespace that is followed; the one of the kubeconfig or of the pod where it is not given.
    #[arg(
        long,
        value_name = "NAME",
        env = "WEIR_NAMESPACE",
        requires = "cluster"
    )]
    pub namespace: Option<String>,
    /// Folder of the store.
    #[arg(
        long,
        value_name = "FOLDER",
        env = "WEIR_DATA",
        default_value = ".weir"
    )]
    pub data: PathBuf,
    /// The store: an engine in the folder (log, redb or sled), or postgres://USER:PASSWORD@HOST:PORT/DATABASE for any number of gateways.
    /// Without it the engine that made the folder, else log.
    #[arg(long, value_name = "STORE", env = "WEIR_STORE", hide_env_values = true)]
    pub store: Option<String>,
    /// What an acknowledged event has survived: disk (the machine's end), or memory (the process's end). Memory is of the log alone.
    #[arg(long, value_name = "WHERE", env = "WEIR_DURABILITY", default_value_t = Durability::default().as_str().to_owned())]
    pub durability: String,
    /// Where to serve clients.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// PEM file with the certificate for HTTPS; followed while it changes.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Folder with tls.crt, tls.key and ca.crt: workers reached by TCP must prove by a certificate of an authority in ca.crt that they are
    /// workers, and this gateway proves itself to them. Followed while it changes; it may be filled later.
    #[arg(long, value_name = "FOLDER", env = "WEIR_WORKLOAD_IDENTITY")]
    pub workload_identity: Option<PathBuf>,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    pub admin: SocketAddr,
    /// Where to serve the operator, who must prove by a certificate that it is one: what this gateway sees of a rollout, and tables of it.
    /// Where it is not given, whoever reaches the admin port may do that.
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "cluster",
        requires = "workload_identity"
    )]
    pub control: Option<SocketAddr>,
    /// Name of this process among several that share the store; no two that live may have one. Made up where it is not given.
    #[arg(long, value_name = "NAME", env = "WEIR_REPLICA")]
    pub replica: Option<String>,
    /// Seconds from the first signal to the end, for streams to finish.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_s: u64,
    /// Format of the log on stderr: text or json.
    #[arg(long, env = "WEIR_LOG_FORMAT", value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Runs until a signal; the exit status of the process.
pub fn main(args: GatewayArgs) -> ExitCode {
    let service = Service {
        name: "gateway",
        log_format: args.log_format,
        deadline: Duration::from_secs(args.drain_s) + AFTER_DRAIN,
    };
    service.run(&mut Builder::new_multi_thread(), |stop| serve(args, stop))
}

async fn serve(args: GatewayArgs, stop: CancellationToken) -> Result<(), Failure> {
    let GatewayArgs {
        snapshot,
        cluster,
        namespace,
        data,
        store,
        durability,
        listen,
        tls_cert,
        tls_key,
        workload_identity,
        admin,
        control,
        replica,
        drain_s,
        log_format: _,
    } = args;
    let choice = StoreChoice {
        name: store,
        durability: durability.parse()?,
    };
    let store = open_store(&choice, data.join("store"), replica.clone()).await?;
    let (metrics, readiness) = (Metrics::new(), Readiness::new());
    readiness.set_not_ready("snapshot", "no snapshot was read yet");
    let (admin_listener, _) = bind(admin, "--admin").await?;
    let usual = Config::default();
    let config = Config {
        replica: replica.unwrap_or(usual.replica),
        ..Config::default()
    };
    let gateway = Gateway::start(config, Arc::clone(&store), &metrics, Snapshot::default()).await?;
    let identity = show_certificates(&gateway, (tls_cert, tls_key), workload_identity)?;
    let mut shown = Admin {
        readiness: readiness.clone(),
        metrics: metrics.clone(),
        pages: BTreeMap::new(),
        actions: gateway.admin_actions(),
        queries: gateway.admin_queries(),
    };
    let following = if let Some(snapshot) = snapshot.filter(|_| !cluster) {
        let file = SnapshotFile::new(&snapshot);
        tokio::spawn(follow(file, gateway.clone(), readiness.clone()))
    } else {
        let cluster = Cluster::open(namespace, &data).await?;
        let asked = Asked {
            actions: cluster.actions(&gateway),
            queries: gateway.observed_queries(cluster.reads()),
        };
        asked.offer(control.zip(identity), &mut shown).await?;
        tokio::spawn(cluster.follow(gateway.clone(), readiness.clone()))
    };
    let never = CancellationToken::new();
    let admin = tokio::spawn(shown.serve_with(gateway.console(None), admin_listener, never));
    let (listener, bound) = bind(listen, "--listen").await?;
    tracing::info!(listen = %bound, "serving");
    let drain = Duration::from_secs(drain_s);
    tokio::select! {
        () = gateway.serve(listener, readiness.down_after(stop), drain) => {}
        error = gateway.watch_store(readiness.clone()) => return Err(Box::new(error)),
    }
    following.abort();
    end(&gateway, &*store).await?;
    admin.abort();
    Ok(())
}

/// To clients; and to workers and the operator: the identity that is returned.
fn show_certificates(
    gateway: &Gateway,
    tls: (Option<PathBuf>, Option<PathBuf>),
    workload_identity: Option<PathBuf>,
) -> Result<Option<Arc<Identity>>, Failure> {
    if let (Some(cert), Some(key)) = tls {
        gateway.secure(Tls::open(TlsFiles { cert, key })?);
    }
    let identity = workload_identity.map(|folder| Arc::new(Identity::awaited(&folder)));
    if let Some(identity) = &identity {
        gateway.identify(Arc::clone(identity));
    }
    Ok(identity)
}

async fn end(gateway: &Gateway, store: &dyn Store) -> Result<(), Failure> {
    let left = gateway.live_runs();
    if left > 0 {
        tracing::info!(
            runs = left,
            "runs stay with their workers for the next gateway"
        );
    }
    gateway.stop().await;
    store.close(AFTER_DRAIN).await?;
    Ok(())
}

/// Applies the file's snapshot whenever it changes; a broken file changes nothing that serves.
async fn follow(mut file: SnapshotFile, gateway: Gateway, readiness: Readiness) {
    let mut first = Some(readiness);
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let outcome = file.read();
            (file, outcome)
        });
        let Ok((returned, outcome)) = read.await else {
            tracing::error!("reading the snapshot failed; it is no longer followed");
            return;
        };
        file = returned;
        match outcome {
            Ok(Some(snapshot)) => {
                gateway.apply(snapshot);
                if let Some(readiness) = first.take() {
                    gateway.take_part(readiness);
                }
                tracing::info!("snapshot applied");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the snapshot was not taken"
                );
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
