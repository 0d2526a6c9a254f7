//! Durable runs, events, budgets and usage behind one trait, [`Store`].
//!
//! It must not know HTTP, tokens' text beyond the bytes of an event, or models. An answer of `Ok` means durable: synced to the
//! medium, whatever the process does next. Read [`Store`] first, then [`open`].
//!
//! # What is assumed of the medium
//!
//! - A sync that returns success has put everything written before it on the medium, through the device's own cache. `fdatasync` does so for
//!   blocks that are overwritten; a file's name is durable after a sync of the file and one of its folder.
//! - A sync that fails may have lost anything since the last one that did not: it is never repeated. The writer refuses all further writes
//!   until the process starts again and reads what is there. Only a full disk is told apart: the files are opened again. It is found before
//!   anything is written; the log takes no failed write or sync for one.
//! - A crash may leave the last unsynced writes done, undone, or torn between any two sectors of 512 bytes, in any order; the engine's own
//!   checksums or phases find that out. Synced bytes do not change while nothing is written to them, and the log never writes to a 4 KiB
//!   block that holds a commit it still needs. If they do change, the engine or the checksum of our record says so, and the record is
//!   refused rather than served. The one exception: damage to the very last commit of the log looks like one that was torn, and is cut off.
//! - An advisory lock on a file is held until its process is gone, and then no longer. The folder is on one machine: not on NFS.
//!
//! Tested by killing processes (all engines), and by cutting the power of a medium in memory at any write or sync, with any combination of
//! unsynced sectors lost (log, and the redb file below it). No real machine has been unplugged.
//!
//! With [`Durability::Memory`] an answer means less: the kernel has it. See there.
//!
//! # Format 1
//!
//! A folder holds `lock`, `engine` (the engine's name) and the engine's files, which are one ordered map from keys to values. Keys are
//! listed in `record/key.rs`. A value is a version byte, fields in a fixed order (integers LEB128, names length-prefixed; an account is
//! JSON), and a CRC-32 over key and value. One commit adds one chunk of events per run; a chunk has the run's progress after it, so that
//! the row of a live run is only written when something else changes. What is live is read into memory on opening: reservations (`o`)
//! name the live runs, the last chunk brings each row up to date.
//!
//! The log's files are segments of a fixed size, written over and over (`kv/log_kv/frame.rs` has the format), and a checkpoint. Files with
//! the ending `new` were not finished and mean nothing.
//!
//! What was removed leaves the map at once, and the files when its place is written over: a segment when the log comes round to it, a page of the
//! checkpoint or of redb when it is used again. [`Store::scrub`] does not wait for that.
//!
//! # Which engine
//!
//! The log is the default: commits overwrite blocks instead of growing a file, and one write and one sync is all there is to them. redb has
//! the fewest parts of our own; each commit costs two syncs of a growing file and ten times the bytes. sled 0.34 hangs for ever in a flush
//! that runs out of space (and takes every other sled in the process with it), needs syncs of our own to be durable at all, and its line is
//! not maintained. A folder stays with the engine that made it.

mod by_run;
mod chains;
mod dump;
mod embedded;
pub mod engine;
pub mod fault;
mod kv;
mod objects;
mod open;
mod reader;
mod record;
mod replicas;
mod shared;
mod store;
#[doc(hidden)]
pub mod testing;
mod upkeep;
mod writer;

pub use by_run::{RunHasher, RunMap};
pub use dump::dump;
pub use objects::{Expect, MAX_OBJECT_BYTES, Object, ObjectRange, ObjectWrite, RUN_SPACE, Written};
pub use open::{Durability, Engine, open, open_with};
pub use replicas::{Beat, Change, Peer, Replicas};
pub use store::{
    Admission, Admit, Append, Appended, Budget, BudgetWindow, EventRecord, ModelUsage, OpenRun,
    RunCounts, Store, StoreError, StoreFuture, UsageReport,
};
pub use upkeep::{ChainDay, Note, Noted, Purge, Purged, Repair, Repaired, Scrub};
pub use weir_run::{Terminal, WorkOrder};
