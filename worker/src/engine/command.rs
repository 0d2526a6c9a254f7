//! What the engine thread is told.

use tokio::sync::oneshot;
use weir_model::AdapterError;
use weir_protocol::worker::{Attach, Cancel, Hello, Progress, Submit};

use super::adapters::ReadyAdapter;
use super::outbox::Outbox;
use crate::grammar::Ready;

/// A session's number within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub(crate) u64);

/// One entry of the command ring.
#[derive(Debug)]
pub(crate) enum Command {
    /// A gateway says hello.
    Open(OpenSession),
    /// A session's stream is gone; its runs go on.
    Close(SessionId),
    /// A run is to start.
    Submit(SessionId, Box<Order>),
    /// A run is to be taken over.
    Attach(SessionId, Attach),
    /// A run is to end.
    Cancel(SessionId, Cancel),
    /// Rows are durable, credits grew.
    Progress(SessionId, Progress),
    /// A stalled session reads again.
    Room,
    /// Runs may name one more adapter.
    AddAdapter(Box<ReadyAdapter>, oneshot::Sender<Result<(), AdapterError>>),
    /// No new run may name this adapter any more.
    DropAdapter(String),
    /// No more runs; report when none is left.
    Drain,
    /// End the thread as it stands.
    Stop,
}

/// A run that is to start, with its grammar compiled.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) submit: Submit,
    /// Of a run that has one.
    pub(crate) grammar: Option<Ready>,
}

/// A gateway that wants a session.
#[derive(Debug)]
pub(crate) struct OpenSession {
    /// Its first frame.
    pub(crate) hello: Hello,
    /// Where its frames go; the engine puts the welcome in front.
    pub(crate) outbox: Outbox,
    /// The session's number, or why there is none.
    pub(crate) reply: oneshot::Sender<Result<SessionId, OpenRefused>>,
}

/// Why a session is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenRefused {
    /// A younger session of this gateway and replica is open, or was.
    #[error(
        "session epoch {given} of gateway \"{gateway}\" is not newer than {known}, which this worker has seen; raise it with every session"
    )]
    StaleSession {
        /// Who asked.
        gateway: String,
        /// Its epoch.
        given: u64,
        /// The newest seen.
        known: u64,
    },
    /// Too many sessions.
    #[error("this worker has {limit} sessions, its limit")]
    TooManySessions {
        /// The bound.
        limit: usize,
    },
}
