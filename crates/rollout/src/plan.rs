//! What an attempt is pinned to when it starts: steps, limits and policies, in integers.

use serde::{Deserialize, Serialize};

/// How traffic moves to a version. Shares are in parts per million, times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Mirrored runs before the first step, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowPlan>,
    /// Steps below 100 percent, in strictly rising weight, at most [`Plan::MAX_STEPS`].
    pub steps: Vec<StepPlan>,
    /// What the version must keep to.
    pub limits: Limits,
    /// Too few runs after a step's longest wait.
    pub on_no_data: Policy,
    /// Enough runs, no verdict.
    pub on_inconclusive: Policy,
    /// A guardrail was breached.
    pub on_breach: OnBreach,
    /// What replaces the stable version.
    pub promote: Promote,
    /// How long to observe at 100 percent.
    pub final_bake_ms: u64,
    /// What the version before keeps.
    pub reserve: Reserve,
    /// Whether runs may wait while the only replica is exchanged.
    pub downtime: bool,
    /// How long preparing may take before it counts as stalled.
    pub progress_deadline_ms: u64,
}

impl Plan {
    /// More steps would not fit into a record.
    pub const MAX_STEPS: usize = 10;

    /// The plan of step `step`, from 1.
    pub fn step(&self, step: u32) -> Option<&StepPlan> {
        let index = usize::try_from(step.checked_sub(1)?).ok()?;
        self.steps.get(index)
    }

    /// How many steps there are.
    pub fn step_count(&self) -> u32 {
        u32::try_from(self.steps.len()).expect("a plan has at most ten steps")
    }

    /// Whether the version must find stable's words as probable as stable does.
    pub fn is_scored(&self) -> bool {
        let limit = self.shadow.as_ref().and_then(|of| of.score_milli_nats);
        limit.is_some()
    }

    /// What is wrong with the plan, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        let rising = self
            .steps
            .windows(2)
            .all(|pair| pair[0].weight_percent < pair[1].weight_percent);
        let in_range = |step: &StepPlan| (1..=99).contains(&step.weight_percent);
        if self.steps.len() > Self::MAX_STEPS {
            Some("a plan has at most ten steps")
        } else if !rising || !self.steps.iter().all(in_range) {
            Some("weights must rise strictly, from 1 to 99 percent")
        } else if self.limits.error_rate_ppm == 0 || self.limits.error_rate_ppm > 500_000 {
            Some("the error limit must be above 0 and at most 50 percent")
        } else if !probability(self.limits.false_alarm_ppm)
            || !probability(self.limits.promote_risk_ppm)
        {
            Some("probabilities of error must be above 0 and at most 50 percent")
        } else {
            None
        }
    }
}

fn probability(ppm: u32) -> bool {
    (1..=500_000).contains(&ppm)
}

/// Mirrored runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShadowPlan {
    /// Share of the stable version's runs that are mirrored.
    pub percent: u32,
    /// Pairs needed.
    pub min_requests: u32,
    /// What the candidate computes.
    pub mode: ShadowMode,
    /// Bound on mirrored tokens per second.
    pub max_tokens_per_second: u32,
    /// Least share of greedy answers that agree, if judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement_ppm: Option<u32>,
    /// Largest mean difference of scores in milli-nats, if the manifest says that the version behaves as another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_milli_nats: Option<u32>,
}

/// What the candidate computes for a mirrored run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShadowMode {
    /// It scores the stable answer's tokens.
    Score,
    /// It also answers itself.
    Generate,
}

/// One canary step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepPlan {
    /// Share of new runs, 1 to 99.
    pub weight_percent: u32,
    /// How long to observe at least.
    pub bake_ms: u64,
    /// How long to wait for enough runs.
    pub max_wait_ms: u64,
}

/// What a version must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Largest share of failed runs.
    pub error_rate_ppm: u32,
    /// Time to the first token that 95 percent of the runs must keep, if judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_p95_ms: Option<u32>,
    /// Time between tokens that 95 percent of the runs must keep, if judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inter_token_p95_ms: Option<u32>,
    /// Canary runs needed in each step.
    pub min_requests: u32,
    /// Bound on rolling back an identical version.
    pub false_alarm_ppm: u32,
    /// Bound on promoting a version that is worse by the limit.
    pub promote_risk_ppm: u32,
}

/// What to do when the data cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Wait for a person or for more runs.
    Hold,
    /// Return to the stable version.
    Rollback,
    /// One step forward.
    Promote,
}

/// What to do on a breach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnBreach {
    /// Return to the stable version and reject this one.
    Rollback,
    /// Freeze where it is.
    Hold,
}

/// What replaces the stable version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promote {
    /// Only proof of being no worse.
    Fine,
    /// The absence of proof of being worse.
    NoBreach,
}

/// What the version before keeps for a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reserve {
    /// All its replicas for an hour, then one.
    #[default]
    FullThenOne,
    /// All its replicas, always.
    Full,
    /// One replica.
    One,
}
