//! How traffic moves to a version.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Permission;
use crate::text::{DurationText, Percent};

/// How traffic moves to a version, and what stops it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Mirrored runs before the first step; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,

    /// Canary steps in strictly rising weight; 100 percent follows the last. 5, 25 and 50 percent for a minute each where absent; an empty list goes
    /// to 100 at once. Ten at most: a rollout's record holds them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[x_kube(
        validation = Rule::new("self.map(s, s.weightPercent).isSorted() && self.all(s, self.exists_one(t, t.weightPercent == s.weightPercent))").message("weightPercent must rise strictly from step to step")
    )]
    pub steps: Option<Vec<Step>>,

    /// What a version must keep to; only errors (at most 1 percent) where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guardrails: Option<Guardrails>,

    /// What to do when a step has too few runs after `maxWait`: Hold (where absent), Rollback, or Promote (one step forward).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_no_data: Option<Policy>,

    /// What to do when a step has enough runs after `maxWait` but proves neither worse nor fine: Hold (where absent), Rollback, or Promote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_inconclusive: Option<Policy>,

    /// What to do when a guardrail is breached: Rollback (where absent) or Hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_breach: Option<OnBreach>,

    /// What replaces the stable version: Fine (proof of being no worse, where absent) or NoBreach (no proof of being worse).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<Promote>,

    /// How long to observe at 100 percent before the old version gives up capacity; the last step's bake where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_bake: Option<DurationText>,

    /// What the version before keeps for a rollback: FullThenOne (all its replicas for an hour, then one; where absent), Full or One.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_reserve: Option<RollbackReserve>,

    /// Whether the only replica of a full pool may be exchanged with runs waiting meanwhile: Denied (where absent) or Allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime: Option<Permission>,

    /// How long starting may take before the rollout is reported as stalled, or, where the serving version gave up a replica for it, taken back; 10m where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline: Option<DurationText>,
}

/// Mirrored runs, whose answers nobody sees.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Shadow {
    /// Share of the stable version's runs that are mirrored, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub percent: i32,

    /// Mirrored runs needed before the first step; 50 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_requests: Option<i32>,

    /// Score (where absent) or Generate, which agreementPercent needs. Both compare answers; stable's words are scored where the manifest claims sameBehaviourAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ShadowMode>,

    /// Bound on mirrored tokens per second; a mirror over it is dropped. 2000 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_tokens_per_second: Option<i32>,

    /// Least share of greedy answers whose first 32 tokens are equal, in percent; below it the rollout is held. Needs mode Generate, which it implies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement_percent: Option<Percent>,
}

/// One canary step.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Share of new runs, in whole percent; 100 is not a step, it follows the last one.
    #[schemars(range(min = 1, max = 99))]
    pub weight_percent: i32,

    /// How long to observe at this weight at least; 60s where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bake: Option<DurationText>,

    /// How long to wait for enough runs; the longer of 20 times `bake` and 30m where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<DurationText>,
}

/// What a version must keep to. An absent limit is not judged.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Guardrails {
    /// Largest share of failed runs, in percent; a decimal as text, such as "0.1". 1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_rate_percent: Option<Percent>,

    /// Time to the first token that 95 percent of the runs keep to, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub ttft_p95_ms: Option<i32>,

    /// Time between tokens that 95 percent of the gaps keep to, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600_000))]
    pub inter_token_p95_ms: Option<i32>,

    /// Runs of the canary needed in each step before it may advance; a breach needs none. 50 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_requests: Option<i32>,

    /// Bound on the probability that an identical version is rolled back in an attempt, in percent; 1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub false_alarm_percent: Option<Percent>,

    /// Bound on the probability that a version worse by the limit is promoted, in percent; 5 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote_risk_percent: Option<Percent>,
}

/// What to do when the evidence does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Policy {
    /// Wait for a person or for more runs.
    Hold,
    /// Return to the stable version.
    Rollback,
    /// One step forward.
    Promote,
}

/// What to do on a breach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnBreach {
    /// Return to the stable version and reject this one.
    Rollback,
    /// Freeze where it is.
    Hold,
}

/// What replaces the stable version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Promote {
    /// Only proof of being no worse.
    Fine,
    /// The absence of proof of being worse.
    NoBreach,
}

/// What the version before keeps for a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RollbackReserve {
    /// All its replicas for an hour, then one.
    FullThenOne,
    /// All its replicas, always.
    Full,
    /// One replica.
    One,
}

/// What the candidate computes for a mirrored run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ShadowMode {
    /// It scores the stable answer's tokens.
    Score,
    /// It also answers itself.
    Generate,
}
