//! What a pool's number of workers follows.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::text::DurationText;

/// What autoscaling aims at.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// KV memory in use, in percent; 80 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub target_kv_occupancy_percent: Option<i32>,
    /// Time in the queue, in milliseconds; 200 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub target_queue_ms: Option<i32>,
    /// Tokens that one worker computes in a second, prompts (without what is cached) and outputs; does not matter where absent. It must be
    /// less than a worker can do, or it is never exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub target_tokens_per_second: Option<i32>,
    /// How long demand must be low before workers are removed; 300s where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down_stabilization: Option<DurationText>,
}
