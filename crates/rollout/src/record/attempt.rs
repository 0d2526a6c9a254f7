//! The attempt that runs.

use serde::{Deserialize, Serialize};

use crate::evidence::Stratum;
use crate::{Plan, VersionId};

/// One try to bring a version into service, or to return to the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attempt {
    /// Its name, such as `v3-2`: the second attempt at version 3.
    pub id: String,
    /// The version it is about.
    pub target: VersionId,
    /// The spec it was started with.
    pub spec_hash: String,
    /// Pinned: an edit applies to the next attempt.
    pub plan: Plan,
    /// Where it is.
    pub phase: Phase,
    /// The step it is at, from 1; 0 outside the steps.
    pub step: u32,
    /// When it entered phase and step.
    pub entered_at_ms: u64,
    /// The room it was granted; none before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// What stable kept before the attempt.
    pub kept: Kept,
    /// Evidence of tables that are no longer in force.
    pub done: Vec<Stratum>,
    /// Whether the step's weight was lowered for want of replicas: it does not rise again within the step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lowered: bool,
    /// Why it stands still until a person acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Steps that went on without proof, and by whose will.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// Why it is being ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// Where an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// There is none.
    Idle,
    /// Verification, capacity, start.
    Preparing,
    /// Mirrored runs.
    Shadow,
    /// A canary step.
    Step,
    /// All new runs.
    Final,
    /// Back to stable, and away with the target.
    RollingBack,
    /// Stable itself is left for the version before.
    Reverting,
}

/// How the replicas of two versions fit into the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Room {
    /// Both fit: stable keeps all its replicas until the target is promoted.
    Beside,
    /// Some fit beside: replicas are exchanged, and both together never fall below what the load needs.
    Surge,
    /// None fits beside: one replica less carries the load meanwhile.
    Reduced,
    /// There is one replica, and runs wait while it is exchanged.
    Downtime,
}

/// What stable kept before the attempt: a limit it broke anyway says nothing about the canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kept {
    /// The error rate.
    pub errors: bool,
    /// The time to the first token.
    pub ttft: bool,
    /// The time between tokens.
    pub inter_token: bool,
}

/// Why an attempt stands still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hold {
    /// Why.
    pub reason: HoldReason,
    /// Since when.
    pub at_ms: u64,
}

/// Why an attempt stands still until a person acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldReason {
    /// Shadow answers differ, and nothing says whether they are worse.
    ShadowDiffers,
    /// The measured share is not the weight.
    RoutingSkew,
    /// Stable breaks a limit it kept before the attempt.
    Interference,
    /// No canary replica was ready for too long.
    CanaryUnavailable,
    /// A guardrail was breached and the plan says to freeze.
    GuardrailBreached,
}

impl HoldReason {
    /// The condition reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ShadowDiffers => "ShadowDiffers",
            Self::RoutingSkew => "RoutingSkew",
            Self::Interference => "Interference",
            Self::CanaryUnavailable => "CanaryUnavailable",
            Self::GuardrailBreached => "GuardrailBreached",
        }
    }
}

/// A step that went on without proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// The step, 0 for the shadow.
    pub step: u32,
    /// The request's id, or the field of the plan that allowed it.
    pub by: String,
}

/// Why an attempt is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ending {
    /// Why, in one word.
    pub reason: String,
    /// Since when.
    pub at_ms: u64,
}

impl Attempt {
    /// Strata that are remembered: those of one step and weight are summed, so more cannot be needed.
    pub const MAX_DONE: usize = 12;

    /// Remembers the evidence of a table that leaves force. Strata of one step and weight have the same stakes, so their
    /// counts add up; an eleventh different one of a kind pushes out the oldest, which costs power and no validity.
    pub fn freeze(&mut self, stratum: Stratum) {
        if stratum.is_empty() {
            return;
        }
        let same = |s: &&mut Stratum| s.step == stratum.step && s.weight == stratum.weight;
        if let Some(known) = self.done.iter_mut().find(same) {
            known.add(&stratum);
            return;
        }
        if self.done.len() == Self::MAX_DONE {
            self.done.remove(0);
        }
        self.done.push(stratum);
    }
}
