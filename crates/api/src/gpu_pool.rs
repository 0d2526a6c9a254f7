//! `GpuPool`: workers of one kind, and what their engines may use.

mod fetch;
mod scaling;
mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model_version::LABEL_NAME;
use crate::text::{DurationText, QuantityText};
pub use fetch::Fetch;
pub use scaling::Scaling;
pub use status::{EffectiveEngine, GpuPoolStatus, KvOccupancy, PoolModel};

/// Workers of one kind, and what their engines may use.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "weir.dev",
    version = "v1alpha1",
    kind = "GpuPool",
    plural = "gpupools",
    shortname = "gp",
    category = "weir",
    namespaced,
    status = "GpuPoolStatus",
    derive = "PartialEq",
    doc = "Workers of one kind, and what their engines may use.",
    scale(
        spec_replicas_path = ".spec.replicas.min",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must have at most 40 lower-case letters, digits and '-': it becomes part of the names of its workers"),
    validation = Rule::new("!has(self.spec.engine) || (has(self.spec.engine.maxRunning) ? self.spec.engine.maxRunning : (self.spec.accelerator.type == 'cpu' ? 64 : 256)) <= (has(self.spec.engine.maxBatchTokens) ? self.spec.engine.maxBatchTokens : (self.spec.accelerator.type == 'cpu' ? 2048 : 8192))").message("maxRunning (64 where absent, 256 on a GPU) must not be greater than maxBatchTokens (2048 where absent, 8192 on a GPU): every running sequence needs a token in each engine step").field_path(".spec.engine.maxRunning"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "Whether the pool has the replicas it needs."),
    printcolumn(name = "Accelerator", type_ = "string", json_path = ".spec.accelerator.type", description = "What the workers compute on."),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas", description = "Workers that exist."),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.readyReplicas", description = "Workers that are ready."),
    printcolumn(name = "Min", type_ = "integer", json_path = ".spec.replicas.min", description = "Fewest workers."),
    printcolumn(name = "Max", type_ = "integer", json_path = ".spec.replicas.max", description = "Most workers."),
    printcolumn(name = "KV%", type_ = "integer", json_path = ".status.kvOccupancy.percent", description = "Share of KV memory in use, coarse."),
    printcolumn(name = "Hit%", type_ = "integer", json_path = ".status.prefixHitPercent", description = "Share of prompt tokens whose KV was reused, coarse.", priority = 1),
    printcolumn(name = "Queue", type_ = "integer", json_path = ".status.queueDepth", description = "Runs waiting for a worker, coarse."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is or is not ready."),
    printcolumn(name = "Sharing", type_ = "string", json_path = ".spec.sharing", description = "Whether a worker holds one version or several.", priority = 1),
    printcolumn(name = "Models", type_ = "string", json_path = ".status.models[*].model", description = "The models it serves.", priority = 1),
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.region", description = "Where it is.", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", description = "The reason in words.", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Since when the object exists.")
)]
#[serde(rename_all = "camelCase")]
pub struct GpuPoolSpec {
    /// What the workers compute on.
    pub accelerator: Accelerator,

    /// How many workers per served model; equal numbers mean a fixed count.
    pub replicas: Replicas,

    /// What autoscaling aims at, between the bounds of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,

    /// Dedicated (a worker holds one version, where absent) or Shared (a worker of the CPU holds several).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,

    /// Most versions that a worker of a shared pool holds, of all models together; each has an equal part of `engine.kvMemory`. A model needs two: the
    /// version that serves, and the one on trial or the one before. 4 where absent. Not used by `weir up`, which counts them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_versions: Option<i32>,

    /// What each worker's engine may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,

    /// How many runs may wait, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,

    /// Classes of prompts by size, in strictly rising order; the last may be without bound, else the pool takes no longer prompts. Each class queues on
    /// its own, so that long prompts do not delay short ones. One class where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = Rule::new("self.map(c, has(c.maxPromptTokens) ? c.maxPromptTokens : 2147483647).isSorted() && self.all(c, self.exists_one(d, (has(d.maxPromptTokens) ? d.maxPromptTokens : 2147483647) == (has(c.maxPromptTokens) ? c.maxPromptTokens : 2147483647)))").message("maxPromptTokens must rise strictly from class to class, and only the last class may leave it out")
    )]
    pub prompt_classes: Option<Vec<PromptClass>>,

    /// How workers fetch artifacts that are elsewhere. Not used by `weir up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<Fetch>,

    /// Where the pool is; a label for people, routing and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_NAME))]
    pub region: Option<String>,

    /// Fields of a Kubernetes PodTemplateSpec that are merged over the operator's; containers are matched by name (`worker`). Not used by `weir up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub pod_template: Option<serde_json::Map<String, serde_json::Value>>,
}

fn open_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// What the workers compute on: the CPU, a resource of the node, or a claim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.type == 'gpu') == has(self.resourceName)").message("resourceName belongs to type gpu and is required there, such as nvidia.com/gpu").field_path(".resourceName"),
    validation = Rule::new("self.type == 'gpu' || !has(self.count)").message("count belongs to type gpu").field_path(".count"),
    validation = Rule::new("(self.type == 'claim') == has(self.claimTemplate)").message("claimTemplate belongs to type claim and is required there").field_path(".claimTemplate")
)]
pub struct Accelerator {
    /// `cpu`, `gpu` (an extended resource of the node) or `claim` (a ResourceClaimTemplate).
    #[serde(rename = "type")]
    pub type_: AcceleratorType,

    /// The extended resource, such as `nvidia.com/gpu`; only with `gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 317),
        regex(
            pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
        )
    )]
    pub resource_name: Option<String>,

    /// How many of the resource a worker gets; only with `gpu`. 1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub count: Option<i32>,

    /// The ResourceClaimTemplate in the same namespace; only with `claim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub claim_template: Option<String>,

    /// Labels a node must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "node_selector")]
    pub node_selector: Option<BTreeMap<String, String>>,
}

fn node_selector(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63}
    })
}

/// Kinds of accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorType {
    /// The node's processor.
    Cpu,
    /// An extended resource of the node.
    Gpu,
    /// A ResourceClaimTemplate.
    Claim,
}

/// Bounds of the number of workers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.min <= self.max").message("min must not be greater than max"))]
pub struct Replicas {
    /// Fewest workers; 0 switches the pool off while nothing asks for it.
    #[schemars(range(min = 0, max = 10_000))]
    pub min: i32,
    /// Most workers.
    #[schemars(range(min = 1, max = 10_000))]
    pub max: i32,
    /// Workers of a model that may run beside those it needs while a version replaces another one; as many again where absent. 0 where the
    /// pool has no room to spare: then replicas are exchanged one at a time, one model after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_surge: Option<i32>,
}

/// Whether a worker holds one version or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Sharing {
    /// One version per worker.
    Dedicated,
    /// Several versions per worker.
    Shared,
}

/// What each worker's engine may use.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// Tokens computed in one engine step, prompt and output together; 2048 where absent, 8192 on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 1_048_576))]
    pub max_batch_tokens: Option<i32>,
    /// Sequences that run at once; 64 where absent, 256 on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_running: Option<i32>,
    /// KV memory per worker, such as `1Gi`; 1Gi where absent, on a GPU nine tenths of what weights and steps leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_memory: Option<QuantityText>,
    /// Tokens in a KV block: 8, 16, 32, 64 or 128; 16 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 128))]
    #[x_kube(validation = Rule::new("self in [8, 16, 32, 64, 128]").message("blockTokens must be 8, 16, 32, 64 or 128"))]
    pub block_tokens: Option<i32>,
    /// Number format of the KV cache: bf16 (where absent), f16, f32 or int8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<KvDtype>,
    /// What becomes of the weights when a worker loads them: stored (where absent) leaves them as the artifact has them, int8 and int4
    /// quantize them in groups of 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightFormat>,
    /// Tokens guessed ahead per sequence and step; 7 where absent, 0 is none. The output is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 15))]
    pub draft_tokens: Option<i32>,
}

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// Brain float, 16 bits.
    Bf16,
    /// IEEE half, 16 bits.
    F16,
    /// IEEE single, 32 bits.
    F32,
    /// Integers of 8 bits, with a scale for each position and head.
    Int8,
}

impl KvDtype {
    /// The word used in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }
}

/// What becomes of the weights when a worker loads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// They stay as the artifact has them.
    Stored,
    /// 8 bits, with a scale for each group of 64.
    Int8,
    /// 4 bits, with a scale and a minimum for each group of 64.
    Int4,
}

impl WeightFormat {
    /// The word used in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

/// How many runs may wait, and for how long.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Runs that may wait, per priority; 256 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_depth: Option<i32>,
    /// Longest wait that is admitted; 10s where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<DurationText>,
    /// Other bounds for single priorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["priority"]))]
    pub priorities: Option<Vec<PriorityQueue>>,
}

/// Bounds of one priority's queue.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PriorityQueue {
    /// The priority: interactive, standard or batch.
    pub priority: Priority,
    /// Runs of this priority that may wait; `queue.maxDepth` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_depth: Option<i32>,
    /// Longest wait of this priority that is admitted; `queue.maxWait` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<DurationText>,
}

/// Priorities, the most urgent first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Somebody waits for each token.
    Interactive,
    /// Somebody waits for the end.
    Standard,
    /// Nobody waits.
    Batch,
}

impl Priority {
    /// All, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Standard, Self::Batch];

    /// The word used in manifests and requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }

    /// From the word used in manifests and requests.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.as_str() == word)
    }

    /// 0 interactive, 1 standard, 2 batch: the number on the wire and in tables with a row a priority.
    pub fn index(self) -> u8 {
        self as u8
    }
}

/// A class of prompts by size.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PromptClass {
    /// Its name, used in metrics.
    #[schemars(length(min = 1, max = 32), regex(pattern = LABEL_NAME))]
    pub name: String,
    /// Longest prompt of the class, in tokens; without bound where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<i32>,
}

/// Condition types of this kind beside `Ready`, `Reconciling` and `Stalled`.
pub mod conditions {
    /// The pool's fields can be used.
    pub const ADMITTED: &str = "Admitted";
    /// The workers have the room and devices they ask for.
    pub const CAPACITY_AVAILABLE: &str = "CapacityAvailable";
    /// A deleted version still serves from here, because nothing else serves its model.
    pub const ORPHANED_VERSION: &str = "OrphanedVersion";
}

/// Condition reasons of this kind.
pub mod reasons {
    /// `Ready`: all workers are ready.
    pub const REPLICAS_READY: &str = "ReplicasReady";
    /// `Ready`: some workers are not ready; the message says how many.
    pub const REPLICAS_UNAVAILABLE: &str = "ReplicasUnavailable";
    /// `Ready`: no model uses the pool.
    pub const IDLE: &str = "Idle";
    /// `Admitted`: everything fits.
    pub const ACCEPTED: &str = "Accepted";
    /// `Admitted`: a field cannot be used; the message names it.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// `CapacityAvailable`: everything asked for was given.
    pub const SCHEDULED: &str = "Scheduled";
    /// `CapacityAvailable`: more versions want a place in a shared pool's workers than `spec.maxVersions`; the message names those that wait.
    pub const NO_PLACE: &str = "NoPlace";
    /// `CapacityAvailable`: no node has the devices or the room.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// `CapacityAvailable`, `Ready`: the API server lets no pod come into being (quota, limits, pod security); the message has its words.
    pub const WORKERS_REFUSED: &str = "WorkersRefused";
}
