//! Durable runs, events, budgets and usage behind one trait, [`Store`].
//!
//! It must not know HTTP, tokens' text beyond the bytes of an event, or models. An answer of `Ok` means durable: synced to the
//! medium, whatever the process does next.

mod store;

pub use store::{
    Admission, Admit, Append, Appended, Budget, BudgetWindow, EventRecord, ModelUsage, OpenRun,
    RunCounts, Store, StoreError, StoreFuture, UsageReport,
};
pub use weir_run::Terminal;
