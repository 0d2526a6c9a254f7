//! Streams of events leave hyper once their head was sent.
//!
//! For a connection of HTTP/1.1 hyper keeps buffers of 8 KiB in both directions as long as it has it, and takes every event through its whole
//! machinery. A stream of events needs no more than its chunks, for minutes: it is sent from here, and the connection goes back to hyper
//! when it has ended.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap};
use http::{Method, Request, Response, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::{Body, ByteStream};
use super::connection::Busy;

/// What a client may send ahead while its stream goes on; beyond that it is not read.
const AHEAD_BYTES: usize = 4 << 10;

/// A stream that is to leave, and how far its head is.
#[derive(Default)]
pub(crate) struct Leaving {
    step: AtomicU8,
    stream: Mutex<Option<Leaves>>,
}

const ENCODED: u8 = 1;
const FLUSHED: u8 = 2;

/// A stream that has left.
pub(crate) struct Leaves {
    pub(crate) stream: Pin<Box<dyn ByteStream>>,
    pub(crate) busy: Busy,
    /// Whether the connection may be used again.
    pub(crate) keep: bool,
}

impl Leaving {
    /// The head is among what will be flushed next.
    fn encoded(&self) {
        self.go(0, ENCODED);
    }

    fn go(&self, from: u8, to: u8) {
        // Asked again, or nothing leaves: then it stays where it is.
        let _ = (self.step).compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Everything that was written has been given to the socket.
    pub(crate) fn flushed(&self) {
        self.go(ENCODED, FLUSHED);
    }

    /// The stream, once its head is with the socket.
    pub(crate) fn take(&self) -> Option<Leaves> {
        let is_flushed = self.step.load(Ordering::Acquire) == FLUSHED;
        is_flushed.then(|| self.stream.lock().take()).flatten()
    }
}

/// What a request says about its connection.
pub(crate) struct Asked {
    may_leave: bool,
    keep: bool,
}

impl Asked {
    pub(crate) fn of(request: &Request<Incoming>) -> Self {
        // A stream that is posted for has its request's body behind it; other bodies may be under way still.
        let is_read = request.body().is_end_stream() || request.method() == Method::POST;
        Self {
            may_leave: is_read && request.version() == Version::HTTP_11,
            keep: !says_close(request.headers()),
        }
    }
}

fn says_close(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONNECTION).iter();
    values.any(|value| {
        let mut words = value.as_bytes().windows(5);
        words.any(|word| word.eq_ignore_ascii_case(b"close"))
    })
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// A response's body as hyper has it: the connection is busy until its end.
pub(crate) enum Sent {
    Here(Body, #[expect(dead_code, reason = "held")] Busy),
    /// Only the head: the rest leaves.
    Leaving(Arc<Leaving>),
}

/// A response as hyper sends it.
pub(crate) fn sent(
    response: Response<Body>,
    asked: &Asked,
    busy: Busy,
    leaving: Option<&Arc<Leaving>>,
) -> Response<Sent> {
    let (parts, body) = response.into_parts();
    let body = match (body, leaving) {
        (Body::Stream(stream), Some(leaving))
            if asked.may_leave && is_event_stream(&parts.headers) =>
        {
            let keep = asked.keep && !says_close(&parts.headers);
            *leaving.stream.lock() = Some(Leaves { stream, busy, keep });
            Sent::Leaving(Arc::clone(leaving))
        }
        (body, _) => Sent::Here(body, busy),
    };
    Response::from_parts(parts, body)
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Here(body, _) => Pin::new(body).poll_frame(cx),
            Self::Leaving(leaving) => {
                // A body is asked for once its head is encoded. The flush that follows ends this body's life.
                leaving.encoded();
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Here(body, _) => body.is_end_stream(),
            Self::Leaving(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Here(body, _) => body.size_hint(),
            Self::Leaving(_) => SizeHint::default(),
        }
    }
}

/// Sends a stream to its end; what the client has sent meanwhile.
///
/// # Errors
/// The client left, or takes nothing.
pub(crate) async fn send<T: AsyncRead + AsyncWrite + Unpin>(
    io: &mut T,
    stream: Pin<Box<dyn ByteStream>>,
) -> io::Result<Vec<u8>> {
    let (mut chunk, mut stream, mut came) = (Chunk::default(), Some(stream), Vec::new());
    std::future::poll_fn(|cx| {
        loop {
            if chunk.poll_write(io, cx)?.is_pending() {
                listen(io, cx, &mut came)?;
                return Poll::Pending;
            }
            let Some(bytes) = &mut stream else {
                ready!(Pin::new(&mut *io).poll_flush(cx))?;
                return Poll::Ready(Ok(std::mem::take(&mut came)));
            };
            match bytes.as_mut().poll_bytes(cx) {
                Poll::Ready(Some(bytes)) => chunk = Chunk::of(bytes),
                Poll::Ready(None) => {
                    stream = None;
                    chunk = Chunk::last();
                }
                Poll::Pending => {
                    // Where nothing is held back this costs nothing.
                    let _ = Pin::new(&mut *io).poll_flush(cx)?;
                    listen(io, cx, &mut came)?;
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

/// Notices that the client has left, and keeps what it sends.
fn listen<T: AsyncRead + Unpin>(
    io: &mut T,
    cx: &mut Context<'_>,
    came: &mut Vec<u8>,
) -> io::Result<()> {
    let mut space = [0; 256];
    while came.len() < AHEAD_BYTES {
        let mut buffer = ReadBuf::new(&mut space);
        if Pin::new(&mut *io).poll_read(cx, &mut buffer)?.is_pending() {
            break;
        }
        if buffer.filled().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        came.extend_from_slice(buffer.filled());
    }
    Ok(())
}

/// A chunk on its way out.
struct Chunk {
    size: [u8; Self::SIZE],
    /// Of `size`, what is left.
    from: usize,
    data: Bytes,
    end: &'static [u8],
}

impl Default for Chunk {
    /// Nothing is left of it.
    fn default() -> Self {
        Self {
            size: [0; Self::SIZE],
            from: Self::SIZE,
            data: Bytes::new(),
            end: &[],
        }
    }
}

impl Chunk {
    /// Eight digits and the end of their line.
    const SIZE: usize = 10;

    fn of(data: Bytes) -> Self {
        if data.is_empty() {
            // It would say that the body is over.
            return Self::default();
        }
        let mut size = *b"00000000\r\n";
        let (mut from, mut left) = (Self::SIZE - 2, data.len());
        while left > 0 && from > 0 {
            from -= 1;
            size[from] = b"0123456789abcdef"[left & 15];
            left >>= 4;
        }
        Self {
            size,
            from,
            data,
            end: b"\r\n",
        }
    }

    /// What ends a body.
    fn last() -> Self {
        Self {
            end: b"0\r\n\r\n",
            ..Self::default()
        }
    }

    fn left(&self) -> usize {
        self.size.len() - self.from + self.data.len() + self.end.len()
    }

    fn advance(&mut self, mut count: usize) {
        let of_size = count.min(self.size.len() - self.from);
        self.from += of_size;
        count -= of_size;
        let of_data = count.min(self.data.len());
        self.data.advance(of_data);
        self.end = &self.end[count - of_data..];
    }

    fn poll_write<T: AsyncWrite + Unpin>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.left() > 0 {
            let parts = [&self.size[self.from..], &self.data, self.end].map(io::IoSlice::new);
            let count = ready!(Pin::new(&mut *io).poll_write_vectored(cx, &parts))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Pieces(VecDeque<Bytes>, bool);

    impl ByteStream for Pieces {
        fn poll_bytes(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
            match self.0.pop_front() {
                None if self.1 => Poll::Pending,
                piece => Poll::Ready(piece),
            }
        }
    }

    fn pieces(texts: &[&'static str], goes_on: bool) -> Pin<Box<dyn ByteStream>> {
        let texts = texts.iter().map(|text| Bytes::from_static(text.as_bytes()));
        Box::pin(Pieces(texts.collect(), goes_on))
    }

    #[tokio::test]
    async fn a_stream_is_sent_in_chunks_however_little_the_socket_takes() {
        for room in [1, 3, 1024] {
            let (mut ours, mut theirs) = tokio::io::duplex(room);
            let sending = tokio::spawn(async move {
                let stream = pieces(&["hello", "", "seventeen letters"], false);
                send(&mut ours, stream).await
            });
            theirs.write_all(b"G").await.unwrap();
            let mut sent = String::new();
            theirs.read_to_string(&mut sent).await.unwrap();
            assert_eq!(sent, "5\r\nhello\r\n11\r\nseventeen letters\r\n0\r\n\r\n");
            let came = sending.await.unwrap().unwrap();
            assert!(came.is_empty() || came == b"G", "{came:?}");
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_its_stream() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        let error = send(&mut ours, pieces(&[], true)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
