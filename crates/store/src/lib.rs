//! Durable runs, events, budgets and usage behind one trait, [`Store`].
//!
//! It must not know HTTP, tokens' text beyond the bytes of an event, or models. An answer of `Ok` means durable: synced to the
//! medium, whatever the process does next.

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
