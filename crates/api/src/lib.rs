//! The three Kubernetes kinds and the vocabulary they share.
//!
//! It must not know a client, a runtime, a file or a clock: it says what an object may contain and what it means, not where it comes
//! from. Read [`ModelVersion`], [`GpuPool`] and [`TenantQuota`] first, then [`parse`] (a manifest as a person wrote it becomes a kind,
//! unknown fields refused) and [`Validate`] (a kind becomes a type whose fields are proven and whose silent fields have values).

// Doc comments of fields become descriptions in the schemas, where backticks around names of kinds and conditions only disturb.
#![allow(
    clippy::doc_markdown,
    reason = "doc comments are shown by kubectl explain"
)]

mod check;
mod condition;
mod crd;
#[allow(
    unreachable_pub,
    reason = "the schema derive copies the public structs into functions"
)]
pub mod gpu_pool;
mod labels;
#[allow(
    unreachable_pub,
    clippy::struct_field_names,
    reason = "the schema derive copies the public structs into functions; names are the contract's"
)]
pub mod model_version;
mod problem;
mod references;
#[cfg(test)]
mod samples;
#[allow(
    unreachable_pub,
    reason = "the schema derive copies the public structs into functions"
)]
pub mod tenant_quota;
mod text;
mod valid;

pub use check::{Kind, check, check_update, parse};
pub use condition::{CONDITION_READY, CONDITION_RECONCILING, CONDITION_STALLED, Condition, find};
pub use crd::{CustomResourceDefinition, crd_of, crds};
pub use gpu_pool::{GpuPool, GpuPoolSpec, GpuPoolStatus};
pub use labels::{
    ANNOTATION_DIGEST, ANNOTATION_MODEL, ANNOTATION_RECORD, ANNOTATION_REPLICAS,
    ANNOTATION_REQUEST, ANNOTATION_ROLE, LABEL_COMPONENT, LABEL_MANAGED_BY, LABEL_MODEL,
    LABEL_POOL, LABEL_SHARING, LABEL_TENANT, LABEL_VERSION, MANAGER,
};
pub use model_version::{ModelVersion, ModelVersionSpec, ModelVersionStatus};
pub use problem::{FieldProblem, did_you_mean};
pub use references::{Known, ReferenceProblem, dangling_references};
pub use tenant_quota::{TenantQuota, TenantQuotaSpec, TenantQuotaStatus};
pub use text::{DurationText, Percent, QuantityText, TextError};
pub use valid::{
    Accelerator, AutoscaleTargets, EngineLimits, FetchLimits, Guardrails, ManifestFile,
    PromptClass, QueueBound, QueueBounds, RateLimits, RolloutPlan, RolloutStep, RunLimits,
    ShadowPlan, SignatureSource, TenantKey, TenantKeyLimits, TenantModel, TokenPrice, ValidGpuPool,
    ValidManifest, ValidModelVersion, ValidTenantQuota, Validate, Window,
};

/// The API group of all kinds.
pub const GROUP: &str = "weir.dev";
/// The version of all kinds.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` as manifests write it.
pub const API_VERSION: &str = "weir.dev/v1alpha1";
/// The category that lists all kinds: `kubectl get weir`.
pub const CATEGORY: &str = "weir";
