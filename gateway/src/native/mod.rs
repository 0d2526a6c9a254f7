//! Weir's own calls: runs by name, events by number, usage by ledger.

mod inference;
pub(crate) mod read;
mod runs;
mod usage;

pub(crate) use inference::inference;
pub(crate) use runs::{cancel, events, run};
pub(crate) use usage::{Asked, Export, NDJSON, export, ledger, period, usage, view};
