//! What the operator reports about a tenant. The ledger is in the store; these numbers are coarse and at most one write in ten seconds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, conditions_schema};

/// What the operator reports about a tenant.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuotaStatus {
    /// The metadata.generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// API keys in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_keys: Option<i32>,

    /// The present budget windows, in the order of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["period"]))]
    pub windows: Option<Vec<WindowStatus>>,

    /// Runs that are not terminal, coarse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_runs: Option<i32>,

    /// When the numbers were read from the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,

    /// Observations: Admitted, KeysResolved, ModelsResolved, Ready, and Reconciling and Stalled while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// One budget window; limit = available + reserved + used.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WindowStatus {
    /// Its length, as in the spec.
    #[schemars(length(max = 32))]
    pub period: String,
    /// When it began.
    pub start: Time,
    /// When it ends.
    pub end: Time,
    /// Tokens of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_tokens: Option<i64>,
    /// Tokens used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_tokens: Option<i64>,
    /// Tokens reserved by live runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_tokens: Option<i64>,
    /// Tokens left; negative while a lowered limit is worked off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_tokens: Option<i64>,
    /// Cost limit in micro-units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_micros: Option<i64>,
    /// Cost used in micro-units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_micros: Option<i64>,
    /// Cost reserved in micro-units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_micros: Option<i64>,
    /// Cost left in micro-units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_micros: Option<i64>,
}
