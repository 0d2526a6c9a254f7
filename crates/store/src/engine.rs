//! For engines in other crates: what every write and every read means, over whatever view of the records the engine has.
//!
//! An embedded engine is the only writer of its records and keeps what is live in memory. An engine that several gateways share reads
//! what a group of writes rests on, lets [`evaluate`] say what the group changes, and makes the changes durable in one step that
//! changes nothing unless all it rests on is still as it was read. So there is one meaning of a write, whatever keeps it.
//!
//! The hash chains grow in the same way: a group reads the head of a chain, and its commit rests on it, so that of two gateways that add
//! the same number one evaluates again. [`crate::Note`], [`crate::Repair`] and [`crate::Purge`] are requests like every other write.
//!
//! A view that has not read a part yet answers [`KvError::NotRead`] and notes the part; the engine reads it and evaluates again.

use weir_run::{RunId, Sequence};

pub use crate::kv::{Batch, KvError, Pair, View, Visit};
pub use crate::objects::check_writes;
pub use crate::record::codec::BadRecord;
pub use crate::record::key;
pub use crate::writer::QUEUE;
pub use crate::writer::op::{
    Adopt, Answered, Cancel, Closing, Expire, Op, Queue, Request, Route, TakeOver, gather,
};
pub use crate::writer::ops::{OpError, check_admission, check_kinds};
pub use crate::writer::state::{Changes, Group, ReadError, State};
pub use crate::writer::upkeep::check_note;

/// What every read means.
pub mod read {
    pub use crate::chains::{day as chain_day, head as chain_head, links as chain, runs};
    pub use crate::dump::records;
    pub use crate::objects::{many as objects, one as object};
    pub use crate::reader::{
        budget, events, id_by_key, live_or_ended, run, stored_account, usage, work,
    };
}

/// What a group of writes changes.
#[derive(Debug, Default)]
pub struct Evaluated {
    /// New values by key; `None` removes.
    pub batch: Batch,
    /// Runs whose events are over, in place of the removal of each.
    pub expired: Vec<RunId>,
}

/// Performs the writes in order, each seeing those before it, on behalf of the gateway `owner`. Their answers are theirs to give once
/// the changes are durable.
///
/// # Errors
/// The first error of reading. All writes are performed as far as they come all the same, so that the view notes at once what is wanted.
pub fn evaluate(view: &dyn View, owner: &str, ops: &mut [Op]) -> Result<Evaluated, ReadError> {
    let mut state = State::default();
    let mut group = Group::new(&mut state, view, Some(owner));
    let mut first = None;
    for op in ops {
        if let Err(error) = op.perform(&mut group) {
            first = first.or(Some(error));
        }
    }
    if let Some(error) = first {
        return Err(error);
    }
    let Changes { batch, expired, .. } = group.finish();
    Ok(Evaluated {
        batch,
        expired: expired.into_iter().collect(),
    })
}

/// A record with its checksum, as all are kept.
pub fn seal(key: &[u8], payload: Vec<u8>) -> Vec<u8> {
    crate::record::seal(key, payload)
}

/// What is in a record.
///
/// # Errors
/// It was changed or cut off.
pub fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], BadRecord> {
    crate::record::unseal(key, sealed)
}

/// The run and first sequence of a chunk's key; `None` for every other key.
pub fn chunk_of(key: &[u8]) -> Option<(RunId, Sequence)> {
    let rest: &[u8; 24] = key.strip_prefix(&[key::CHUNK])?.try_into().ok()?;
    let (run, first) = rest.split_at(16);
    Some((
        RunId::from_bytes(run.try_into().ok()?),
        Sequence(u64::from_be_bytes(first.try_into().ok()?)),
    ))
}
