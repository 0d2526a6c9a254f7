//! One decision: from the log, an observation and the time to the next record, effects and a status.
//!
//! A decision is a list of small checks, those that protect users first. A check that fires gives the next record; the caller
//! creates it (creating is the compare-and-swap), reads the log again and decides again. Effects are what the *present* head
//! asks for and the observation allows, so a crash anywhere resumes by looking.

mod capacity;
mod effects;
mod idle;
mod invariants;
mod next;
mod observation;
mod progress;
mod requests;
mod safety;
mod state;
mod status;
mod target;

use crate::Record;

pub use capacity::{need, need_in_exchange};
pub use effects::Effect;
pub use observation::{
    Action, GatewayView, Lease, Observation, ReplicaView, Request, Seen, Stage, Verification,
    VersionSpec, Withdrawn,
};
pub use status::{Reason, StatusStage, VersionStatus};

use next::Next;
use state::State;

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The log, oldest first; the last one is the head. Empty before the first record.
    pub log: &'a [Record],
    /// The version objects that exist.
    pub specs: &'a [VersionSpec],
    /// What is observed.
    pub observation: &'a Observation,
    /// Wall time, for deadlines only.
    pub now_ms: u64,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The next record, to be created before anything it says is done.
    pub record: Option<Record>,
    /// Why, for an event.
    pub note: Option<Note>,
    /// What the head asks for.
    pub effects: Vec<Effect>,
    /// One status per version that exists or serves.
    pub status: Vec<VersionStatus>,
}

/// What happened, for an event on a version's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The version.
    pub version: u32,
    /// What, in one word.
    pub reason: String,
    /// What, in a sentence.
    pub message: String,
}

/// A check: the next record, if it fires.
type Check = fn(&State) -> Option<Next>;

/// Those that protect users come first, then people's wishes, then progress.
const CHECKS: &[(&str, Check)] = &[
    ("breach", safety::breach),
    ("withdrawn", safety::withdrawn),
    ("request", requests::handle),
    ("superseded", safety::superseded),
    ("capacity lost", safety::capacity_lost),
    ("hold", safety::hold),
    ("progress", progress::progress),
    ("idle", idle::idle),
];

/// Decides. Equal input gives equal output, and a decision that changes nothing writes nothing.
pub fn decide(input: &Input<'_>) -> Decision {
    let state = State::new(input);
    let fired = CHECKS
        .iter()
        .find_map(|(name, check)| Some((name, check(&state)?)));
    let (record, note) = match fired {
        None => (None, None),
        Some((name, next)) => {
            invariants::assert_kept(&state, &next.record, name);
            (Some(next.record), Some(next.note))
        }
    };
    Decision {
        record,
        note,
        effects: effects::effects(&state),
        status: status::status(&state),
    }
}
