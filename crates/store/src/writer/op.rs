//! Queued writes: what each asks for, what became of it, and where its answer goes.

use tokio::sync::{mpsc, oneshot};
use weir_run::{Decision, Epoch, Run, RunId};

use super::ops::OpError;
use super::state::{Group, ReadError};
use crate::{Admission, Admit, Append, Appended, ObjectWrite, OpenRun, StoreError, Written};

/// Writes in one commit: enough for a step of every worker, few enough that the first is not kept waiting for the last.
const GROUP_OPS: usize = 2048;
/// Event bytes after which a group is closed.
const GROUP_BYTES: usize = 8 << 20;

/// Something that can be asked of the writer. It may be performed several times, each time on a group of its own, before it is answered.
pub trait Request: Send + 'static {
    /// What it is answered with.
    type Answer: Send + 'static;

    /// Says what it changes.
    ///
    /// # Errors
    /// A record could not be read, or the caller broke the contract.
    fn perform(&self, group: &mut Group<'_>) -> Result<Self::Answer, OpError>;

    /// Roughly what it adds to the commit.
    fn bytes(&self) -> usize {
        512
    }

    /// Whether it brings what there should be space for when it is nearly used up.
    fn takes_space(&self) -> bool {
        false
    }
}

/// A queued write, whatever it is.
pub struct Op(Box<dyn Queued>);

/// What is queued.
pub enum Queue {
    /// A write.
    Write(Op),
    /// The last entry that is taken.
    Close(Closing),
}

trait Queued: Send {
    fn perform(&mut self, group: &mut Group<'_>) -> Result<(), ReadError>;
    fn refuse(&mut self, error: StoreError);
    fn answer(self: Box<Self>, fault: Option<&StoreError>);
    fn bytes(&self) -> usize;
    fn takes_space(&self) -> bool;
}

struct Asked<R: Request> {
    request: R,
    /// As of the last time it was performed.
    outcome: Result<R::Answer, StoreError>,
    answer: oneshot::Sender<Result<R::Answer, StoreError>>,
}

/// Where an answer comes.
pub type Answered<T> = oneshot::Receiver<Result<T, StoreError>>;

impl Op {
    /// A write to queue, and where its answer will be.
    pub fn new<R: Request>(request: R) -> (Self, Answered<R::Answer>) {
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            request,
            outcome: Err(StoreError::Closed),
            answer,
        };
        (Self(Box::new(asked)), answered)
    }

    /// Performs it on a group. An error is the group's: nothing of it may be committed.
    ///
    /// # Errors
    /// A record could not be read.
    pub fn perform(&mut self, group: &mut Group<'_>) -> Result<(), ReadError> {
        self.0.perform(group)
    }

    /// Refuses it alone, whatever becomes of its group.
    pub fn refuse(&mut self, error: StoreError) {
        self.0.refuse(error);
    }

    /// Answers with what became of it, or with what the group met.
    pub fn answer(self, fault: Option<&StoreError>) {
        self.0.answer(fault);
    }

    /// Whether it brings what there should be space for when it is nearly used up.
    pub fn takes_space(&self) -> bool {
        self.0.takes_space()
    }
}

impl<R: Request> Queued for Asked<R> {
    fn perform(&mut self, group: &mut Group<'_>) -> Result<(), ReadError> {
        self.outcome = match self.request.perform(group) {
            Ok(answer) => Ok(answer),
            Err(OpError::Contract(why)) => Err(StoreError::Contract(why)),
            Err(OpError::Read(error)) => return Err(error),
        };
        Ok(())
    }

    fn refuse(&mut self, error: StoreError) {
        self.outcome = Err(error);
    }

    fn answer(self: Box<Self>, fault: Option<&StoreError>) {
        // Whoever asked may have gone; the write stands.
        let _ = self.answer.send(match fault {
            None => self.outcome,
            Some(error) => Err(error.clone()),
        });
    }

    fn bytes(&self) -> usize {
        self.request.bytes()
    }

    fn takes_space(&self) -> bool {
        self.request.takes_space()
    }
}

/// An order to close.
pub struct Closing(oneshot::Sender<Result<(), StoreError>>);

impl Closing {
    /// An order to queue, and where its answer will be.
    pub fn order() -> (Queue, Answered<()>) {
        let (answer, answered) = oneshot::channel();
        (Queue::Close(Self(answer)), answered)
    }

    /// Everything before it is done.
    pub fn done(self) {
        // Whoever asked may have given up.
        let _ = self.0.send(Ok(()));
    }
}

/// The first entry and what else is queued, up to a bound; a close is the last that is taken.
pub fn gather(first: Queue, queue: &mut mpsc::Receiver<Queue>) -> (Vec<Op>, Option<Closing>) {
    let mut group = vec![];
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(entry) = next {
        let op = match entry {
            Queue::Write(op) => op,
            Queue::Close(closing) => return (group, Some(closing)),
        };
        bytes += op.0.bytes();
        group.push(op);
        let full = group.len() >= GROUP_OPS || bytes >= GROUP_BYTES;
        next = if full { None } else { queue.try_recv().ok() };
    }
    (group, None)
}

impl Request for Admission {
    type Answer = Admit;

    fn perform(&self, group: &mut Group<'_>) -> Result<Admit, OpError> {
        group.admit(self)
    }

    fn bytes(&self) -> usize {
        self.work.prompt.len() * 3 + self.work.submit.len() + 1024
    }

    fn takes_space(&self) -> bool {
        true
    }
}

impl Request for Vec<Append> {
    type Answer = Vec<Appended>;

    fn perform(&self, group: &mut Group<'_>) -> Result<Vec<Appended>, OpError> {
        self.iter().map(|append| group.append(append)).collect()
    }

    fn bytes(&self) -> usize {
        let events = self.iter().flat_map(|append| &append.events);
        events.map(|event| event.data.len() + 8).sum()
    }
}

impl Request for std::sync::Arc<Vec<Append>> {
    type Answer = Vec<Appended>;

    fn perform(&self, group: &mut Group<'_>) -> Result<Vec<Appended>, OpError> {
        (**self).perform(group)
    }

    fn bytes(&self) -> usize {
        (**self).bytes()
    }
}

/// See [`crate::Store::cancel`].
pub struct Cancel {
    /// Whose.
    pub tenant: String,
    /// Which.
    pub run: RunId,
}

impl Request for Cancel {
    type Answer = Option<Run>;

    fn perform(&self, group: &mut Group<'_>) -> Result<Option<Run>, OpError> {
        group.cancel(&self.tenant, self.run)
    }
}

/// See [`crate::Store::take_over`].
pub struct TakeOver(pub RunId);

impl Request for TakeOver {
    type Answer = Option<Epoch>;

    fn perform(&self, group: &mut Group<'_>) -> Result<Option<Epoch>, OpError> {
        group.take_over(self.0)
    }
}

/// See [`crate::Replicas::adopt`].
pub struct Adopt {
    /// Which.
    pub run: RunId,
    /// The gateway that is thought to have it.
    pub from: String,
}

impl Request for Adopt {
    type Answer = Option<OpenRun>;

    fn perform(&self, group: &mut Group<'_>) -> Result<Option<OpenRun>, OpError> {
        group.adopt(self.run, &self.from)
    }
}

/// See [`crate::Store::route`].
pub struct Route(pub RunId, pub Decision);

impl Request for Route {
    type Answer = ();

    fn perform(&self, group: &mut Group<'_>) -> Result<(), OpError> {
        group.route(self.0, &self.1)
    }
}

/// See [`crate::Store::expire`].
pub struct Expire {
    /// Now.
    pub now_ms: u64,
    /// Runs at most.
    pub limit: usize,
}

impl Request for Expire {
    type Answer = usize;

    fn perform(&self, group: &mut Group<'_>) -> Result<usize, OpError> {
        group.expire(self.now_ms, self.limit)
    }
}

impl Request for Vec<ObjectWrite> {
    type Answer = Written;

    fn perform(&self, group: &mut Group<'_>) -> Result<Written, OpError> {
        group.write_objects(self)
    }

    fn bytes(&self) -> usize {
        let sizes = self.iter().map(|write| write.data.as_ref());
        sizes
            .map(|data| data.map_or(0, bytes::Bytes::len) + 64)
            .sum()
    }

    fn takes_space(&self) -> bool {
        self.iter().any(|write| write.data.is_some())
    }
}
