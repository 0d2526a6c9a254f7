//! All that a rollout remembers: one record per decision, in a log that only grows.

mod attempt;
mod encode;
mod rebuild;

use serde::{Deserialize, Serialize};

use crate::plan::Reserve;
use crate::routing::{Table, TableError};
use crate::{Stamp, VersionId};

pub use attempt::{Attempt, Ending, Hold, HoldReason, Kept, Override, Phase, Room};
pub use encode::{MAX_BYTES, RecordError, SCHEMA, decode, encode, name};
pub use rebuild::{ChildWitness, Witnesses, rebuild};

/// One entry of the log: the whole memory of a model's rollouts after a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Version of this format.
    pub schema: u32,
    /// Its place in the log.
    pub stamp: Stamp,
    /// Wall time of the decision, for deadlines and people only.
    pub at_ms: u64,
    /// The version that serves; none before the first one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<VersionId>,
    /// The version that served before it and is kept for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<VersionId>,
    /// What the rollback version keeps.
    #[serde(default)]
    pub reserve: Reserve,
    /// When stable became stable.
    pub promoted_at_ms: u64,
    /// Whether a person paused it.
    pub paused: bool,
    /// Requests that were carried out or refused, the newest last.
    pub handled_requests: Vec<String>,
    /// Versions that may not be tried again, the newest last.
    pub rejected: Vec<Rejected>,
    /// How attempts ended, the newest last.
    pub history: Vec<Ended>,
    /// The attempt that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// What gateways do; none before the first version serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<Table>,
    /// Whose runs are mirrored to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
}

/// A version that may not be tried again: this digest with this spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rejected {
    /// Which version.
    pub id: VersionId,
    /// With which spec.
    pub spec_hash: String,
    /// Why, in one word.
    pub reason: String,
    /// The attempt that ended so.
    pub attempt: String,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Proof>,
    /// When.
    pub at_ms: u64,
}

/// The numbers that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proof {
    /// The guardrail.
    pub guardrail: String,
    /// Bad and judged runs of the canary.
    pub canary: [u64; 2],
    /// Bad and judged runs of stable.
    pub stable: [u64; 2],
    /// Natural logarithm of the evidence, in thousandths.
    pub log_evidence_milli: i64,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ended {
    /// The attempt.
    pub attempt: String,
    /// Its target.
    pub version: u32,
    /// `Promoted`, or why not, in one word.
    pub outcome: String,
    /// When.
    pub at_ms: u64,
}

/// Whose runs are mirrored to whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mirror {
    /// The version that is asked in the shadow.
    pub target: VersionId,
    /// Share of stable's runs.
    pub percent: u32,
    /// Bound on mirrored tokens per second.
    pub max_tokens_per_second: u32,
}

impl Record {
    /// Handled requests that are remembered.
    pub const MAX_REQUESTS: usize = 16;
    /// Rejections that are remembered.
    pub const MAX_REJECTED: usize = 32;
    /// Ended attempts that are remembered.
    pub const MAX_HISTORY: usize = 10;
    /// Records that are kept, beside the last one that promoted: oldest are deleted first, the head never.
    pub const KEPT_IN_LOG: usize = 16;

    /// The memory of a model that has none: epoch 1, before its first record.
    pub fn empty() -> Self {
        Self {
            schema: SCHEMA,
            stamp: Stamp {
                epoch: 1,
                revision: 0,
            },
            at_ms: 0,
            stable: None,
            rollback_to: None,
            reserve: Reserve::default(),
            promoted_at_ms: 0,
            paused: false,
            handled_requests: Vec::new(),
            rejected: Vec::new(),
            history: Vec::new(),
            attempt: None,
            routing: None,
            mirror: None,
        }
    }

    /// The phase, `Idle` without an attempt.
    pub fn phase(&self) -> Phase {
        self.attempt.as_ref().map_or(Phase::Idle, |a| a.phase)
    }

    /// The rejection of a digest with a spec.
    pub fn rejection(&self, digest: &str, spec_hash: &str) -> Option<&Rejected> {
        let matches = |r: &&Rejected| r.id.digest == digest && r.spec_hash == spec_hash;
        self.rejected.iter().rev().find(matches)
    }

    /// The share of a digest in the newest table.
    pub fn weight(&self, digest: &str) -> u32 {
        self.routing
            .as_ref()
            .map_or(0, |table| table.weight(digest))
    }

    /// Where all new runs go on a breach: stable during an attempt, the version before otherwise.
    pub fn refuge(&self) -> Option<&VersionId> {
        match &self.attempt {
            Some(attempt) if attempt.phase == Phase::Reverting => Some(&attempt.target),
            Some(_) => self.stable.as_ref(),
            None => self.rollback_to.as_ref(),
        }
    }

    /// The number of the next attempt at a version: above every one that is remembered.
    pub fn next_attempt(&self, version: u32) -> u32 {
        let prefix = format!("v{version}-");
        let running = self.attempt.iter().map(|a| a.id.as_str());
        let ended = self.history.iter().map(|e| e.attempt.as_str());
        let rejected = self.rejected.iter().map(|r| r.attempt.as_str());
        let number = |id: &str| id.strip_prefix(&prefix)?.parse::<u32>().ok();
        1 + running
            .chain(ended)
            .chain(rejected)
            .filter_map(number)
            .max()
            .unwrap_or(0)
    }

    /// What a later record starts from: the same, one revision on. Bounds are kept by forgetting the oldest.
    #[must_use]
    pub fn successor(&self, at_ms: u64) -> Self {
        let mut next = self.clone();
        next.stamp.revision += 1;
        // A clock that jumped back must not make a record older than the one before it.
        next.at_ms = at_ms.max(self.at_ms);
        next
    }

    /// Forgets the oldest beyond the bounds.
    pub fn bound(&mut self) {
        forget_oldest(&mut self.handled_requests, Self::MAX_REQUESTS);
        forget_oldest(&mut self.rejected, Self::MAX_REJECTED);
        forget_oldest(&mut self.history, Self::MAX_HISTORY);
    }

    /// Checks what every record must keep.
    ///
    /// # Errors
    /// What it breaks.
    pub fn check(&self) -> Result<(), Broken> {
        if let Some(table) = &self.routing {
            table.check().map_err(Broken::Routing)?;
            if self.stable.is_none() {
                return Err(Broken::Unstable);
            }
        }
        if self.rollback_to.is_some() && self.rollback_to == self.stable {
            return Err(Broken::Rollback);
        }
        let Some(attempt) = &self.attempt else {
            return Ok(());
        };
        let step_fits = match attempt.phase {
            Phase::Step => (1..=attempt.plan.step_count()).contains(&attempt.step),
            _ => attempt.step == 0,
        };
        if !step_fits || attempt.phase == Phase::Idle {
            return Err(Broken::Step(attempt.step));
        }
        let target_weight = self.weight(&attempt.target.digest);
        if attempt.phase == Phase::RollingBack && target_weight > 0 {
            return Err(Broken::StillRouted(target_weight));
        }
        Ok(())
    }
}

fn forget_oldest<T>(list: &mut Vec<T>, bound: usize) {
    let surplus = list.len().saturating_sub(bound);
    list.drain(..surplus);
}

/// What a record breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Its table.
    #[error("its routing table is broken")]
    Routing(#[source] TableError),
    /// It routes without a stable version.
    #[error("it routes runs but names no stable version")]
    Unstable,
    /// It would roll back to the version that serves.
    #[error("its rollback version is the stable one: there would be nothing to return to")]
    Rollback,
    /// A step outside the plan.
    #[error("step {0} does not fit its phase and plan")]
    Step(u32),
    /// A version that was rolled back still has a share.
    #[error("the version being rolled back still has {0} percent of new runs")]
    StillRouted(u32),
}

#[cfg(test)]
mod tests;
