//! Durable runs, events, budgets and usage behind one trait, [`Store`].
//!
//! It must not know HTTP, tokens' text beyond the bytes of an event, or models. An answer of `Ok` means durable: synced to the
//! medium, whatever the process does next. Read [`Store`] first, then [`open`].
//!
//! # What is assumed of the medium
//!
//! - A sync that returns success has put everything written before it on the medium, through the device's own cache.
//! - A sync that fails may have lost anything since the last one that did not: it is never repeated. The writer refuses all further writes
//!   until the process starts again and reads what is there. Only a full disk is told apart: the files are opened again.
//! - A crash may leave the last unsynced writes done, undone, or torn; the engine's own checksums or phases find that out. Synced bytes do
//!   not change; if they do, the engine or the checksum of our record says so, and the record is refused rather than served.
//! - An advisory lock on a file is held until its process is gone, and then no longer. The folder is on one machine: not on NFS.
//!
//! Tested by killing processes. That a power cut loses no more than unsynced writes is the engine's promise, not tested here yet.
//!
//! # Format 1
//!
//! A folder holds `lock`, `engine` (the engine's name) and the engine's files, which are one ordered map from keys to values. Keys are
//! listed in `record/key.rs`. A value is a version byte, fields in a fixed order (integers LEB128, names length-prefixed; an account is
//! JSON), and a CRC-32 over key and value. One commit adds one chunk of events per run; a chunk has the run's progress after it, so that
//! the row of a live run is only written when something else changes. What is live is read into memory on opening: reservations (`o`)
//! name the live runs, the last chunk brings each row up to date.
//!
//! # Which engine
//!
//! redb is the default. sled 0.34 is faster with few runs and writes less, but it hangs for ever in a flush that runs out of space (and takes
//! every other sled in the process with it), needs syncs of our own to be durable at all, and its line is not maintained.

mod embedded;
mod kv;
mod open;
mod reader;
mod record;
mod shared;
mod store;
mod writer;

pub use open::{Engine, open};
pub use store::{
    Admission, Admit, Append, Appended, Budget, BudgetWindow, EventRecord, ModelUsage, OpenRun,
    RunCounts, Store, StoreError, StoreFuture, UsageReport,
};
pub use weir_run::{Terminal, WorkOrder};
