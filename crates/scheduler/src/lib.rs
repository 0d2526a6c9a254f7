//! The pure core of continuous batching: block pool, prefix cache and step planning, for any backend.
//!
//! It must not see a clock, a thread, a file, a model, a network or unseeded randomness: time is the number of the step, ids
//! come from the caller, and what is planned is carried out by the caller. Read [`Scheduler`], [`Batch`] and [`Config`] first.

mod batch;
mod config;
mod digest;
mod list;
mod lookup;
mod pool;
mod scheduler;
mod scope;
mod sequence;
mod table;

pub use batch::{Batch, BlockId, Row, SequenceId, SlotId, UNSEEN};
pub use config::{CLASSES, Config, ConfigError, Limits, Mode, Priority};
pub use digest::cache_identity;
pub use lookup::DRAFTS_MAX;
pub use scheduler::{Event, NewSequence, Outcome, Refused, Scheduler, Stats, Verdict};
