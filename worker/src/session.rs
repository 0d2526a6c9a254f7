//! The gRPC service: one long-lived session per gateway, translated to commands of the engine.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::{Request, Response, Status, Streaming};
use weir_protocol::frames::PROTOCOL;
use weir_protocol::worker::worker_server::Worker;
use weir_protocol::worker::{
    GatewayFrame, Hello, Pong, Submit, WorkerStatus, gateway_frame::Frame,
};

use crate::doors::{Door, Doors};
use crate::engine::command::{Command, OpenRefused, OpenSession, Order, SessionId};
use crate::engine::outbox::{Outbox, OutboxStream};
use crate::engine::snapshot::Snapshot;
use crate::grammar::Ready;

/// A peer that opens a stream and says nothing holds a connection for this long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Status frames are at least this far apart: a gateway decides by them a few times per second at most.
const STATUS_MIN: Duration = Duration::from_millis(100);
/// And at most this far: their absence tells a gateway that the worker hangs.
const STATUS_MAX: Duration = Duration::from_secs(1);
/// Length of a gateway's and a replica's name.
const NAME_BYTES_MAX: usize = 256;

/// The worker's side of the protocol.
#[derive(Clone, Debug)]
pub(crate) struct SessionService(pub(crate) Doors);

/// Runs whose grammar is being compiled: they reach the engine when that is done, while other frames go on.
type Compiling = JoinSet<(Submit, Ready)>;
/// How many of one session: beyond it nothing is read.
const COMPILING_MAX: usize = 64;

#[tonic::async_trait]
impl Worker for SessionService {
    type SessionStream = OutboxStream;

    async fn session(
        &self,
        request: Request<Streaming<GatewayFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut inbound = request.into_inner();
        let hello = read_hello(&mut inbound).await?;
        // From here on the session is its engine's, whatever comes and goes beside it.
        let door = self.0.find(&hello.version_digest)?;
        let (outbox, stream) = Outbox::new(door.commands.clone());
        let (reply, answer) = oneshot::channel();
        let open = OpenSession {
            hello,
            outbox: outbox.clone(),
            reply,
        };
        door.commands
            .send(Command::Open(open))
            .await
            .map_err(|_| engine_gone())?;
        let session = answer
            .await
            .map_err(|_| engine_gone())?
            .map_err(|cause| refused(&cause))?;
        tokio::spawn(door.pump(session, inbound, outbox));
        Ok(Response::new(stream))
    }
}

impl Door {
    /// Reads frames until either end is done. Backpressure is the ring's: while it is full, nothing is read.
    async fn pump(self, session: SessionId, mut inbound: Streaming<GatewayFrame>, outbox: Outbox) {
        let mut ticks = interval(STATUS_MIN);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = Shown::default();
        let mut compiling = Compiling::new();
        loop {
            tokio::select! {
                () = outbox.ended() => break,
                _ = ticks.tick() => shown.offer(&self, &outbox),
                Some(done) = compiling.join_next() => {
                    if self.compiled(session, done).await.is_err() {
                        break;
                    }
                }
                frame = inbound.message(), if compiling.len() < COMPILING_MAX => match frame {
                    Ok(Some(GatewayFrame { frame: Some(frame) })) => {
                        if self.forward(session, frame, (&outbox, &mut compiling)).await.is_err() {
                            break;
                        }
                    }
                    // A frame of a kind that this version does not know.
                    Ok(Some(GatewayFrame { frame: None })) => {}
                    Ok(None) => break,
                    Err(status) => {
                        tracing::debug!(session = session.0, %status, "session lost");
                        break;
                    }
                },
            }
        }
        drop(outbox);
        // The engine drops its end of the outbox, and with it the stream ends.
        let _ = self.commands.send(Command::Close(session)).await;
    }

    async fn forward(
        &self,
        session: SessionId,
        frame: Frame,
        (outbox, compiling): (&Outbox, &mut Compiling),
    ) -> Result<(), ()> {
        if matches!(frame, Frame::Attach(_) | Frame::Cancel(_)) {
            // It may speak of a run that is not there yet.
            while let Some(done) = compiling.join_next().await {
                self.compiled(session, done).await?;
            }
        }
        let command = match frame {
            Frame::Submit(submit) => {
                let grammar = submit.grammar.clone();
                let known = grammar.as_ref().map(|grammar| self.compiler.known(grammar));
                if let (Some(grammar), Some(None)) = (grammar, &known) {
                    let compiler = Arc::clone(&self.compiler);
                    compiling.spawn(async move { (submit, compiler.compile(grammar).await) });
                    return Ok(());
                }
                start(session, submit, known.flatten().map(Ok))
            }
            Frame::Attach(attach) => Command::Attach(session, attach),
            Frame::Cancel(cancel) => Command::Cancel(session, cancel),
            Frame::Progress(progress) => Command::Progress(session, progress),
            Frame::Ping(ping) => {
                // Lost where the peer does not read: then it would not see it either.
                outbox.offer(Pong { nonce: ping.nonce }.into());
                return Ok(());
            }
            Frame::Hello(_) => {
                outbox.end(Status::invalid_argument(
                    "a session has one hello, as its first frame",
                ));
                return Err(());
            }
        };
        self.commands.send(command).await.map_err(drop)
    }

    /// A grammar is compiled, or cannot be.
    async fn compiled(
        &self,
        session: SessionId,
        done: Result<(Submit, Ready), JoinError>,
    ) -> Result<(), ()> {
        // A compiler that dies takes its session along: the gateway comes again and sends what was lost.
        let (submit, ready) = done.map_err(drop)?;
        let command = start(session, submit, Some(ready));
        self.commands.send(command).await.map_err(drop)
    }
}

fn start(session: SessionId, submit: Submit, grammar: Option<Ready>) -> Command {
    Command::Submit(session, Box::new(Order { submit, grammar }))
}

/// What a session was told last.
#[derive(Default)]
struct Shown {
    snapshot: Option<(Snapshot, Instant)>,
}

impl Shown {
    /// Sends the figures if they changed or are old.
    fn offer(&mut self, door: &Door, outbox: &Outbox) {
        let now = door.snapshot.borrow().clone();
        let is_due = self
            .snapshot
            .as_ref()
            .is_none_or(|(last, at)| *last != now || at.elapsed() >= STATUS_MAX);
        let status: WorkerStatus = now.status_frame();
        if is_due && outbox.offer(status.into()) {
            self.snapshot = Some((now, Instant::now()));
        }
    }
}

async fn read_hello(inbound: &mut Streaming<GatewayFrame>) -> Result<Hello, Status> {
    let first = timeout(HELLO_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello came; it must be the first frame"))??;
    let Some(GatewayFrame {
        frame: Some(Frame::Hello(hello)),
    }) = first
    else {
        return Err(Status::invalid_argument(
            "the first frame of a session must be a hello",
        ));
    };
    if hello.protocol != PROTOCOL {
        return Err(Status::failed_precondition(format!(
            "this worker speaks protocol {PROTOCOL}, the gateway {}; update the older of the two",
            hello.protocol
        )));
    }
    if hello.gateway.is_empty()
        || hello.gateway.len() > NAME_BYTES_MAX
        || hello.replica.len() > NAME_BYTES_MAX
    {
        return Err(Status::invalid_argument(format!(
            "a gateway's name has 1 to {NAME_BYTES_MAX} bytes and its replica's at most as many"
        )));
    }
    Ok(hello)
}

fn engine_gone() -> Status {
    Status::unavailable("the engine has ended; this worker is about to exit")
}

fn refused(refused: &OpenRefused) -> Status {
    match refused {
        OpenRefused::StaleSession { .. } => Status::failed_precondition(refused.to_string()),
        OpenRefused::TooManySessions { .. } => Status::resource_exhausted(refused.to_string()),
    }
}
