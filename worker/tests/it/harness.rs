//! A worker in this process, on a socket of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_model::backend::{Backend, BackendLimits};
use weir_telemetry::{Metrics, Readiness};
use weir_worker::{Announcer, Ended, Listen, Loaded, Serving, WorkerError, serve_loaded};

use crate::fake::{Controls, END, FakeBackend, VOCAB, tokenizer};

/// What the test worker serves.
pub(crate) const DIGEST: &str =
    "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Small enough to run full, large enough for 64 runs at once.
pub(crate) const LIMITS: BackendLimits = BackendLimits {
    blocks: 512,
    block_tokens: 16,
    max_running: 64,
    max_batch_tokens: 256,
    context_tokens: 512,
    kv_bytes: 1 << 20,
    max_drafts: u32::MAX,
    scores_prompts: true,
};

pub(crate) struct TestWorker {
    dir: tempfile::TempDir,
    pub(crate) controls: Controls,
    pub(crate) shutdown: CancellationToken,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
    task: JoinHandle<Result<Ended, WorkerError>>,
}

/// How a test worker differs from the usual one.
pub(crate) struct Options {
    pub(crate) limits: BackendLimits,
    pub(crate) orphan_grace: Option<Duration>,
    pub(crate) drain: Duration,
    pub(crate) max_waiting: u32,
    pub(crate) draft_tokens: u32,
    /// Whether the function is a device that is given steps ahead; it takes no guesses then.
    pub(crate) runs_ahead: bool,
    /// A real one instead of the function, with its vocabulary.
    pub(crate) backend: Option<(Box<dyn Backend>, u32)>,
    pub(crate) adapters: Option<PathBuf>,
    pub(crate) announcer: Announcer,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: LIMITS,
            orphan_grace: None,
            drain: Duration::from_secs(10),
            max_waiting: 256,
            draft_tokens: 7,
            runs_ahead: false,
            backend: None,
            adapters: None,
            announcer: Announcer::silent(),
        }
    }
}

impl TestWorker {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let controls = Controls::default();
        let (backend, vocab): (Box<dyn Backend>, u32) = options.backend.unwrap_or_else(|| {
            let mut limits = options.limits;
            if options.runs_ahead {
                limits.max_drafts = 0;
            }
            let fake = FakeBackend::new(limits, controls.clone(), options.runs_ahead);
            (Box::new(fake), VOCAB)
        });
        let loaded = Loaded {
            version_digest: DIGEST.to_owned(),
            model: "fake".to_owned(),
            version: 1,
            vocab,
            end_tokens: vec![END],
            tokenizer: tokenizer(),
            backend,
        };
        let (readiness, metrics) = (Readiness::new(), Metrics::new());
        readiness.set_not_ready("engine", "starting");
        let serving = Serving {
            name: "w0".to_owned(),
            listen: Listen::Unix(socket_in(dir.path())),
            identity: None,
            orphan_grace: options.orphan_grace,
            drain: options.drain,
            max_waiting: options.max_waiting,
            draft_tokens: options.draft_tokens,
            adapters: options.adapters,
            readiness: readiness.clone(),
            metrics: metrics.clone(),
        };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { serve_loaded(loaded, serving, &options.announcer, shutdown).await }
        });
        tokio::time::timeout(crate::gateway::PATIENCE, readiness.wait_until_ready())
            .await
            .expect("ready in time");
        Self {
            dir,
            controls,
            shutdown,
            readiness,
            metrics,
            task,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket_in(self.dir.path())
    }

    /// How it ended; waits for it.
    pub(crate) async fn ended(self) -> Result<Ended, WorkerError> {
        self.controls.release();
        tokio::time::timeout(crate::gateway::PATIENCE, self.task)
            .await
            .expect("it ends in time")
            .unwrap()
    }
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("worker.sock")
}
