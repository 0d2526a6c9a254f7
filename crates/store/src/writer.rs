//! The one thread that writes. It takes whatever is queued, evaluates it in order in memory, commits once, and only then answers.
//!
//! After a failed commit nobody knows what the medium holds. If it was full, the files are opened again and memory is read back from them;
//! after any other failure the writer refuses every write until the process starts again.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::StoreError;
use crate::fault;
use crate::kv::{Kv, KvError};
use crate::shared::Shared;

mod breaks;
mod objects;
pub(crate) mod op;
pub(crate) mod ops;
mod retention;
mod space;
pub(crate) mod state;
pub(crate) mod upkeep;

use op::{Closing, Op, Queue};
pub(crate) use space::Space;
use state::{Changes, Group, ReadError, State, recover};

/// Writes that wait. At some hundred bytes to a few kilobytes each this bounds the queue to tens of megabytes.
pub const QUEUE: usize = 4096;
/// A commit may take this many times its size for a moment: pages are copied before they are freed, and sizes are rounded up.
const COMMIT_GROWTH: u64 = 4;
/// How often a full store looks for space.
const REOPEN_EVERY: Duration = Duration::from_millis(100);
/// How long readers may hold the old files when they are opened again.
const READERS_LEAVE_WITHIN: Duration = Duration::from_secs(2);

enum Health {
    Sound,
    /// The files are closed until there is space.
    Full(Instant),
    Poisoned(StoreError),
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    state: State,
    reopen: Reopen,
    health: Health,
}

/// Opens the engine's files anew.
pub(crate) type Reopen = Box<dyn Fn() -> Result<Arc<dyn Kv>, KvError> + Send>;

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, state: State, reopen: Reopen) -> Self {
        Self {
            shared,
            state,
            reopen,
            health: Health::Sound,
        }
    }

    /// Runs until the queue is closed or a close is asked for; lets go of the files then, and of the lock last.
    pub(crate) fn run(mut self, mut queue: mpsc::Receiver<Queue>, lock: File) {
        let mut closing: Option<Closing> = None;
        while closing.is_none()
            && let Some(first) = queue.blocking_recv()
        {
            let group;
            (group, closing) = op::gather(first, &mut queue);
            self.carry_out(group);
        }
        queue.close();
        let engine = self.shared.engine.write().take();
        if let Some(engine) = engine {
            wait_for_readers(engine);
        }
        drop(lock);
        if let Some(closing) = closing {
            closing.done();
        }
    }

    fn carry_out(&mut self, mut ops: Vec<Op>) {
        if ops.is_empty() {
            return;
        }
        fault::point("store.begun");
        let space = Space::of(&self.shared.path);
        let engine = match self.usable(&space) {
            Ok(engine) => engine,
            Err(error) => return ops.into_iter().for_each(|op| op.answer(Some(&error))),
        };
        let evaluated = self.evaluate(&*engine, &mut ops, space.admits());
        let fault = match evaluated {
            // sled 0.34 never returns from a flush that ran out of space, so a commit that may not fit is not begun.
            Ok(changes) if !space.takes(size(&changes)) => {
                self.read_back(&*engine);
                Some(self.shared.unwritable(&KvError::Full))
            }
            Ok(changes) => self.commit(engine, &changes).err(),
            Err(error) => {
                self.read_back(&*engine);
                Some(self.shared.unreadable(&error))
            }
        };
        for op in ops {
            op.answer(fault.as_ref());
        }
        fault::point("store.answered");
    }

    /// The engine, if it can take a write now.
    fn usable(&mut self, space: &Space) -> Result<Arc<dyn Kv>, StoreError> {
        let full = self.shared.unwritable(&KvError::Full);
        match &self.health {
            Health::Poisoned(error) => return Err(error.clone()),
            Health::Full(since) if since.elapsed() < REOPEN_EVERY => return Err(full),
            Health::Full(_) | Health::Sound if !space.takes(0) => return Err(full),
            Health::Full(_) => self.open_again(),
            Health::Sound => {}
        }
        let engine = self.shared.engine.read().clone();
        engine.ok_or(full)
    }

    /// Evaluates the ops in order. On an error the state in memory is part of the way and has to be read back.
    fn evaluate(
        &mut self,
        engine: &dyn Kv,
        ops: &mut [Op],
        admitting: bool,
    ) -> Result<Changes, ReadError> {
        let full = self.shared.unwritable(&KvError::Full);
        // The view must be gone before the commit: an engine may hold commits back while one is open.
        let view = engine.view()?;
        let mut group = Group::new(&mut self.state, &*view, None);
        for op in ops {
            if !admitting && op.takes_space() {
                op.refuse(full.clone());
            } else {
                op.perform(&mut group)?;
            }
        }
        Ok(group.finish())
    }

    /// Makes the changes durable, then shows them to readers.
    fn commit(&mut self, engine: Arc<dyn Kv>, changes: &Changes) -> Result<(), StoreError> {
        if changes.batch.is_empty() {
            return Ok(());
        }
        fault::point("store.evaluated");
        let (shared, state) = (&self.shared, &self.state);
        // Before a view shows it: what was read of a run from the engine is never newer than what memory says of the same run.
        let mut publish = || {
            fault::point("store.durable");
            shared.publish(changes, state);
            fault::point("store.shown");
        };
        let written = if fault::broken("lose-last") && changes.batch.len().is_multiple_of(7) {
            publish();
            Ok(())
        } else {
            engine.commit_with(&changes.batch, &mut publish)
        };
        let Err(error) = written else {
            return Ok(());
        };
        let answer = self.shared.unwritable(&error);
        if matches!(error, KvError::Full) {
            tracing::warn!(path = %self.shared.path.display(), "the store is out of disk space");
            drop(engine);
            self.health = Health::Full(Instant::now());
            self.open_again();
        } else {
            self.poison(&answer);
        }
        Err(answer)
    }

    /// Closes the files and opens them again, to learn what they hold after a commit that ran out of space.
    fn open_again(&mut self) {
        let engine = self.shared.engine.write().take();
        if let Some(engine) = engine {
            wait_for_readers(engine);
        }
        match (self.reopen)() {
            Ok(engine) => {
                *self.shared.engine.write() = Some(engine.clone());
                self.health = Health::Sound;
                self.read_back(&*engine);
            }
            Err(KvError::Full) => self.health = Health::Full(Instant::now()),
            Err(error) => {
                let error = self.shared.unwritable(&error);
                self.poison(&error);
            }
        }
    }

    /// Brings memory back to what the medium has.
    fn read_back(&mut self, engine: &dyn Kv) {
        match recover(engine) {
            Ok(state) => {
                self.state = state;
                self.shared.publish_all(&self.state);
            }
            Err(error) => {
                let error = self.shared.unreadable(&error);
                self.poison(&error);
            }
        }
    }

    fn poison(&mut self, error: &StoreError) {
        tracing::error!(%error, "the store refuses all writes until the process starts again");
        *self.shared.poisoned.lock() = Some(error.clone());
        self.health = Health::Poisoned(error.clone());
    }
}

/// What a commit may need on the medium.
fn size(changes: &Changes) -> u64 {
    let one = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| {
        let value = value.as_ref().map_or(0, Vec::len);
        (key.len() + value) as u64
    };
    let bytes: u64 = changes.batch.iter().map(one).sum();
    bytes.saturating_mul(COMMIT_GROWTH)
}

/// Readers hold an engine for one read at most; its files are only closed when the last has left.
fn wait_for_readers(engine: Arc<dyn Kv>) {
    let deadline = Instant::now() + READERS_LEAVE_WITHIN;
    while Arc::strong_count(&engine) > 1 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    drop(engine);
}

#[cfg(test)]
mod tests;
