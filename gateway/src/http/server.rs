//! Accepting connections, within bounds, until told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, Protocols};
use super::connection::{Addresses, Place};
use super::io::TimedIo;
use super::secured::Secured;
use crate::core::Core;

/// Serves until `stop`. Then finishes the requests that are under way, for at most `grace`, and tells whoever still comes that it drains.
pub(crate) async fn serve(
    core: Arc<Core>,
    listener: TcpListener,
    stop: CancellationToken,
    grace: Duration,
) {
    let connections = Arc::new(Semaphore::new(core.config.max_connections));
    let (open, closing) = (TaskTracker::new(), CancellationToken::new());
    let door = Door {
        protocols: Arc::new(Protocols::new(&core.config)),
        core,
        connections,
        addresses: Arc::default(),
    };
    tokio::select! {
        () = door.open(&listener, &open, &closing) => {}
        () = stop.cancelled() => {}
    }
    open.close();
    closing.cancel();
    tokio::select! {
        // hyper's graceful shutdown may never end: the deadline is ours.
        ended = tokio::time::timeout(grace, open.wait()) => if ended.is_err() {
            tracing::warn!("cut connections that were still open at the end of the grace period");
        },
        () = door.refuse(&listener) => {}
    }
}

/// Where connections come in.
struct Door {
    core: Arc<Core>,
    protocols: Arc<Protocols>,
    connections: Arc<Semaphore>,
    addresses: Arc<Addresses>,
}

impl Door {
    /// Serves whoever comes, for ever.
    async fn open(&self, listener: &TcpListener, open: &TaskTracker, closing: &CancellationToken) {
        loop {
            let accepted = accept(listener, &self.connections).await;
            let Some((stream, peer, permit)) = accepted else {
                continue;
            };
            let most = self.core.config.max_connections_of_one;
            let Some(place) = self.addresses.take(peer.ip(), most) else {
                tracing::debug!(%peer, "too many connections of one address");
                continue;
            };
            let io = self.timed(stream);
            let client = Client::new(&self.core, &self.protocols, closing.clone(), false);
            open.spawn(async move {
                client.core.metrics.connections.inc();
                if let Err(error) = client.serve(io).await {
                    tracing::debug!(error, "connection ended");
                }
                client.core.metrics.connections.dec();
                drop::<(Place, OwnedSemaphorePermit)>((place, permit));
            });
        }
    }

    /// Tells whoever comes to go elsewhere, for ever: a closed port would look like a crash, and clients would not know that waiting helps.
    async fn refuse(&self, listener: &TcpListener) {
        loop {
            let Some((stream, _, permit)) = accept(listener, &self.connections).await else {
                continue;
            };
            let io = self.timed(stream);
            let never = CancellationToken::new();
            let client = Client::new(&self.core, &self.protocols, never, true);
            tokio::spawn(async move {
                // It got its answer, or left.
                tokio::time::timeout(REFUSE_WITHIN, client.serve(io))
                    .await
                    .ok();
                drop(permit);
            });
        }
    }

    fn timed(&self, stream: tokio::net::TcpStream) -> TimedIo<Secured> {
        let config = &self.core.config;
        let stream = Secured::new(self.core.tls.get(), &self.core.handshakes, stream);
        TimedIo::new(stream, config.header_timeout, config.write_timeout)
    }
}

/// How long a connection that is refused may take.
const REFUSE_WITHIN: Duration = Duration::from_secs(5);

/// The kernel's send buffer of a connection: a second of tokens of any model, for one that stopped reading.
const SEND_BUFFER_BYTES: usize = 64 << 10;

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            // Tokens are small and must not wait for each other.
            stream.set_nodelay(true).ok();
            // Left alone the kernel lets a slow reader grow it to megabytes.
            rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES).ok();
            Some((stream, peer, permit))
        }
        Err(error) => {
            // Out of file descriptors, for example: the backlog waits, the CPU must not spin.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}
