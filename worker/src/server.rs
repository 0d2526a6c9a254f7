//! Serves sessions until told to drain, until nobody is left to serve, or until the engine dies.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use weir_identity::{Identity, Role};
use weir_protocol::frames::{MAX_MESSAGE_BYTES, STREAM_WINDOW_BYTES};
use weir_protocol::worker::worker_server::WorkerServer;

use crate::doors::Doors;
use crate::engine::command::Command;
use crate::engine::snapshot::Snapshot;
use crate::engine::thread::{EngineEnd, EngineHandle};
use crate::error::WorkerError;
use crate::listen::Listener;
use crate::session::SessionService;

/// Time for frames that are on their way when the worker ends. hyper's graceful shutdown has no end of its own while a stream is
/// open (hyperium/hyper#4170), so it is not waited for any longer than this.
pub(crate) const FLUSH: Duration = Duration::from_secs(1);
/// A peer that answers no HTTP/2 ping for this long is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the order to drain to the end.
    pub(crate) drain: Duration,
    /// Without any session, if the worker ends by itself.
    pub(crate) orphan_grace: Option<Duration>,
}

/// Why a worker that did nothing wrong ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Told to; every run was finished and delivered.
    Drained,
    /// Told to; the runs left at the deadline were dropped, and their gateways see the session end.
    DrainDeadline,
    /// No gateway had a session for the orphan grace.
    Orphaned,
}

/// Serves on `listener` until the end.
///
/// # Errors
/// The engine or the listener failed.
pub(crate) async fn serve(
    engine: EngineHandle,
    (listener, identity): (Listener, Option<Arc<Identity>>),
    doors: Doors,
    patience: Patience,
    shutdown: CancellationToken,
) -> Result<Ended, WorkerError> {
    let EngineHandle {
        commands,
        snapshot,
        mut end,
        gone: _,
    } = engine;
    let service = SessionService(doors);
    let stop = CancellationToken::new();
    let mut server = tokio::spawn(serve_grpc(service, (listener, identity), stop.clone()));
    let ended = tokio::select! {
        end = &mut end => Err(engine_failed(end)),
        outcome = &mut server => Err(match outcome {
            Ok(Err(error)) => WorkerError::Serve { source: error },
            _ => WorkerError::ServerEnded,
        }),
        ended = until_drained(&commands, snapshot.clone(), patience.drain, &shutdown) => Ok(ended),
        () = until_orphaned(snapshot, patience.orphan_grace) => Ok(Ended::Orphaned),
    };
    // The engine ends the sessions, so the server has nothing left to wait for but frames on their way.
    let _ = timeout(FLUSH, commands.send(Command::Stop)).await;
    stop.cancel();
    if !server.is_finished() && timeout(FLUSH, &mut server).await.is_err() {
        server.abort();
    }
    ended
}

/// What an engine that ended unasked is said to have.
pub(crate) fn engine_failed(end: Result<EngineEnd, RecvError>) -> WorkerError {
    let reason = match end {
        Ok(EngineEnd::Failed(reason)) => reason,
        Ok(EngineEnd::Stopped) | Err(_) => "its thread ended unasked".to_owned(),
    };
    WorkerError::Engine { reason }
}

/// Takes sessions until `stop`.
pub(crate) async fn serve_grpc(
    service: SessionService,
    (listener, identity): (Listener, Option<Arc<Identity>>),
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = WorkerServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .tcp_nodelay(true);
    let stopped = stop.clone().cancelled_owned();
    match (listener, identity) {
        (Listener::Unix(listener, _file), _) => {
            server
                .serve_with_incoming_shutdown(service, UnixListenerStream::new(listener), stopped)
                .await
        }
        (Listener::Tcp(listener), Some(identity)) => {
            tokio::spawn(Arc::clone(&identity).follow(stop.clone(), |_| {}));
            let gateways = weir_identity::accept(listener, identity, Role::Gateway, stop);
            server
                .serve_with_incoming_shutdown(service, ReceiverStream::new(gateways), stopped)
                .await
        }
        (Listener::Tcp(listener), None) => {
            server
                .serve_with_incoming_shutdown(service, TcpListenerStream::new(listener), stopped)
                .await
        }
    }
}

/// Waits for the order, then until everything is delivered or the deadline passes.
pub(crate) async fn until_drained(
    commands: &mpsc::Sender<Command>,
    mut snapshot: watch::Receiver<Snapshot>,
    deadline: Duration,
    shutdown: &CancellationToken,
) -> Ended {
    shutdown.cancelled().await;
    let drained = async {
        if commands.send(Command::Drain).await.is_err()
            || !comes_to(&mut snapshot, Snapshot::is_drained).await
        {
            // The engine is gone; that is reported by its own end.
            std::future::pending::<()>().await;
        }
    };
    match timeout(deadline, drained).await {
        Ok(()) => Ended::Drained,
        Err(_) => Ended::DrainDeadline,
    }
}

/// Waits until there was no session for the grace.
async fn until_orphaned(mut snapshot: watch::Receiver<Snapshot>, grace: Option<Duration>) {
    let Some(grace) = grace else {
        return std::future::pending().await;
    };
    loop {
        tokio::select! {
            () = sleep(grace) => {
                tracing::warn!(?grace, "no gateway has a session");
                return;
            }
            visited = comes_to(&mut snapshot, |now| now.sessions > 0) => if !visited {
                return std::future::pending().await;
            }
        }
        if !comes_to(&mut snapshot, |now| now.sessions == 0).await {
            return std::future::pending().await;
        }
    }
}

/// Waits until the figures fit; false when there will be no more figures.
async fn comes_to(
    snapshot: &mut watch::Receiver<Snapshot>,
    fits: impl FnMut(&Snapshot) -> bool,
) -> bool {
    snapshot.wait_for(fits).await.is_ok()
}
