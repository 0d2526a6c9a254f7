//! Accepting connections, within bounds, until told to stop.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use weir_protocol::error::ErrorCode;

use super::io::TimedIo;
use super::route::{handle, refuse};
use super::secured::Secured;
use crate::config::Config;
use crate::core::Core;
use crate::error::{ApiError, ApiResult};

/// Serves until `stop`. Then finishes the requests that are under way, for at most `grace`, and tells whoever still comes that it drains.
pub(crate) async fn serve(
    core: Arc<Core>,
    listener: TcpListener,
    stop: CancellationToken,
    grace: Duration,
) {
    let connections = Arc::new(Semaphore::new(core.config.max_connections));
    let graceful = GracefulShutdown::new();
    let door = Door {
        builder: protocol(&core.config),
        core,
        connections,
    };
    tokio::select! {
        () = door.open(&listener, &graceful) => {}
        () = stop.cancelled() => {}
    }
    tokio::select! {
        // hyper's graceful shutdown may never end: the deadline is ours.
        ended = tokio::time::timeout(grace, graceful.shutdown()) => if ended.is_err() {
            tracing::warn!("cut connections that were still open at the end of the grace period");
        },
        () = door.refuse(&listener) => {}
    }
}

/// Where connections come in.
struct Door {
    core: Arc<Core>,
    builder: Builder<TokioExecutor>,
    connections: Arc<Semaphore>,
}

impl Door {
    /// Serves whoever comes, for ever.
    async fn open(&self, listener: &TcpListener, graceful: &GracefulShutdown) {
        loop {
            let Some((stream, permit)) = accept(listener, &self.connections).await else {
                continue;
            };
            let service_core = Arc::clone(&self.core);
            let service = service_fn(move |request| {
                let core = Arc::clone(&service_core);
                async move { Ok::<_, Infallible>(handle(core, request).await) }
            });
            let connection = self.builder.serve_connection(self.timed(stream), service);
            let connection = graceful.watch(connection.into_owned());
            let metrics = Arc::clone(&self.core.metrics);
            tokio::spawn(async move {
                metrics.connections.inc();
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection ended");
                }
                metrics.connections.dec();
                drop(permit);
            });
        }
    }

    /// Tells whoever comes to go elsewhere, for ever: a closed port would look like a crash, and clients would not know that waiting helps.
    async fn refuse(&self, listener: &TcpListener) {
        loop {
            let Some((stream, permit)) = accept(listener, &self.connections).await else {
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

/// The kernel's send buffer of a connection: a second of tokens of any model, for one that stopped reading.
const SEND_BUFFER_BYTES: usize = 64 << 10;

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Tokens are small and must not wait for each other.
            stream.set_nodelay(true).ok();
            // Left alone the kernel lets a slow reader grow it to megabytes.
            rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES).ok();
            Some((stream, permit))
        }
        Err(error) => {
            // Out of file descriptors, for example: the backlog waits, the CPU must not spin.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

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
        .max_send_buf_size(64 << 10)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// A request's body, if it is small enough and comes in time.
pub(crate) async fn read_body(config: &Config, mut body: Incoming) -> ApiResult<bytes::Bytes> {
    use http_body::Body as _;
    let too_large = || {
        ApiError::new(
            ErrorCode::BodyTooLarge,
            format!(
                "the body is larger than {} bytes; send less text",
                config.body_bytes
            ),
        )
        .details(serde_json::json!({"largestBodyBytes": config.body_bytes}))
    };
    if body.size_hint().lower() > config.body_bytes as u64 {
        discard(config, &mut body).await;
        return Err(too_large());
    }
    let collected = Limited::new(&mut body, config.body_bytes).collect();
    match tokio::time::timeout(config.body_timeout, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            discard(config, &mut body).await;
            Err(too_large())
        }
        Ok(Err(error)) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("the body could not be read: {error}"),
        )),
        Err(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "the body did not arrive in time; send it faster",
        )),
    }
}

/// How much longer than allowed a body may be for its sender to read why it is refused.
const DISCARDED_BODIES: usize = 16;
/// How long that may take.
const DISCARD_WITHIN: Duration = Duration::from_secs(5);

/// Reads the rest of a body that is too large. Most clients read an answer only when they have sent everything; one that is cut off
/// before sees a broken connection, and tries again.
pub(crate) async fn discard(config: &Config, body: &mut Incoming) {
    let rest = async {
        let mut left = config.body_bytes.saturating_mul(DISCARDED_BODIES);
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, bytes::Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(DISCARD_WITHIN, rest).await.ok();
}
