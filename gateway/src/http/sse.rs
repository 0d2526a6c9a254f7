//! A run's events as a response body: durable frames as they are, comments in silence.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, Sleep};

use super::body::ByteStream;
use crate::hub::{EventSource, Frame};
use crate::metrics::Metrics;

const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// What becomes of the events of a run on their way to a client.
pub(crate) trait Shape: Send + Unpin {
    /// The bytes for an event; none for an event that this client does not see.
    fn event(&mut self, frame: &Frame) -> Option<Bytes>;

    /// The bytes for a stream that cannot go on.
    fn broken(&mut self) -> Option<Bytes>;
}

/// Events as they are.
pub(crate) struct Native;

impl Shape for Native {
    fn event(&mut self, frame: &Frame) -> Option<Bytes> {
        Some(frame.sse.clone())
    }

    fn broken(&mut self) -> Option<Bytes> {
        // The stream ends without a terminal event: the client resumes with `after`.
        None
    }
}

/// Something that must know whether the client stayed until the end.
pub(crate) trait Attendance: Send + Unpin {
    /// All was said.
    fn served(&mut self);
}

impl Attendance for () {
    fn served(&mut self) {}
}

/// A stream of events in some shape.
pub(crate) struct EventStream<S, A> {
    source: EventSource,
    shape: S,
    attendance: A,
    silence: Duration,
    spoke: Instant,
    timer: Pin<Box<Sleep>>,
    done: bool,
    _open: OpenStream,
}

impl<S: Shape, A: Attendance> EventStream<S, A> {
    pub(crate) fn new(
        source: EventSource,
        shape: S,
        attendance: A,
        silence: Duration,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let spoke = Instant::now();
        Self {
            source,
            shape,
            attendance,
            silence,
            spoke,
            timer: Box::pin(tokio::time::sleep_until(spoke + silence)),
            done: false,
            _open: OpenStream::new(metrics),
        }
    }

    /// A comment where nothing was sent for too long. The timer is moved only when it fires, not at every event.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            let due = self.spoke + self.silence;
            if due > now {
                self.timer.as_mut().reset(due);
                continue;
            }
            self.spoke = now;
            self.timer.as_mut().reset(now + self.silence);
            return Poll::Ready(COMMENT);
        }
    }
}

impl<S: Shape, A: Attendance> ByteStream for EventStream<S, A> {
    fn poll_bytes(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        let mut gathered = Gathered::default();
        while !this.done && gathered.len() < GATHERED_BYTES {
            let bytes = match this.source.poll_next(cx) {
                Poll::Pending if gathered.len() == 0 => return this.poll_silence(cx).map(Some),
                Poll::Pending => break,
                Poll::Ready(None) => {
                    this.done = true;
                    None
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::error!(%error, "a stream cannot go on");
                    this.done = true;
                    this.shape.broken()
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if weir_store::fault::broken("leak") {
                        vec![1_u8; 1 << 20].leak();
                    }
                    if frame.is_terminal() {
                        this.done = true;
                        this.attendance.served();
                    }
                    this.shape.event(&frame)
                }
            };
            if let Some(bytes) = bytes {
                gathered.add(bytes);
            }
        }
        let bytes = gathered.take();
        if bytes.is_some() {
            this.spoke = Instant::now();
        }
        Poll::Ready(bytes)
    }
}

/// What is sent at once at most, and a little more: what a reader that lags gets with one write.
const GATHERED_BYTES: usize = 16 << 10;

/// Events that are ready together. One alone is not copied.
#[derive(Default)]
struct Gathered {
    first: Option<Bytes>,
    all: BytesMut,
}

impl Gathered {
    fn len(&self) -> usize {
        self.first.as_ref().map_or(self.all.len(), Bytes::len)
    }

    fn add(&mut self, bytes: Bytes) {
        if let Some(first) = self.first.take() {
            self.all.extend_from_slice(&first);
        } else if self.all.is_empty() {
            self.first = Some(bytes);
            return;
        }
        self.all.extend_from_slice(&bytes);
    }

    fn take(self) -> Option<Bytes> {
        self.first
            .or_else(|| (!self.all.is_empty()).then(|| self.all.freeze()))
    }
}

struct OpenStream(Arc<Metrics>);

impl OpenStream {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.open_streams.inc();
        Self(Arc::clone(metrics))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open_streams.dec();
    }
}
