//! A client's connection, plain or under TLS. The handshake is done by whoever reads first, within the time that a client has to say what
//! it speaks.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use super::tls::{HANDSHAKES, Tls};

/// A connection as the protocol above sees it.
pub(crate) enum Secured {
    Plain(TcpStream),
    Handshake(Box<(Accept<TcpStream>, OwnedSemaphorePermit)>),
    Tls(Box<TlsStream<TcpStream>>),
    Failed,
}

/// Bounds handshakes under way.
pub(crate) struct Handshakes(Arc<Semaphore>);

impl Default for Handshakes {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(HANDSHAKES)))
    }
}

impl Secured {
    /// Ends at once where as many handshakes as there may be are under way.
    pub(crate) fn new(tls: Option<&Tls>, under_way: &Handshakes, stream: TcpStream) -> Self {
        let Some(tls) = tls else {
            return Self::Plain(stream);
        };
        let Ok(place) = Arc::clone(&under_way.0).try_acquire_owned() else {
            return Self::Failed;
        };
        let accept = TlsAcceptor::from(tls.config()).accept(stream);
        Self::Handshake(Box::new((accept, place)))
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self::Handshake(under_way) = self else {
            return Poll::Ready(match self {
                Self::Failed => Err(io::ErrorKind::NotConnected.into()),
                _ => Ok(()),
            });
        };
        let outcome = ready!(Pin::new(&mut under_way.0).poll(cx));
        let (next, outcome) = match outcome {
            Ok(stream) => (Self::Tls(Box::new(stream)), Ok(())),
            Err(error) => (Self::Failed, Err(error)),
        };
        *self = next;
        Poll::Ready(outcome)
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_ready(cx))?;
        match this {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_ready(cx))?;
        match this {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(0)),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_ready(cx))?;
        match this {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(0)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            // Asked once, before the handshake: what is written under TLS is copied anyway.
            Self::Handshake(_) => true,
            Self::Failed => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(())),
        }
    }
}
