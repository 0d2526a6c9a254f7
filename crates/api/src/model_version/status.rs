//! What the operator reports about a version: a projection of the rollout record and of what is observed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, conditions_schema};

/// What the operator reports about a version.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ModelVersionStatus {
    /// The metadata.generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Where the version is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StatusStage>,

    /// Share of new runs, in percent: the newest weight that every live gateway has acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_percent: Option<i32>,

    /// The canary step it is in, from 1; absent outside the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i32>,

    /// How many canary steps the running attempt's plan has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<i32>,

    /// Name of the running attempt, such as `v3-2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub attempt: Option<String>,

    /// Digest of the signed manifest, `sha256:` and 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    pub manifest_digest: Option<String>,

    /// The key of the trust policy that signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub signer: Option<String>,

    /// The version that takes over on a breach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<ReservedVersion>,

    /// Why this version may not be tried again without a change or a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<RejectedVersion>,

    /// What the guardrails say, one entry each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["guardrail"]))]
    pub evidence: Option<Vec<Evidence>>,

    /// When, at the present rate, the step will have its minimum sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_sample_at: Option<Time>,

    /// Whether this version serves and no other one of its model could, so that deleting it would end the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sole_serving: Option<bool>,

    /// Replicas that should have it loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Replicas that have it loaded and are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Observations: Verified, Admitted, Progressing, RolledBack, RollbackReady, Ready, and Reconciling and Stalled while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// Where a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StatusStage {
    /// Known; no traffic.
    Registered,
    /// Mirrored runs only.
    Shadow,
    /// In its canary steps, or moving to 100 percent.
    Canary,
    /// The stable version.
    Production,
    /// Returned to the version before.
    RolledBack,
    /// It left service.
    Retired,
}

/// A version that is kept for a rollback.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReservedVersion {
    /// Its number.
    pub version: i32,
    /// Its manifest's digest.
    #[schemars(length(max = 71))]
    pub digest: String,
    /// Replicas that are ready to take over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// What it keeps: Full or One.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub reserve: Option<String>,
}

/// Why a version may not be tried again.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RejectedVersion {
    /// Why, in one PascalCase word.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The attempt that ended so.
    #[schemars(length(max = 64))]
    pub attempt: String,
    /// When it was rejected.
    pub at: Time,
    /// The guardrail that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub guardrail: Option<String>,
    /// Bad and settled runs of this version, such as `17/420`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 48))]
    pub canary: Option<String>,
    /// Bad and settled runs of the stable version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 48))]
    pub stable: Option<String>,
    /// Natural logarithm of the evidence against it, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_evidence_milli: Option<i64>,
}

/// What one guardrail says.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// Which guardrail.
    #[schemars(length(max = 32))]
    pub guardrail: String,
    /// Worse, Fine or Unknown.
    pub verdict: Verdict,
    /// Bad and settled runs of this version, such as `17/420`.
    #[schemars(length(max = 48))]
    pub canary: String,
    /// Bad and settled runs of the stable version.
    #[schemars(length(max = 48))]
    pub stable: String,
    /// Natural logarithm of the evidence against it, in thousandths.
    pub log_evidence_milli: i64,
}

/// What the evidence of a guardrail amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// Proven worse than the stable version.
    Worse,
    /// Proven no worse than the limit.
    Fine,
    /// Neither.
    Unknown,
}
