//! The worker's command line, shared by its own binary and by `weir worker`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use weir_telemetry::logging::{self, LogFormat};
use weir_telemetry::shutdown::{EXIT_CONFIGURATION, Ending, run_until_signal};

use crate::announce::Announcer;
use crate::config::{
    Callers, Config, DeviceChoice, DeviceSettings, EngineSettings, Holds, KvDtype, WeightFormat,
};
use crate::error::{WorkerError, chain};
use crate::listen::Listen;
use crate::server::Ended;

/// Beyond the drain: time to flush frames and end the server.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

/// Two models, each with a version that replaces another one.
const VERSIONS_MAX: NonZeroU32 = NonZeroU32::new(4).expect("four is not zero");

/// Runs one model version, or several, and serves sessions of gateways.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkerArgs {
    /// Name of this worker, stable within its pool.
    #[arg(long, env = "WEIR_WORKER_NAME", default_value = "worker")]
    pub name: String,
    /// JSON file that says what to load and who must have signed it.
    #[arg(long, value_name = "FILE", required_unless_present = "versions")]
    pub load_plan: Option<PathBuf>,
    /// Folder with load plans of several versions, one in each `*.json` file, instead of one plan. Looked at all the time: a version is
    /// served while its file is there. Load plans of adapters of the version in NAME.json are in the folder NAME.adapters beside it.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["load_plan", "adapters"])]
    pub versions: Option<PathBuf>,
    /// With --versions: most versions at the same time. Each has an equal part of the memory for keys and values, whether others are there
    /// or not.
    #[arg(long, value_name = "COUNT", default_value_t = VERSIONS_MAX, requires = "versions")]
    pub max_versions: NonZeroU32,
    /// Folder with load plans of adapters of the model, one in each `*.json` file. Looked at all the time: an adapter is served while its
    /// file is there.
    #[arg(long, value_name = "FOLDER")]
    pub adapters: Option<PathBuf>,
    /// Where to take sessions: `unix:/path/to/socket` or `tcp:127.0.0.1:7000`.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Listen,
    /// Folder with tls.crt, tls.key and ca.crt: sessions by TCP are taken from gateways only, which prove themselves by a certificate of an
    /// authority in ca.crt. Followed while it changes.
    #[arg(long, value_name = "FOLDER", env = "WEIR_WORKLOAD_IDENTITY")]
    pub workload_identity: Option<PathBuf>,
    /// Take sessions without TLS at an address that other machines reach. Something else must keep others away, such as a network policy.
    #[arg(long, conflicts_with = "workload_identity")]
    pub plain_sessions: bool,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<SocketAddr>,
    /// What to run the model on.
    #[arg(long, env = "WEIR_DEVICE", value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Folder where compiled kernels of a GPU are kept; only the worker may write there [default: compile at each start].
    #[arg(long, env = "WEIR_KERNEL_CACHE", value_name = "FOLDER")]
    pub kernel_cache: Option<PathBuf>,
    /// Threads for the forward pass [default: all cores].
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<usize>,
    /// Sequences that run at the same time [default: 64, on a GPU 256].
    #[arg(long, value_name = "COUNT")]
    pub max_running: Option<u32>,
    /// Tokens per engine step [default: 2048, on a GPU 8192].
    #[arg(long, value_name = "TOKENS")]
    pub max_batch_tokens: Option<u32>,
    /// Bytes of memory for keys and values [default: 1 GiB, on a GPU nine tenths of what weights and steps leave].
    #[arg(long, value_name = "BYTES")]
    pub kv_bytes: Option<u64>,
    /// Positions per KV block.
    #[arg(long, value_name = "TOKENS", default_value_t = EngineSettings::default().block_tokens)]
    pub block_tokens: u32,
    /// Number format of keys and values. A GPU keeps them as the weights are, in 16 bits, or for int8 as fp8 numbers.
    #[arg(long, value_enum, default_value_t = EngineSettings::default().kv_dtype)]
    pub kv_dtype: KvDtype,
    /// What becomes of the weights when they are loaded.
    #[arg(long, value_enum, default_value_t = EngineSettings::default().weights)]
    pub weights: WeightFormat,
    /// Tokens guessed ahead per sequence and step, from what followed the same words before; the output does not change. 0 is none, 15
    /// the most. A GPU guesses none.
    #[arg(long, value_name = "COUNT", default_value_t = EngineSettings::default().draft_tokens)]
    pub draft_tokens: u32,
    /// Sequences that may wait; one more is refused.
    #[arg(long, value_name = "COUNT", default_value_t = EngineSettings::default().max_waiting)]
    pub max_waiting: u32,
    /// End when no gateway had a session for so many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub orphan_grace_s: Option<u64>,
    /// Seconds from SIGTERM to the end, for runs to finish.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_s: u64,
    /// Format of the log on stderr: text or json.
    #[arg(long, env = "WEIR_LOG_FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl From<WorkerArgs> for Config {
    fn from(args: WorkerArgs) -> Self {
        Self {
            name: args.name,
            holds: match (args.versions, args.load_plan) {
                (Some(plans), _) => Holds::Several {
                    plans,
                    most: args.max_versions,
                },
                (None, plan) => Holds::One {
                    plan: plan.unwrap_or_default(),
                    adapters: args.adapters,
                },
            },
            listen: args.listen,
            callers: match (args.workload_identity, args.plain_sessions) {
                (Some(folder), _) => Callers::Gateways(folder),
                (None, true) => Callers::Anybody,
                (None, false) => Callers::Local,
            },
            admin: args.admin,
            engine: EngineSettings {
                max_running: args.max_running,
                max_batch_tokens: args.max_batch_tokens,
                kv_bytes: args.kv_bytes,
                block_tokens: args.block_tokens,
                kv_dtype: args.kv_dtype,
                weights: args.weights,
                draft_tokens: args.draft_tokens,
                max_waiting: args.max_waiting,
                threads: args.threads,
            },
            device: DeviceSettings {
                choice: args.device,
                kernel_cache: args.kernel_cache,
            },
            orphan_grace: args.orphan_grace_s.map(Duration::from_secs),
            drain: Duration::from_secs(args.drain_s),
        }
    }
}

/// A worker process from its arguments to its exit status: 0 after a drain or an orphan's end, 78 where what it was given is at
/// fault, 1 after a crash. The last line on stdout says why, for the parent.
pub fn main(args: WorkerArgs) -> ExitCode {
    let announcer = Announcer::stdout();
    if let Err(error) = logging::init(args.log_format) {
        announcer.failed("LogInvalid", &chain(&error));
        return ExitCode::from(EXIT_CONFIGURATION);
    }
    let config = Config::from(args);
    tracing::info!(?config, "starting");
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            announcer.failed("RuntimeFailed", &error.to_string());
            return ExitCode::FAILURE;
        }
    };
    let deadline = config.drain + AFTER_DRAIN;
    let ending = runtime.block_on(run_until_signal(deadline, |shutdown| {
        crate::run(config, &announcer, shutdown)
    }));
    let code = match ending {
        Ok(Ending::Finished(Ok(ended))) => {
            tracing::info!(?ended, "the worker ends");
            if ended == Ended::DrainDeadline {
                tracing::warn!(
                    "runs were left at the drain's deadline; their gateways see them interrupted"
                );
            }
            ExitCode::SUCCESS
        }
        Ok(Ending::Finished(Err(error))) => say_failure(&announcer, &error),
        Ok(Ending::DeadlinePassed | Ending::Forced) => ExitCode::FAILURE,
        Err(error) => {
            announcer.failed("SignalsFailed", &error.to_string());
            ExitCode::FAILURE
        }
    };
    // Not waiting for threads: the engine's may be inside a long step.
    runtime.shutdown_background();
    code
}

fn say_failure(announcer: &Announcer, error: &WorkerError) -> ExitCode {
    let message = chain(error);
    tracing::error!(reason = error.reason(), message, "the worker ends");
    announcer.failed(error.reason(), &message);
    error.exit_code()
}
