//! A subscriber's view of a run: retained events from the store, then live ones, without a gap and without a copy.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Notify;
use weir_run::{Run, RunId, Sequence};
use weir_store::fault::broken;
use weir_store::{EventRecord, Store, StoreError};

use super::live::Next;
use super::{Frame, Hub, LiveRun};
use crate::core::Core;

/// Frames taken from a tail at once: bounds what a slow reader holds.
const TAKE: usize = 16;
/// Events read from the store at once.
const PAGE: usize = 64;
/// How soon the store is asked again about a run that lives in another process; longer each time it has nothing new. A hint comes
/// before, if one comes.
const ELSEWHERE: Duration = Duration::from_millis(50);
const LONGEST_ELSEWHERE: Duration = Duration::from_millis(800);

type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;
type Reading = Pin<Box<dyn Future<Output = Result<Stored, StoreError>> + Send>>;

/// What the store has after a cursor.
enum Stored {
    Some(Vec<EventRecord>),
    /// Nothing now; the run goes on.
    NotYet,
    /// Nothing, and nothing will come: the run is over, and what followed the cursor is no longer kept.
    Gone,
}

/// Events of one run after a cursor; ends after the terminal event.
pub(crate) struct EventSource {
    store: Arc<dyn Store>,
    hub: Arc<Hub>,
    tenant: String,
    run: RunId,
    cursor: u64,
    live: Option<(Arc<LiveRun>, u64)>,
    ready: VecDeque<Frame>,
    reading: Option<Reading>,
    pause: Option<Pause>,
    /// Set while the run lives in another process.
    followed: Option<Arc<Notify>>,
    patience: Duration,
    done: bool,
}

impl EventSource {
    pub(crate) fn new(core: &Core, run: &Run, after: u64) -> Self {
        let mut source = Self {
            store: Arc::clone(&core.store),
            hub: Arc::clone(&core.hub),
            tenant: run.tenant.clone(),
            run: run.id,
            cursor: after,
            live: None,
            ready: VecDeque::new(),
            reading: None,
            pause: None,
            followed: None,
            patience: ELSEWHERE,
            done: false,
        };
        source.join();
        source
    }

    fn join(&mut self) {
        self.live = self.hub.find(self.run).map(|live| {
            let subscriber = live.subscriber();
            (live, subscriber)
        });
    }

    fn leave(&mut self) {
        if let Some((live, subscriber)) = self.live.take() {
            live.unsubscribe(subscriber);
        }
    }

    fn read(&mut self) {
        let (store, run, after) = (Arc::clone(&self.store), self.run, Sequence(self.cursor));
        let tenant = self.tenant.clone();
        self.reading = Some(Box::pin(async move {
            let records = store.events(run, after, PAGE).await?;
            if !records.is_empty() {
                return Ok(Stored::Some(records));
            }
            let row = store.run(&tenant, run).await?;
            if row.is_some_and(|row| !row.status.is_terminal()) {
                return Ok(Stored::NotYet);
            }
            // It may have ended between the two looks.
            let records = store.events(run, after, PAGE).await?;
            let is_gone = records.is_empty();
            Ok(if is_gone {
                Stored::Gone
            } else {
                Stored::Some(records)
            })
        }));
    }

    /// The next event; `None` after the terminal one.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame, StoreError>>> {
        loop {
            if self.done {
                return Poll::Ready(None);
            }
            if let Some(frame) = self.ready.pop_front() {
                if broken("replay-twice")
                    && frame.sequence % 5 == 0
                    && self.cursor != frame.sequence
                {
                    self.ready.push_front(frame.clone());
                }
                self.cursor = frame.sequence;
                self.done = frame.is_terminal();
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(reading) = &mut self.reading {
                let records = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                match records {
                    Err(error) => {
                        self.done = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Ok(Stored::Gone) => self.done = true,
                    Ok(Stored::NotYet) => self.nothing_stored(),
                    Ok(Stored::Some(records)) => {
                        self.patience = ELSEWHERE;
                        self.ready.extend(records.iter().map(Frame::from_record));
                    }
                }
                continue;
            }
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
                self.read();
                continue;
            }
            let Some((live, subscriber)) = &self.live else {
                self.read();
                continue;
            };
            let seat = (*subscriber, cx.waker());
            match ready!(live.poll_after(self.cursor, TAKE, seat, &mut self.ready)) {
                Next::Taken => {}
                Next::Behind => self.read(),
                Next::Ended => self.done = true,
                Next::Moved => self.leave(),
            }
        }
    }

    /// The store has nothing after the cursor: the run may have come to life here, or lives in another process.
    fn nothing_stored(&mut self) {
        if self.live.is_some() {
            // A tail says that there is more, the store does not have it: retention took it away.
            self.done = true;
            return;
        }
        self.join();
        if self.live.is_some() {
            return self.unfollow();
        }
        let hub = &self.hub;
        let grown = Arc::clone(self.followed.get_or_insert_with(|| {
            let grown = Arc::new(Notify::new());
            hub.follow(self.run, &grown);
            grown
        }));
        let patience = self.patience;
        self.patience = (patience * 2).min(LONGEST_ELSEWHERE);
        self.pause = Some(Box::pin(async move {
            // Whether there is something the store says.
            tokio::time::timeout(patience, grown.notified()).await.ok();
        }));
    }

    fn unfollow(&mut self) {
        if let Some(followed) = self.followed.take() {
            self.hub.unfollow(self.run, &followed);
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Frame, StoreError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        self.unfollow();
        self.leave();
    }
}
