//! What the operator reports about a pool. Numbers that move are coarse and at most one write in ten seconds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, conditions_schema};

/// What the operator reports about a pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuPoolStatus {
    /// The metadata.generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Workers that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Workers that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Label selector of the workers, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,

    /// KV memory in use, coarse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_occupancy: Option<KvOccupancy>,

    /// Runs waiting for a worker, coarse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<i32>,

    /// Share of prompt tokens whose KV was reused, since the workers started, in steps of 5 percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_hit_percent: Option<i32>,

    /// The versions of each model that the pool serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["model"]))]
    pub models: Option<Vec<PoolModel>>,

    /// The engine limits in force, silent fields of the spec included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_engine: Option<EffectiveEngine>,

    /// Observations: Admitted, CapacityAvailable, OrphanedVersion, Ready, and Reconciling and Stalled while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// KV memory in use over all workers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KvOccupancy {
    /// Share of blocks in use, in steps of 5 percent.
    pub percent: i32,
    /// Tokens held by sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_held: Option<i64>,
    /// Tokens that fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_total: Option<i64>,
    /// When it was observed.
    pub observed_at: Time,
}

/// The versions of one model that a pool serves.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolModel {
    /// The model.
    #[schemars(length(max = 96))]
    pub model: String,
    /// The version that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<i32>,
    /// The version under observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<i32>,
    /// Share of new runs that the canary gets, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_weight_percent: Option<i32>,
    /// The version kept for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<i32>,
}

/// Engine limits in force.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveEngine {
    /// Tokens computed in one engine step.
    pub max_batch_tokens: i32,
    /// Sequences that run at once.
    pub max_running: i32,
    /// KV memory per worker in bytes; absent where each takes what its device has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bytes: Option<i64>,
    /// Tokens in a KV block.
    pub block_tokens: i32,
    /// Number format of the KV cache.
    #[schemars(length(max = 8))]
    pub kv_dtype: String,
}
