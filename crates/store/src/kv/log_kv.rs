//! Our own log over a redb checkpoint.
//!
//! A commit is one write and one sync that overwrite blocks which are there already, so that the file system has nothing to note: a fraction
//! of what a growing file costs. What is committed goes into a table in memory. A full segment's table is frozen, the keeper (a thread) carries
//! it over into the checkpoint in one transaction, and the segment is used again. Memory is bounded by the segments; what is old is read from
//! the checkpoint, and what is removed leaves it.
//!
//! The mark, in the checkpoint, says how far it goes. Opening reads every frame for segments above the mark and demands their sequences
//! without a gap: a commit that was torn is the last one, so a gap is damage, and refused. A new segment follows each opening: the place of
//! a torn frame is not written to again before it means nothing.
//!
//! With durability in memory a commit is not synced; the keeper does that once a second. A crash of the machine may then leave a gap: opening
//! takes the commits before the first one that is missing and drops what comes after it, for good before anything new is written.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};

use super::redb_kv::RedbKv;
use super::{Batch, Kv, KvError, View};
use crate::fault;
use crate::{Durability, Scrub};

mod disk;
mod frame;
mod keeper;
#[cfg(any(test, feature = "faults"))]
mod medium;
mod replay;
mod scrub;
mod table;
mod view;

use disk::{Disk, Folder, Segment};
#[cfg(feature = "faults")]
pub(crate) use medium::Medium;
use table::Table;
use view::LogView;

/// Large enough that a checkpoint is rare and writes each page of the tree for many commits, small enough that the tables of three segments
/// are a hundred megabytes at most, and that reading them on opening takes a moment.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Still some hundred commits.
const SMALLEST_SEGMENT_BYTES: u64 = 256 << 10;
/// Frozen tables that wait for the checkpoint; with one more a commit waits.
const MAX_FROZEN: usize = 2;
/// A buffer that one large commit has grown beyond this is not kept.
const KEPT_BUFFER: usize = 2 << 20;

pub(crate) struct LogKv {
    core: Arc<Core>,
    keeper: Option<JoinHandle<()>>,
}

struct Core {
    disk: Box<dyn Disk>,
    base: RedbKv,
    secret: frame::Secret,
    durability: Durability,
    segment_bytes: u64,
    /// Where the next commit goes. Held through a commit.
    tail: Mutex<Tail>,
    /// What views are made of. Written to show a commit, and when a table is frozen or carried over.
    shown: RwLock<Shown>,
    /// Open views. Grows only under a read lock on what is shown.
    views: AtomicUsize,
    spares: Mutex<Vec<Named>>,
    /// Number of the last name given to a segment.
    names: AtomicU64,
    /// Held while a spare is made, so that who needs one waits for it instead of making another.
    making: Mutex<()>,
    /// Held while a table is carried over.
    carrying: Mutex<()>,
    /// Set once, by the first write or sync that failed: what the medium holds is not known from there on.
    fault: Mutex<Option<KvError>>,
    /// Whether the keeper has something to do.
    work: Mutex<bool>,
    wake: Condvar,
    stopping: AtomicBool,
}

struct Tail {
    segment: Option<Named>,
    /// Number of the segment; grows by one with each.
    number: u64,
    offset: u64,
    /// Of the last frame, kept for its allocation.
    buffer: Vec<u8>,
}

/// A segment's file.
struct Named {
    name: String,
    bytes: u64,
    file: Arc<dyn Segment>,
}

struct Shown {
    /// Sequence of the last durable commit.
    sequence: u64,
    active: Arc<Table>,
    /// Oldest first.
    frozen: VecDeque<Arc<Frozen>>,
}

/// A table that grows no more, and the segments that hold the same.
struct Frozen {
    table: Arc<Table>,
    mark: Mark,
    segments: Mutex<Vec<Named>>,
}

/// How far the checkpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// Segments up to here mean nothing any more.
    segment: u64,
    /// The last commit in it.
    sequence: u64,
}

impl LogKv {
    pub(crate) fn open(path: &Path, durability: Durability) -> Result<Self, KvError> {
        let folder = Folder::open(path).map_err(|error| KvError::from_io(&error))?;
        let segment = segment_bytes(folder.total_bytes());
        Self::start(Box::new(folder), segment, durability)
    }

    /// On a medium in memory, with segments so small that a test fills several.
    #[cfg(feature = "faults")]
    pub(crate) fn on(medium: Medium) -> Result<Self, KvError> {
        Self::start(Box::new(medium), 64 << 10, Durability::Disk)
    }

    fn start(
        disk: Box<dyn Disk>,
        segment_bytes: u64,
        durability: Durability,
    ) -> Result<Self, KvError> {
        let core = Arc::new(replay::open(disk, segment_bytes, durability)?);
        let keeper = keeper::start(core.clone()).map_err(|error| KvError::from_io(&error))?;
        Ok(Self {
            core,
            keeper: Some(keeper),
        })
    }
}

/// A small disk gets small segments: three of them and the checkpoint must leave room.
fn segment_bytes(total: u64) -> u64 {
    let part = (total / 16).next_multiple_of(frame::BLOCK as u64);
    part.clamp(SMALLEST_SEGMENT_BYTES, SEGMENT_BYTES)
}

impl Drop for LogKv {
    fn drop(&mut self) {
        self.core.stop_keeper();
        if let Some(keeper) = self.keeper.take() {
            // A panic of the keeper was reported when it happened.
            let _ = keeper.join();
        }
        if self.core.durability == Durability::Memory {
            // Nobody is left to be told; the next opening takes what is there.
            let _ = self.core.sync_written();
        }
    }
}

impl Kv for LogKv {
    fn view(&self) -> Result<Box<dyn View + '_>, KvError> {
        self.core.view()
    }

    fn commit_with(&self, batch: &Batch, publish: &mut dyn FnMut()) -> Result<(), KvError> {
        self.core.commit_with(batch, publish)
    }

    fn scrub(&self) -> Result<Scrub, KvError> {
        self.core.scrub()
    }
}

impl Core {
    fn view(&self) -> Result<Box<dyn View + '_>, KvError> {
        let shown = self.shown.read();
        // Begun under the lock: it must not be newer than the tables.
        let base = self.base.view()?;
        self.views.fetch_add(1, Ordering::Relaxed);
        let frozen = shown.frozen.iter().rev();
        let tables = std::iter::once(&shown.active).chain(frozen.map(|frozen| &frozen.table));
        Ok(Box::new(LogView {
            tables: tables.cloned().collect(),
            sequence: shown.sequence,
            base,
            open: &self.views,
        }))
    }

    #[cfg(test)]
    fn commit(&self, batch: &Batch) -> Result<(), KvError> {
        self.commit_with(batch, &mut || {})
    }

    fn commit_with(&self, batch: &Batch, publish: &mut dyn FnMut()) -> Result<(), KvError> {
        if batch.is_empty() {
            publish();
            return Ok(());
        }
        let mut tail = self.tail.lock();
        self.sound()?;
        let size = frame::size(batch);
        let fits = |segment: &Named| segment.bytes - tail.offset >= size;
        if !tail.segment.as_ref().is_some_and(fits) {
            self.next_segment(&mut tail, size)?;
        }
        let sequence = self.shown.read().sequence + 1;
        let buffer = std::mem::take(&mut tail.buffer);
        let frame = frame::encode(&self.secret, tail.number, sequence, batch, buffer)
            .map_err(|_| KvError::Io("a commit of more than 4 GiB".into()))?;
        let segment = tail.segment.as_ref().expect("made above");
        let written = segment.file.write_at(tail.offset, &frame).and_then(|()| {
            fault::point("log.written");
            match self.durability {
                Durability::Disk => segment.file.sync(),
                Durability::Memory => Ok(()),
            }
        });
        // Not even a full disk is an exception: the blocks were there.
        written.map_err(|error| self.fail(KvError::Io(error.to_string())))?;
        fault::point("log.synced");
        tail.offset += frame.len() as u64;
        if frame.capacity() <= KEPT_BUFFER {
            tail.buffer = frame;
        }
        let mut shown = self.shown.write();
        publish();
        let viewed = self.views.load(Ordering::Relaxed) > 0;
        shown.active.put(sequence, batch, viewed);
        shown.sequence = sequence;
        Ok(())
    }

    /// Goes on in a spare segment and freezes the table of the one before. An error leaves everything as it was.
    fn next_segment(&self, tail: &mut Tail, size: u64) -> Result<(), KvError> {
        let next = self.spare(size)?;
        fault::point("log.segment");
        let full = tail.segment.replace(next);
        if let Some(full) = full {
            let mut shown = self.shown.write();
            let table = std::mem::take(&mut shown.active);
            let frozen = Frozen {
                table,
                mark: Mark {
                    segment: tail.number,
                    sequence: shown.sequence,
                },
                segments: Mutex::new(vec![full]),
            };
            shown.frozen.push_back(Arc::new(frozen));
        }
        tail.number += 1;
        tail.offset = 0;
        self.wake_keeper();
        Ok(())
    }

    fn sound(&self) -> Result<(), KvError> {
        self.fault.lock().clone().map_or(Ok(()), Err)
    }

    /// Notes the first fault; nothing is written from here on.
    fn fail(&self, error: KvError) -> KvError {
        self.fault.lock().get_or_insert_with(|| error.clone());
        error
    }
}

#[cfg(test)]
mod tests;
