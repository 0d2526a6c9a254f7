//! `weir up`: everything on one machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use arc_swap::ArcSwap;
use clap::Parser;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use weir_gateway::{Gateway, Snapshot, StoreChoice, Tls, TlsFiles};
use weir_store::Durability;
use weir_telemetry::admin::{Action, Admin, Page};
use weir_telemetry::logging::{self, LogFormat};
use weir_telemetry::shutdown::{Ending, run_until_signal};
use weir_telemetry::{Metrics, Readiness, bind};

use crate::cache::CacheArgs;
use crate::up::course::ObjectCollector;
use crate::up::fetches::Fetches;
use crate::up::report::{Format, Pages, Report};
use crate::up::rollouts::{Rollouts, posted};
use crate::up::self_signed;
use crate::up::serve::{Asked, Serving};
use crate::up::workers::Workers;

/// Serve the models of a directory of manifests on this machine, without a cluster.
///
/// Reads every YAML file in DIR (`ModelVersion`, `GpuPool`, `TenantQuota`, `Secret`, the `ConfigMap`s named weir-trust and weir-gateway), verifies signatures, starts
/// workers, and serves HTTP. Changes of the files come into force while it runs; what is wrong with them is said and changes nothing
/// that serves.
#[derive(Debug, Parser)]
pub struct Args {
    /// Directory of manifests.
    dir: PathBuf,
    /// Where to serve HTTP.
    #[arg(long, env = "WEIR_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// PEM file with the certificate for HTTPS; followed while it changes.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve HTTPS with a certificate made here, in the data folder; clients trust it by `--ca` or what they have in its place.
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Where to serve health, metrics and `/objects`.
    #[arg(long, env = "WEIR_ADMIN_LISTEN", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// Where to keep runs, events and budgets.
    #[arg(long, env = "WEIR_DATA", default_value = ".weir")]
    data: PathBuf,
    /// The store: an engine in the data folder (log, redb or sled), or postgres://USER:PASSWORD@HOST:PORT/DATABASE. Without it the
    /// engine that made the folder, else log.
    #[arg(long, env = "WEIR_STORE", hide_env_values = true)]
    store: Option<String>,
    /// What an acknowledged event has survived: disk (the machine's end), or memory (the process's end). Memory is of the log alone.
    #[arg(long, env = "WEIR_DURABILITY", default_value_t = Durability::default().as_str().to_owned())]
    durability: String,
    #[command(flatten)]
    cache: CacheArgs,
    /// Print one JSON object a line instead of text.
    #[arg(long)]
    json: bool,
    /// Seconds that streams and runs get to finish after SIGINT or SIGTERM.
    #[arg(long, default_value_t = 30)]
    drain_s: u64,
    /// Format of the log on stderr: text or json.
    #[arg(long, env = "WEIR_LOG_FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Beyond the drain: time to stop workers and close the store.
const AFTER_DRAIN: Duration = Duration::from_secs(15);

/// Runs the command.
///
/// # Errors
/// The directory, an address or the store cannot be used.
pub fn run(args: Args) -> Result<ExitCode> {
    logging::init(args.log_format).context("cannot write the log")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let deadline = Duration::from_secs(args.drain_s) + AFTER_DRAIN;
    let ending = runtime.block_on(run_until_signal(deadline, |stop| serve(args, stop)))?;
    let code = match ending {
        Ending::Finished(result) => result.map(|()| ExitCode::SUCCESS),
        Ending::DeadlinePassed => {
            bail!("what was running did not end in time and was cut; --drain-s gives it more")
        }
        Ending::Forced => Ok(ExitCode::FAILURE),
    };
    runtime.shutdown_background();
    code
}

async fn serve(args: Args, stop: CancellationToken) -> Result<()> {
    check_dir(&args.dir)?;
    let (listener, listen) = bind(args.listen, "--listen").await?;
    let (admin_listener, admin) = bind(args.admin, "--admin").await?;
    let folder = args.data.join("store");
    let choice = StoreChoice {
        name: args.store.clone(),
        durability: args.durability.parse().map_err(anyhow::Error::msg)?,
    };
    let store = weir_gateway::open_store(&choice, folder, None).await?;
    let (metrics, readiness) = (Metrics::new(), Readiness::new());
    let config = weir_gateway::Config::default();
    let gateway = Gateway::start(config, Arc::clone(&store), &metrics, Snapshot::default()).await?;
    gateway.show_as_vllm(&metrics);
    let (scheme, ca) = secure(&gateway, &args, listen)?;
    let pages = Pages::default();
    let (ask, asked) = mpsc::channel(16);
    let ended = CancellationToken::new();
    let shown = show(&gateway, (metrics, readiness.clone()), &pages, ask);
    let course = Arc::clone(&pages.course);
    let console = gateway.console(Some(Page(Arc::new(move || course.page()))));
    tokio::spawn(shown.serve_with(console, admin_listener, ended.clone()));

    let drain = Duration::from_secs(args.drain_s);
    let (sender, changed) = mpsc::channel(1);
    let format = Format::of(args.json);
    let workers = Workers::new(&args.data, drain, sender).with_context(|| {
        format!(
            "cannot use the data directory {}; name another with --data",
            args.data.display()
        )
    })?;
    let report = Report::new(
        format,
        (format!("{scheme}://{listen}"), ca),
        admin.to_string(),
        pages,
        readiness.clone(),
    );
    let rollouts = Rollouts::open(&args.data).with_context(|| {
        format!(
            "cannot use the folder of rollouts in {}",
            args.data.display()
        )
    })?;
    let serving = Serving::new(
        args.dir,
        (workers, rollouts, Fetches::new(args.cache)),
        gateway.clone(),
        Arc::clone(&store),
        report,
    );
    let refusing = readiness.down_after(stop.clone());
    let requests = gateway.serve(listener, refusing, drain);
    let work = async { tokio::join!(serving.run(changed, asked, stop), requests) };
    let (serving, ()) = tokio::select! {
        done = work => done,
        // The workers keep what they have for the next start.
        error = gateway.watch_store(readiness.clone()) => return Err(error).context("the store failed"),
    };
    let left = gateway.drain(drain).await;
    if left > 0 {
        tracing::warn!(runs = left, "runs were left at the drain's deadline");
    }
    gateway.stop().await;
    serving.workers.stop().await;
    store.close(AFTER_DRAIN).await?;
    ended.cancel();
    Ok(())
}

/// Makes the gateway speak HTTPS where it has a certificate; what addresses begin with, and what clients have to trust where nobody else
/// vouches for it.
fn secure(
    gateway: &Gateway,
    args: &Args,
    listen: SocketAddr,
) -> Result<(&'static str, Option<PathBuf>)> {
    let (files, ca) = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => {
            let (cert, key) = (cert.clone(), key.clone());
            (TlsFiles { cert, key }, None)
        }
        _ if args.tls_self_signed => {
            let files = self_signed::files(&args.data.join("tls"), listen)?;
            let ca = files.cert.clone();
            (files, Some(ca))
        }
        _ => return Ok(("http", None)),
    };
    gateway.secure(Tls::open(files)?);
    Ok(("https", ca))
}

/// What the admin port shows and does: the gateway's own, the objects, and the rollouts.
fn show(
    gateway: &Gateway,
    (metrics, readiness): (Metrics, Readiness),
    pages: &Pages,
    ask: mpsc::Sender<Asked>,
) -> Admin {
    let collector = ObjectCollector {
        objects: Arc::clone(&pages.objects),
        course: Arc::clone(&pages.course),
    };
    metrics.with(|registry| registry.register_collector(Box::new(collector)));
    let mut actions = gateway.admin_actions();
    actions.insert("/rollouts", ask_rollout(ask));
    Admin {
        readiness,
        metrics,
        pages: BTreeMap::from([
            ("/objects", page(&pages.objects)),
            ("/rollouts", page(&pages.rollouts)),
        ]),
        actions,
        queries: gateway.admin_queries(),
    }
}

fn page(text: &Arc<ArcSwap<String>>) -> Page {
    let text = Arc::clone(text);
    Page(Arc::new(move || text.load().as_ref().clone()))
}

/// Hands a person's request to the loop and waits for what it decides.
fn ask_rollout(ask: mpsc::Sender<Asked>) -> Action {
    Action(Arc::new(move |body| {
        let ask = ask.clone();
        Box::pin(async move {
            let (model, request) = posted(&body)?;
            let (answer, answered) = oneshot::channel();
            let asked = Asked {
                model,
                request,
                answer,
            };
            let gone = |_| "weir up is shutting down".to_owned();
            ask.send(asked)
                .await
                .map_err(|error| gone(error.to_string()))?;
            let lines = answered.await.map_err(|error| gone(error.to_string()))??;
            serde_json::to_string(&lines).map_err(|error| error.to_string())
        })
    }))
}

fn check_dir(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        bail!(
            "{} is not a directory; name one that holds manifests, such as examples/quickstart",
            dir.display()
        );
    }
    Ok(())
}
