//! The bounded way from the engine to one session's HTTP/2 stream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use weir_protocol::worker::WorkerFrame;

use super::command::Command;

/// Frames between the engine and the stream. At one frame per step this is half a second of a fast engine; a gateway that
/// reads slower than that for longer is stalled, and its runs are paused.
const FRAMES_MAX: usize = 32;

/// The engine's end.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    frames: mpsc::Sender<Result<WorkerFrame, Status>>,
    wants_room: Arc<AtomicBool>,
    ended: CancellationToken,
}

/// Room for one frame.
pub(crate) struct Room<'a>(mpsc::Permit<'a, Result<WorkerFrame, Status>>);

impl Room<'_> {
    pub(crate) fn send(self, frame: WorkerFrame) {
        self.0.send(Ok(frame));
    }
}

/// The stream's end: what tonic sends. Dropping it (the gateway left) ends the session.
#[derive(Debug)]
pub(crate) struct OutboxStream {
    frames: mpsc::Receiver<Result<WorkerFrame, Status>>,
    wants_room: Arc<AtomicBool>,
    ended: CancellationToken,
    commands: mpsc::Sender<Command>,
}

impl Outbox {
    pub(crate) fn new(commands: mpsc::Sender<Command>) -> (Self, OutboxStream) {
        let (sender, receiver) = mpsc::channel(FRAMES_MAX);
        let wants_room = Arc::new(AtomicBool::new(false));
        let ended = CancellationToken::new();
        let outbox = Self {
            frames: sender,
            wants_room: Arc::clone(&wants_room),
            ended: ended.clone(),
        };
        let stream = OutboxStream {
            frames: receiver,
            wants_room,
            ended,
            commands,
        };
        (outbox, stream)
    }

    /// Hands a frame over; false where there is no room or nobody reads any more. For frames that may be lost.
    pub(crate) fn offer(&self, frame: WorkerFrame) -> bool {
        self.frames.try_send(Ok(frame)).is_ok()
    }

    /// Room for one frame. Where there is none, the engine is woken by [`Command::Room`] once half of the frames have left.
    pub(crate) fn reserve(&self) -> Option<Room<'_>> {
        if let Ok(permit) = self.frames.try_reserve() {
            return Some(Room(permit));
        }
        self.wants_room.store(true, Ordering::SeqCst);
        // Frames may have left between the two lines above; then nobody would wake the engine.
        self.frames.try_reserve().ok().map(Room)
    }

    /// Ends the session; the peer sees `status`, unless the stream is stalled, when it sees only the end.
    pub(crate) fn end(&self, status: Status) {
        let _ = self.frames.try_send(Err(status));
        self.ended.cancel();
    }

    /// Resolves once the session is over for either end.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Stream for OutboxStream {
    type Item = Result<WorkerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.frames.poll_recv(context);
        if polled.is_ready()
            && self.frames.len() <= FRAMES_MAX / 2
            && self.wants_room.swap(false, Ordering::SeqCst)
        {
            // A full ring means that the engine is awake, and it looks for room before it sleeps.
            let _ = self.commands.try_send(Command::Room);
        }
        polled
    }
}

impl Drop for OutboxStream {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;
    use weir_protocol::worker::Pong;

    use super::*;

    #[tokio::test]
    async fn engine_is_woken_once_when_half_of_a_full_outbox_has_left() {
        let (commands, mut ring) = mpsc::channel(8);
        let (outbox, mut stream) = Outbox::new(commands);
        while outbox.offer(Pong { nonce: 0 }.into()) {}
        assert!(outbox.reserve().is_none());
        for _ in 0..FRAMES_MAX {
            stream.next().await.unwrap().unwrap();
        }
        assert!(matches!(ring.try_recv(), Ok(Command::Room)));
        assert!(ring.try_recv().is_err());
        assert!(outbox.reserve().is_some());
        drop(stream);
        outbox.ended().await;
        assert!(!outbox.offer(Pong { nonce: 0 }.into()));
    }
}
