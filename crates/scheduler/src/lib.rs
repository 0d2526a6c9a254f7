//! The pure core of continuous batching: block pool, prefix cache and step planning.
//!
//! It must not see a clock, a thread, a file, a model or unseeded randomness: the caller passes time as step numbers and
//! carries out what is planned. Read [`Batch`] first.

mod batch;

pub use batch::{Batch, BlockId, Row, SequenceId, SlotId};
