//! Accepting connections, within bounds, until told to stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, Connection, HttpServerConnExec};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Activity, Addresses, BusyBody, Closing, Place, drive};
use super::io::TimedIo;
use super::route::{handle, refuse};
use super::secured::Secured;
use crate::config::Config;
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
        builder: Arc::new(protocol(&core.config)),
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
    builder: Arc<Builder<TokioExecutor>>,
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
            let connection = self.one(stream, closing.clone());
            open.spawn(async move {
                connection.await;
                drop::<(Place, OwnedSemaphorePermit)>((place, permit));
            });
        }
    }

    /// Serves one connection to its end.
    fn one(
        &self,
        stream: tokio::net::TcpStream,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (io, core) = (self.timed(stream), Arc::clone(&self.core));
        let builder = Arc::clone(&self.builder);
        async move {
            let limit = core.config.idle_timeout;
            let activity = Activity::new();
            let (asked, of_service) = (Arc::clone(&activity), Arc::clone(&core));
            let service = service_fn(move |request| {
                let (core, busy) = (Arc::clone(&of_service), asked.request());
                async move {
                    // Freed once it is answered: a stream lives far longer than the way to its first event, which is the larger part by much.
                    let response = Box::pin(handle(core, request)).await;
                    Ok::<_, Infallible>(response.map(|body| BusyBody { body, _busy: busy }))
                }
            });
            core.metrics.connections.inc();
            let connection = builder.serve_connection(io, service);
            let stop = closing.cancelled_owned();
            if let Err(error) = drive(connection, &activity, limit, stop).await {
                tracing::debug!(%error, "connection ended");
            }
            core.metrics.connections.dec();
        }
    }

    /// Tells whoever comes to go elsewhere, for ever: a closed port would look like a crash, and clients would not know that waiting helps.
    async fn refuse(&self, listener: &TcpListener) {
        loop {
            let Some((stream, _, permit)) = accept(listener, &self.connections).await else {
                continue;
            };
            let core = Arc::clone(&self.core);
            let service = service_fn(move |request| {
                let refusal = refuse(&core, &request);
                async move { Ok::<_, Infallible>(refusal) }
            });
            let connection = self.builder.serve_connection(self.timed(stream), service);
            let connection = connection.into_owned();
            tokio::spawn(async move {
                // It got its answer, or left.
                tokio::time::timeout(REFUSE_WITHIN, connection).await.ok();
                drop(permit);
            });
        }
    }

    fn timed(&self, stream: tokio::net::TcpStream) -> TokioIo<TimedIo<Secured>> {
        let config = &self.core.config;
        let stream = Secured::new(self.core.tls.get(), &self.core.handshakes, stream);
        TokioIo::new(TimedIo::new(
            stream,
            config.header_timeout,
            config.write_timeout,
        ))
    }
}

/// How long a connection that is refused may take.
const REFUSE_WITHIN: Duration = Duration::from_secs(5);

impl<I, S> Closing for Connection<'_, I, S, TokioExecutor>
where
    S: Service<Request<Incoming>, Response = Response<BusyBody>>,
    S::Future: 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
    TokioExecutor: HttpServerConnExec<S::Future, BusyBody>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

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

/// What a client may send on one stream of HTTP/2 before it is read, and on all of a connection: bodies that nobody has begun to read are
/// held in no other bound than this.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

fn protocol(config: &Config) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(config.header_bytes.max(8192))
        .max_headers(config.header_count);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(config.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(256)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(64 << 10)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}
