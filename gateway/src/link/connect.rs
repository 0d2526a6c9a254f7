//! One attempt to open a session with a worker.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint, Uri};
use weir_identity::{Identity, Role, Spoken};
use weir_protocol::frames::{MAX_MESSAGE_BYTES, PROTOCOL, STREAM_WINDOW_BYTES};
use weir_protocol::worker::worker_client::WorkerClient;
use weir_protocol::worker::{GatewayFrame, HeldRun, Hello, Welcome, WorkerFrame, worker_frame};

use crate::snapshot::WorkerAddress;

/// An open session, after Hello and Welcome.
pub(crate) struct Conn {
    pub(crate) outbound: mpsc::UnboundedSender<GatewayFrame>,
    pub(crate) inbound: Streaming<WorkerFrame>,
    pub(crate) welcome: Welcome,
}

/// Why no session came about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the worker cannot be reached")]
    Transport(#[source] tonic::transport::Error),
    #[error("the worker's address is not valid")]
    Address(#[source] tonic::transport::Error),
    #[error(
        "the worker at {address} could not prove that it is one, or took this gateway for none; both need a certificate of the same install"
    )]
    Identity {
        address: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the worker refused the session: {0}")]
    Refused(String),
    #[error("the worker has nothing to talk about yet: {0}")]
    Absent(String),
    #[error("the worker's first frame was not a welcome of protocol 1")]
    NoWelcome,
    #[error("the worker did not answer within {0:?}")]
    Timeout(Duration),
}

const PATIENCE: Duration = Duration::from_secs(5);

/// What a gateway proves itself with, where workers ask for it.
pub(crate) type Proof = Option<Arc<Identity>>;

pub(crate) async fn connect(
    address: WorkerAddress,
    proof: Proof,
    hello: Hello,
) -> Result<Conn, ConnectError> {
    tokio::time::timeout(PATIENCE, open(address, proof, hello))
        .await
        .unwrap_or(Err(ConnectError::Timeout(PATIENCE)))
}

/// The runs that a worker holds for gateways of this store, asked for in a session that ends at once; tried until a moment.
pub(crate) async fn look(
    (address, proof): (WorkerAddress, Proof),
    hello: Hello,
    until: tokio::time::Instant,
) -> Vec<HeldRun> {
    loop {
        let mut hello = hello.clone();
        // Later sessions have larger numbers.
        hello.session_epoch = hello.session_epoch.max(crate::clock::now_ms());
        match connect(address.clone(), proof.clone(), hello).await {
            Ok(conn) => return conn.welcome.held,
            Err(error) if tokio::time::Instant::now() >= until => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a worker does not say which runs it holds"
                );
                return Vec::new();
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn open(address: WorkerAddress, proof: Proof, hello: Hello) -> Result<Conn, ConnectError> {
    let channel = channel(address, proof).await?;
    let (outbound, frames) = mpsc::unbounded_channel();
    // Nobody but this function holds the receiver: the send cannot fail.
    outbound.send(hello.into()).ok();
    let mut inbound = WorkerClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
        .session(UnboundedReceiverStream::new(frames))
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let first = inbound.message().await.map_err(|status| refused(&status))?;
    match first.and_then(|first| first.frame) {
        Some(worker_frame::Frame::Welcome(welcome)) if welcome.protocol == PROTOCOL => Ok(Conn {
            outbound,
            inbound,
            welcome,
        }),
        _ => Err(ConnectError::NoWelcome),
    }
}

fn refused(status: &tonic::Status) -> ConnectError {
    let message = status.message().to_owned();
    // It still loads the version, or lets go of it.
    if status.code() == tonic::Code::NotFound {
        ConnectError::Absent(message)
    } else {
        ConnectError::Refused(message)
    }
}

impl ConnectError {
    /// Whether people must do something about it: a worker that starts or ends is none of their business.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Identity { .. } | Self::Refused(_))
    }
}

async fn channel(address: WorkerAddress, proof: Proof) -> Result<Channel, ConnectError> {
    let uri = match &address {
        WorkerAddress::Unix(_) => "http://worker".to_owned(),
        WorkerAddress::Tcp(host) => format!("http://{host}"),
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(ConnectError::Address)?
        .connect_timeout(Duration::from_secs(2))
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(2 * STREAM_WINDOW_BYTES);
    let connected = match (address, proof) {
        (WorkerAddress::Tcp(host), Some(identity)) => {
            // Not inside the connector, which would hide why a handshake failed.
            let stream = prove(&host, &identity).await;
            let stream = stream.map_err(|source| ConnectError::Identity {
                address: host,
                source,
            })?;
            let mut once = Some(TokioIo::new(stream));
            let connector = tower::service_fn(move |_: Uri| {
                let gone = || io::Error::from(io::ErrorKind::NotConnected);
                std::future::ready(once.take().ok_or_else(gone))
            });
            endpoint.connect_with_connector(connector).await
        }
        (WorkerAddress::Tcp(_), None) => endpoint.connect().await,
        (WorkerAddress::Unix(path), _) => {
            let connector = tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
    };
    connected.map_err(ConnectError::Transport)
}

/// A connection to a worker that has proved to be one.
async fn prove(host: &str, identity: &Identity) -> io::Result<TlsStream<TcpStream>> {
    let credentials = identity.current().map_err(io::Error::other)?;
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let mut stream = credentials
        .connect(stream, Role::Worker, Spoken::Http2)
        .await?;
    // In TLS 1.3 a caller learns with the first bytes whether it was taken; a server of HTTP/2 sends its settings unasked.
    if stream.fill_buf().await?.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}
