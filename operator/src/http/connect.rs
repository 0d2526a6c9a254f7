//! Connections to pods: bare ones, and such in which a gateway has proved to be one and knows that this is the operator.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::Service;
use weir_identity::{Credentials, Role, Spoken};

/// What this operator proves itself with, as soon as it has something; shared with whoever renews it.
pub type Proof = Arc<ArcSwapOption<Credentials>>;

/// A connection, bare or proved.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection for Box<dyn Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

type Opening = Pin<Box<dyn Future<Output = io::Result<TokioIo<Box<dyn Stream>>>> + Send>>;

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    bare: HttpConnector,
    proof: Option<Proof>,
}

impl Connector {
    pub(super) fn new(within: Duration, proof: Option<Proof>) -> Self {
        let mut bare = HttpConnector::new();
        bare.set_connect_timeout(Some(within));
        bare.set_nodelay(true);
        bare.enforce_http(false);
        Self { bare, proof }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Opening;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bare.poll_ready(context).map_err(io::Error::other)
    }

    fn call(&mut self, uri: Uri) -> Opening {
        let opening = self.bare.call(uri);
        let proof = self.proof.clone();
        Box::pin(async move {
            let stream = opening.await.map_err(io::Error::other)?.into_inner();
            let stream: Box<dyn Stream> = match proof {
                None => Box::new(stream),
                Some(proof) => {
                    let own = proof.load_full();
                    let none = || io::Error::other("this operator has no certificate yet");
                    let own = own.ok_or_else(none)?;
                    Box::new(own.connect(stream, Role::Gateway, Spoken::Http1).await?)
                }
            };
            Ok(TokioIo::new(stream))
        })
    }
}
