//! A worker process under supervision: of one version, or of all versions of a shared pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::up::said::SharedSaid;
use crate::up::supervisor::{WorkerSpec, WorkerState, supervise};

/// See the module.
pub(super) struct Host {
    /// Its process's name.
    pub(super) name: String,
    /// Where it listens.
    pub(super) socket: PathBuf,
    /// Folder of the plans of its versions, where it holds several.
    pub(super) versions: Option<PathBuf>,
    /// How it is.
    pub(super) state: watch::Receiver<WorkerState>,
    /// What it said of its plans.
    pub(super) said: SharedSaid,
    go: CancellationToken,
    stop: CancellationToken,
}

impl Host {
    /// Supervises a process, from when it may go. `changed` is told of all that becomes of it.
    pub(super) fn new(
        spec: WorkerSpec,
        (socket, versions): (PathBuf, Option<PathBuf>),
        (tasks, changed): (&TaskTracker, mpsc::Sender<()>),
        drain: Duration,
    ) -> Arc<Self> {
        let (sender, state) = watch::channel(WorkerState::Starting {
            progress: "starting".to_owned(),
        });
        let host = Arc::new(Self {
            name: spec.name.clone(),
            socket,
            versions,
            state,
            said: SharedSaid::default(),
            go: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let mut seen = host.state.clone();
        tokio::spawn(async move {
            while seen.changed().await.is_ok() {
                // A full channel already holds the news.
                let _ = changed.try_send(());
            }
            let _ = changed.try_send(());
        });
        let (go, stop, said) = (host.go.clone(), host.stop.clone(), Arc::clone(&host.said));
        tasks.spawn(async move {
            tokio::select! {
                () = go.cancelled() => supervise(spec, (sender, said), stop, drain).await,
                () = stop.cancelled() => {}
            }
        });
        host
    }

    /// Its plans are there: it may start.
    pub(super) fn go(&self) {
        self.go.cancel();
    }

    /// Has it drained and ended.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether it is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Whether it has ended as asked.
    pub(super) fn is_over(&self) -> bool {
        self.state.has_changed().is_err()
    }
}
