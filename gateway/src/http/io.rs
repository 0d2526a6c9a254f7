//! A connection that gives up on a peer that says nothing at first, or takes nothing for too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::leave::Leaving;

/// Wraps a connection; a write that stays pending for `limit` fails. The timer exists only while a write is pending, so that an
/// idle or keen connection pays nothing.
pub(crate) struct TimedIo<T> {
    inner: T,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Until the peer has said what it speaks: when that is due, and how many bytes came.
    opening: Option<(Pin<Box<Sleep>>, usize)>,
    /// Was read already, and is read again first.
    before: Bytes,
    /// Learns of each flush.
    leaving: Option<Arc<Leaving>>,
}

/// What a client says first that speaks HTTP/2.
const PREFACE: &[u8; OPENING_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Until so much has come the protocol is not known, and its own timers are not set yet.
const OPENING_BYTES: usize = 24;

impl<T> TimedIo<T> {
    /// The first bytes must come within `opening`; a write may stay pending for `limit`.
    pub(crate) fn new(inner: T, opening: Duration, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            stalled: None,
            opening: Some((Box::pin(tokio::time::sleep(opening)), 0)),
            before: Bytes::new(),
            leaving: None,
        }
    }

    /// Bytes that are read before all others.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.before = bytes;
    }

    /// Who is to learn of each flush.
    pub(crate) fn watch(&mut self, leaving: &Arc<Leaving>) {
        self.leaving = Some(Arc::clone(leaving));
    }

    fn judge<R>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let limit = self.limit;
        let timer = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client took nothing for too long",
        )))
    }
}

impl<T: AsyncRead + Unpin> TimedIo<T> {
    /// Whether the client speaks HTTP/2, by what it says first; that is read again.
    pub(crate) async fn speaks_two(&mut self) -> io::Result<bool> {
        let mut said = [0; PREFACE.len()];
        let mut count = 0;
        while count < said.len() && PREFACE.starts_with(&said[..count]) {
            match self.read(&mut said[count..]).await? {
                0 => break,
                more => count += more,
            }
        }
        self.unread(Bytes::copy_from_slice(&said[..count]));
        Ok(said[..count] == *PREFACE)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TimedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.before.is_empty() {
            let count = buf.remaining().min(self.before.len());
            buf.put_slice(&self.before[..count]);
            self.before.advance(count);
            if self.before.is_empty() {
                self.before = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.inner).poll_read(cx, buf);
        let Some((due, bytes)) = &mut self.opening else {
            return outcome;
        };
        if outcome.is_ready() {
            *bytes += buf.filled().len() - before;
            if *bytes >= OPENING_BYTES {
                self.opening = None;
            }
            return outcome;
        }
        ready!(due.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client said nothing for too long",
        )))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.judge(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.judge(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        if let (Poll::Ready(Ok(())), Some(leaving)) = (&outcome, &self.leaving) {
            leaving.flushed();
        }
        self.judge(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.judge(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut io = TimedIo::new(ours, Duration::from_secs(1), Duration::from_millis(20));
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_say_what_it_speaks_is_given_up() {
        for said in ["", "PRI"] {
            let (ours, mut theirs) = tokio::io::duplex(64);
            theirs.write_all(said.as_bytes()).await.unwrap();
            let second = Duration::from_secs(1);
            let mut io = TimedIo::new(ours, second, second);
            let error = io.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{said:?}");
        }
        // Once it has, the protocol's own times count.
        let (ours, mut theirs) = tokio::io::duplex(64);
        theirs.write_all(&[b'x'; OPENING_BYTES]).await.unwrap();
        let mut io = TimedIo::new(ours, Duration::from_secs(1), Duration::from_secs(1));
        let mut all = Vec::new();
        let reading = io.read_to_end(&mut all);
        let patience = Duration::from_mins(1);
        assert!(tokio::time::timeout(patience, reading).await.is_err());
    }
}
