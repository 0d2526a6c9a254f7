//! What the caller has seen.

use std::collections::BTreeMap;

use crate::evidence::Ledger;
use crate::routing::TableOrder;
use crate::statistics::ShadowCounts;
use crate::{Plan, Stamp, VersionId};

/// A version object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSpec {
    /// Number and manifest digest.
    pub id: VersionId,
    /// Hash over manifest digest, stage, pool and rollout: the fields a person set.
    pub spec_hash: String,
    /// How far it may go.
    pub stage: Stage,
    /// Whether its signature is valid.
    pub verification: Verification,
    /// How traffic moves to it.
    pub plan: Plan,
}

/// How far a version may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// On its way out.
    Retired,
    /// Verified; no traffic.
    Registered,
    /// Mirrored runs.
    Shadow,
    /// Its canary steps.
    Canary,
    /// May become stable.
    Production,
}

/// Whether a signature is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Not known yet.
    Pending,
    /// Valid, by a signer that is trusted.
    Verified,
    /// Not, or no longer, and why, in one word.
    Refused(String),
}

/// What is observed of one model.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Replicas the pool wants for the model.
    pub wanted: u32,
    /// Replicas of the model the pool can run in all, those that exist included.
    pub capacity: u32,
    /// How full the stable version's replicas are, in percent.
    pub occupancy_percent: u32,
    /// The pool's exchange lease.
    pub lease: Lease,
    /// Children by label, one per version.
    pub replicas: Vec<ReplicaView>,
    /// Live gateways; one that does not answer stays live.
    pub gateways: Vec<GatewayView>,
    /// What gateways counted.
    pub evidence: Ledger,
    /// What they counted of mirrored runs of the present attempt.
    pub shadow: ShadowCounts,
    /// What people ask for, oldest first.
    pub requests: Vec<Request>,
    /// Objects that are gone, proven by a live read.
    pub withdrawn: Vec<Withdrawn>,
    /// Secret of the caller, from which coin salts are made.
    pub entropy: [u8; 32],
}

/// Who exchanges replicas in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Nobody.
    Free,
    /// This attempt.
    Mine,
    /// Another model's attempt.
    Other(String),
}

/// A version's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Which version.
    pub id: VersionId,
    /// How many there should be.
    pub desired: u32,
    /// How many there are, those that end included.
    pub existing: u32,
    /// How many are ready.
    pub ready: u32,
    /// The record that last ordered its size.
    pub stamp: Stamp,
    /// Runs they compute.
    pub live_runs: u64,
    /// Whether those runs had their time to end.
    pub is_drain_over: bool,
    /// Exits of workers in the present step that no drained node explains.
    pub exits: u32,
    /// The fewest exits of any replica before it was ready once.
    pub start_failures: u32,
    /// For how long fewer are ready than the present table needs.
    pub short_ms: u64,
    /// For how long none has been ready.
    pub none_ready_ms: u64,
}

/// A gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayView {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub is_reachable: bool,
    /// Its table, as it last said.
    pub seen: Seen,
    /// Workers it has a session with, by digest, as it last said.
    pub known: BTreeMap<String, u32>,
}

/// A gateway's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It has not been heard: it may run any table.
    Unknown,
    /// It has none and is not ready.
    Nothing,
    /// It has persisted and applied one.
    Applied {
        /// Which.
        order: TableOrder,
        /// For how long, by its own clock.
        age_ms: u64,
    },
}

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Unique: a request is handled once.
    pub id: String,
    /// What.
    pub action: Action,
    /// The version it is about.
    pub version: u32,
    /// The attempt it is about; a request for one that has passed is refused.
    pub attempt: Option<String>,
    /// The step it is about.
    pub step: Option<u32>,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One step forward without waiting for proof.
    Promote,
    /// To 100 percent.
    PromoteFull,
    /// End the attempt and reject the version.
    Abort,
    /// Try a rejected or held version again, with fresh evidence.
    Retry,
    /// Reject stable and return to the version before.
    Undo,
    /// Let weights not rise.
    Pause,
    /// End the pause.
    Resume,
}

/// An object that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// Which version.
    pub id: VersionId,
    /// For how long.
    pub absent_ms: u64,
}
