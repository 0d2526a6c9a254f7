//! Words for what is not a run's life: chains, audit lines, repair, deletion.

use weir_ledger::{Actor, Change, Day, Hash};
use weir_run::RunId;

use crate::ObjectWrite;

/// Where a UTC day lies in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainDay {
    /// The day.
    pub day: Day,
    /// Number of its first link.
    pub first: u64,
    /// Number of its last link so far.
    pub last: u64,
    /// The hash before its first link: the root of the day before.
    pub previous_root: Hash,
    /// The hash of its last link.
    pub root: Hash,
    /// Whether it is the chain's last day, to which links may still come.
    pub open: bool,
}

/// Lines of the audit log and writes of objects, in one commit.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// Lines, as [`weir_ledger::AuditLine::encode`] makes them.
    pub lines: Vec<Vec<u8>>,
    /// Objects that go with them.
    pub writes: Vec<ObjectWrite>,
    /// Now.
    pub now_ms: u64,
}

/// What became of a [`Note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is durable; the audit log has this many lines.
    Written(u64),
    /// Nothing was written: the object of the write at this place is not as expected.
    Conflict(usize),
}

/// Asks for a tenant's account to be derived anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Whose.
    pub tenant: String,
    /// Who asks, for the audit log.
    pub actor: Actor,
    /// Whether to write what was found, or only to say it.
    pub apply: bool,
    /// Now.
    pub now_ms: u64,
}

/// What a [`Repair`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Fields of the account, what they were, and what ledger and live runs give.
    pub changes: Vec<Change>,
    /// Whether the account was changed.
    pub applied: bool,
}

/// Asks for content to be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Whose.
    pub tenant: String,
    /// Of runs accepted before this moment, in milliseconds since the Unix epoch.
    pub before_ms: u64,
    /// Where to go on.
    pub after: Option<RunId>,
    /// Rows to look at in one commit.
    pub limit: usize,
    /// Now.
    pub now_ms: u64,
}

/// What a [`Purge`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Runs whose content is gone now.
    pub runs: u64,
    /// Live runs, which keep theirs.
    pub live: u64,
    /// Where to go on; `None`: all were looked at.
    pub next: Option<RunId>,
}

/// What became of a [`crate::Store::scrub`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// The store's files hold nothing that was removed before.
    Done,
    /// They may, for this reason and until then.
    Later(String),
}
