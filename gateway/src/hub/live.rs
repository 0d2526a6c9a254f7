//! Runs that are not terminal, and the last events of each.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use weir_run::{RunId, RunStatus};
use weir_store::RunMap;

use super::Frame;
use crate::link::LinkHandle;

/// All live runs of this gateway.
pub(crate) struct Hub {
    /// Subscribers of runs that another gateway writes, by run.
    followers: Mutex<HashMap<RunId, Vec<Arc<Notify>>>>,
    shards: [Mutex<RunMap<Arc<LiveRun>>>; 16],
    tail_events: usize,
}

/// A live run: its tail and who has it now. Whose it is the store knows: every lookup by a client goes there first.
pub(crate) struct LiveRun {
    pub(crate) id: RunId,
    tail: Mutex<Tail>,
    pub(crate) control: Mutex<Control>,
    subscribers: AtomicU64,
}

#[derive(Default)]
struct Tail {
    frames: VecDeque<Frame>,
    last: u64,
    ended: bool,
    moved: bool,
    /// Those who have everything.
    waiting: Vec<(u64, Waker)>,
    readers: usize,
}

/// Events kept of a run that nobody reads: whoever comes soon after it began finds them here.
const UNREAD_TAIL: usize = 8;

/// Who may write to a run, and how it is meant to end.
pub(crate) struct Control {
    pub(crate) phase: Phase,
    pub(crate) intent: Option<Intent>,
    /// Timers that must be taken back when the run ends.
    pub(crate) deadline: Option<Instant>,
    pub(crate) queue_until: Option<Instant>,
}

/// Where a run's writer is.
#[derive(Clone)]
pub(crate) enum Phase {
    /// In a queue, or on the way into or out of one.
    Queued,
    /// With the link to a worker.
    On(Arc<LinkHandle>),
}

/// An end that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) status: RunStatus,
    pub(crate) reason: &'static str,
}

impl Hub {
    pub(crate) fn new(tail_events: usize) -> Self {
        Self {
            followers: Mutex::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
            tail_events,
        }
    }

    /// Wakes a subscriber whenever a run that another gateway writes is said to have grown.
    pub(crate) fn follow(&self, run: RunId, subscriber: &Arc<Notify>) {
        let mut all = self.followers.lock();
        all.entry(run).or_default().push(Arc::clone(subscriber));
    }

    pub(crate) fn unfollow(&self, run: RunId, subscriber: &Arc<Notify>) {
        let mut all = self.followers.lock();
        if let Some(followers) = all.get_mut(&run) {
            followers.retain(|other| !Arc::ptr_eq(other, subscriber));
            if followers.is_empty() {
                all.remove(&run);
            }
        }
    }

    /// Runs that another gateway writes and somebody here follows.
    pub(crate) fn followed(&self) -> Vec<RunId> {
        self.followers.lock().keys().copied().collect()
    }

    /// A run that another gateway writes has new events.
    pub(crate) fn grown(&self, run: RunId) {
        for follower in self.followers.lock().get(&run).into_iter().flatten() {
            follower.notify_one();
        }
    }

    fn shard(&self, run: RunId) -> &Mutex<RunMap<Arc<LiveRun>>> {
        // The low bits of an id are random.
        &self.shards[usize::from(run.to_bytes()[15] & 15)]
    }

    /// Makes a run known. `last` is the last event in its log.
    pub(crate) fn open(&self, id: RunId, last: u64) -> Arc<LiveRun> {
        let live = Arc::new(LiveRun {
            id,
            tail: Mutex::new(Tail {
                last,
                ..Tail::default()
            }),
            control: Mutex::new(Control {
                phase: Phase::Queued,
                intent: None,
                deadline: None,
                queue_until: None,
            }),
            subscribers: AtomicU64::new(0),
        });
        self.shard(id).lock().insert(id, Arc::clone(&live));
        live
    }

    pub(crate) fn find(&self, run: RunId) -> Option<Arc<LiveRun>> {
        self.shard(run).lock().get(&run).cloned()
    }

    /// Forgets a run; its subscribers still get what is in the tail.
    pub(crate) fn close(&self, run: RunId) -> Option<Arc<LiveRun>> {
        self.shard(run).lock().remove(&run)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Shows durable events to the run's subscribers.
    pub(crate) fn publish(&self, live: &LiveRun, frames: impl IntoIterator<Item = Frame>) {
        let mut tail = live.tail.lock();
        if tail.readers > 0 && tail.waiting.len() == tail.readers {
            // Everybody has them; who comes later reads from the store.
            tail.frames.clear();
        }
        let most = match tail.readers {
            0 => self.tail_events.min(UNREAD_TAIL),
            _ => self.tail_events,
        };
        for frame in frames {
            debug_assert_eq!(frame.sequence, tail.last + 1, "a gap in {}", live.id);
            tail.last = frame.sequence;
            tail.ended |= frame.is_terminal();
            if tail.frames.len() >= most {
                tail.frames.pop_front();
            }
            tail.frames.push_back(frame);
        }
        for (_, waker) in tail.waiting.drain(..) {
            waker.wake();
        }
    }
}

/// What a subscriber finds after its cursor.
pub(crate) enum Next {
    /// Frames were added to its buffer.
    Taken,
    /// The tail begins later: the store has what is missing.
    Behind,
    /// The run ended and everything was taken.
    Ended,
    /// Another process has the run now.
    Moved,
}

impl LiveRun {
    pub(crate) fn subscriber(&self) -> u64 {
        self.tail.lock().readers += 1;
        self.subscribers.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes how the run is meant to end, unless that is known already; whether it was not.
    pub(crate) fn intend(&self, intent: Intent) -> bool {
        let mut control = self.control.lock();
        let news = control.intent.is_none();
        control.intent.get_or_insert(intent);
        news
    }

    /// Nothing more will be published here.
    pub(crate) fn moved(&self) {
        let mut tail = self.tail.lock();
        tail.moved = true;
        for (_, waker) in tail.waiting.drain(..) {
            waker.wake();
        }
    }

    pub(crate) fn unsubscribe(&self, subscriber: u64) {
        let mut tail = self.tail.lock();
        tail.readers -= 1;
        tail.waiting.retain(|(waiting, _)| *waiting != subscriber);
    }

    /// Takes at most `most` frames after `cursor`, or leaves the waker.
    pub(crate) fn poll_after(
        &self,
        cursor: u64,
        most: usize,
        (subscriber, waker): (u64, &Waker),
        into: &mut VecDeque<Frame>,
    ) -> Poll<Next> {
        let mut tail = self.tail.lock();
        if cursor >= tail.last {
            if tail.ended {
                return Poll::Ready(Next::Ended);
            }
            if tail.moved {
                return Poll::Ready(Next::Moved);
            }
            match tail.waiting.iter_mut().find(|(id, _)| *id == subscriber) {
                Some((_, old)) => old.clone_from(waker),
                None => tail.waiting.push((subscriber, waker.clone())),
            }
            return Poll::Pending;
        }
        let first = tail.last + 1 - tail.frames.len() as u64;
        if cursor + 1 < first {
            return Poll::Ready(Next::Behind);
        }
        let skip = (cursor + 1 - first) as usize;
        into.extend(tail.frames.iter().skip(skip).take(most).cloned());
        Poll::Ready(Next::Taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::encode;
    use weir_run::EventKind;

    fn frame(sequence: u64) -> Frame {
        encode(sequence, &EventKind::Started { queue_ms: sequence })
    }

    /// Polls once: the last sequence taken, or what else it found.
    fn poll(live: &LiveRun, reader: u64, cursor: u64) -> Option<u64> {
        let mut taken = VecDeque::new();
        let seat = (reader, Waker::noop());
        match live.poll_after(cursor, 16, seat, &mut taken) {
            Poll::Ready(Next::Taken) => taken.back().map(|frame| frame.sequence),
            Poll::Pending => Some(0),
            Poll::Ready(_) => None,
        }
    }

    #[test]
    fn a_tail_keeps_what_somebody_has_yet_to_read_and_little_else() {
        let hub = Hub::new(64);
        let live = hub.open(RunId::new(1, 1), 0);
        let kept = || live.tail.lock().frames.len();
        hub.publish(&live, (1..=20).map(frame));
        assert_eq!(kept(), UNREAD_TAIL, "nobody reads");
        let (slow, keen) = (live.subscriber(), live.subscriber());
        assert_eq!(poll(&live, keen, 20), Some(0), "it has everything");
        hub.publish(&live, (21..=40).map(frame));
        assert_eq!(kept(), UNREAD_TAIL + 20, "one has not read them");
        assert_eq!(poll(&live, slow, 0), None, "the store has the first");
        for reader in [slow, keen] {
            assert_eq!(poll(&live, reader, 30), Some(40));
            assert_eq!(poll(&live, reader, 40), Some(0));
        }
        hub.publish(&live, [frame(41)]);
        assert_eq!(kept(), 1, "both had everything before it");
        assert_eq!(poll(&live, slow, 40), Some(41));
        live.unsubscribe(keen);
        assert_eq!(poll(&live, slow, 41), Some(0));
        hub.publish(&live, [frame(42)]);
        assert_eq!(kept(), 1);
    }
}
