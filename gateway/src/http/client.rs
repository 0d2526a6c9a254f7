//! One client's connection, from what it says first to its end.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use super::connection::{Activity, Closing, drive};
use super::io::TimedIo;
use super::leave::{Asked, Leaves, Leaving, Sent, send, sent};
use super::route::{handle, refuse};
use super::secured::Secured;
use crate::config::Config;
use crate::core::Core;

type Io = TimedIo<Secured>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a client may send on one stream of HTTP/2 before it is read, and on all of a connection: bodies that nobody has begun to read are
/// held in no other bound than this.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Both protocols, with our bounds.
pub(super) struct Protocols {
    one: http1::Builder,
    two: http2::Builder<TokioExecutor>,
}

impl Protocols {
    pub(super) fn new(config: &Config) -> Self {
        let mut one = http1::Builder::new();
        one.timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(config.header_bytes.max(8192))
            .max_headers(config.header_count);
        let mut two = http2::Builder::new(TokioExecutor::new());
        two.timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(config.header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(256)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(64 << 10)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        Self { one, two }
    }
}

/// A client and what its connection is served with.
pub(super) struct Client {
    pub(super) core: Arc<Core>,
    protocols: Arc<Protocols>,
    activity: Arc<Activity>,
    /// The gateway ends.
    closing: CancellationToken,
    /// It is told to go elsewhere.
    is_refused: bool,
}

impl Client {
    pub(super) fn new(
        core: &Arc<Core>,
        protocols: &Arc<Protocols>,
        closing: CancellationToken,
        is_refused: bool,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            protocols: Arc::clone(protocols),
            activity: Activity::new(),
            closing,
            is_refused,
        }
    }

    /// Serves it to its end.
    pub(super) async fn serve(&self, mut io: Io) -> Result<(), Failure> {
        let first = self.closing.run_until_cancelled(io.speaks_two());
        let Some(speaks_two) = first.await else {
            return Ok(());
        };
        if speaks_two? {
            let answers = self.answers(None);
            let io = TokioIo::new(io);
            // Boxed, as the other is: the task is small where a stream has left.
            let connection = self.protocols.two.serve_connection(io, answers);
            return Ok(Box::pin(self.drive(connection)).await?);
        }
        loop {
            let asking = Box::pin(self.until_one_leaves(io)).await?;
            let Some(Departed {
                io: back,
                ahead,
                leaves: Leaves { stream, busy, keep },
            }) = asking
            else {
                return Ok(());
            };
            io = back;
            let came = send(&mut io, stream).await?;
            drop(busy);
            if !keep || self.closing.is_cancelled() {
                return Ok(tokio::io::AsyncWriteExt::shutdown(&mut io).await?);
            }
            io.unread([&ahead[..], &came].concat().into());
        }
    }

    /// Requests of HTTP/1.1 up to one whose answer leaves, or to the connection's end.
    async fn until_one_leaves(&self, mut io: Io) -> Result<Option<Departed>, Failure> {
        let leaving = Arc::<Leaving>::default();
        io.watch(&leaving);
        let answers = self.answers(Some(Arc::clone(&leaving)));
        let connection = self
            .protocols
            .one
            .serve_connection(TokioIo::new(io), answers);
        let one = One {
            connection: Some(connection),
            leaving,
        };
        Ok(self.drive(one).await?)
    }

    async fn drive<C: Closing>(&self, connection: C) -> C::Output {
        let limit = self.core.config.idle_timeout;
        drive(connection, &self.activity, limit, self.closing.cancelled()).await
    }

    fn answers(&self, leaving: Option<Arc<Leaving>>) -> Answers {
        Answers {
            core: Arc::clone(&self.core),
            activity: Arc::clone(&self.activity),
            leaving,
            is_refused: self.is_refused,
        }
    }
}

/// Answers the requests of one connection.
struct Answers {
    core: Arc<Core>,
    activity: Arc<Activity>,
    leaving: Option<Arc<Leaving>>,
    is_refused: bool,
}

impl Service<Request<Incoming>> for Answers {
    type Response = Response<Sent>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Sent>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (core, busy) = (Arc::clone(&self.core), self.activity.request());
        let (asked, leaving) = (Asked::of(&request), self.leaving.clone());
        let is_refused = self.is_refused;
        // Freed once it is answered: a stream lives far longer than the way to its first event, which is the larger part by much.
        Box::pin(async move {
            let response = if is_refused {
                refuse(&core, &request)
            } else {
                handle(core, request).await
            };
            Ok(sent(response, &asked, busy, leaving.as_ref()))
        })
    }
}

/// A connection of HTTP/1.1 in hyper's hands, until a stream leaves.
struct One {
    connection: Option<http1::Connection<TokioIo<Io>, Answers>>,
    leaving: Arc<Leaving>,
}

/// What is left of it then.
struct Departed {
    io: Io,
    /// What the client has sent beyond its request.
    ahead: Vec<u8>,
    leaves: Leaves,
}

impl Future for One {
    type Output = Result<Option<Departed>, hyper::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(Ok(None));
        };
        if let Poll::Ready(ended) = Pin::new(connection).poll(cx) {
            return Poll::Ready(ended.map(|()| None));
        }
        let Some(leaves) = self.leaving.take() else {
            return Poll::Pending;
        };
        let parts = self.connection.take().map(http1::Connection::into_parts);
        Poll::Ready(Ok(parts.map(|parts| Departed {
            io: parts.io.into_inner(),
            // Copied: what is mostly nothing would keep hyper's whole buffer for as long as the stream lasts.
            ahead: parts.read_buf.to_vec(),
            leaves,
        })))
    }
}

impl Closing for One {
    fn close(mut self: Pin<&mut Self>) {
        if let Some(connection) = &mut self.connection {
            Pin::new(connection).graceful_shutdown();
        }
    }
}

impl Closing for http2::Connection<TokioIo<Io>, Answers, TokioExecutor> {
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
