//! `TenantQuota`: who may use which models, and how much of them.

mod alerts;
mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::gpu_pool::Priority;
use crate::model_version::{LABEL_NAME, Permission};
use crate::text::DurationText;
pub use alerts::{Alerts, Webhook};
pub use status::{TenantQuotaStatus, WindowStatus};

/// Names of tenants and trust scopes.
const TENANT: &str = "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$";
/// A model's name.
const MODEL: &str = "^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$";
/// A model's name, or `*` for every model.
const MODEL_OR_ALL: &str = "^(\\*|[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?)$";

/// Who may use which models, and how much of them.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "weir.dev",
    version = "v1alpha1",
    kind = "TenantQuota",
    plural = "tenantquotas",
    shortname = "tq",
    category = "weir",
    namespaced,
    status = "TenantQuotaStatus",
    derive = "PartialEq",
    doc = "Who may use which models, and how much of them: keys, budgets, rates, caps, priority, permitted models.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must have at most 63 characters: it becomes a label"),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant", description = "The tenant."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "Whether the tenant's keys and limits are in force."),
    printcolumn(name = "Priority", type_ = "string", json_path = ".spec.priority", description = "The highest priority it may ask for."),
    printcolumn(name = "Window", type_ = "string", json_path = ".status.windows[0].period", description = "The first budget window."),
    printcolumn(name = "Limit", type_ = "integer", json_path = ".status.windows[0].limitTokens", description = "Tokens of the window."),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.windows[0].usedTokens", description = "Tokens used in the window, coarse."),
    printcolumn(name = "Reserved", type_ = "integer", json_path = ".status.windows[0].reservedTokens", description = "Tokens reserved by live runs, coarse."),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.windows[0].availableTokens", description = "Tokens left in the window, coarse."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is or is not ready."),
    printcolumn(name = "Keys", type_ = "integer", json_path = ".status.activeKeys", description = "API keys in force.", priority = 1),
    printcolumn(name = "Resets", type_ = "string", json_path = ".status.windows[0].end", description = "When the first window ends.", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", description = "The reason in words.", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Since when the object exists.")
)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuotaSpec {
    /// The tenant's name, by which runs, budgets and usage are kept. Cannot change.
    #[schemars(length(min = 1, max = 63), regex(pattern = TENANT))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("tenant cannot change, its ledger hangs on it: create another TenantQuota"))]
    pub tenant: String,

    /// API keys: each names a Secret that holds only a keyed hash. None where absent, so that nobody gets in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub keys: Option<Vec<Key>>,

    /// Budgets in fixed windows aligned to the Unix epoch; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["period"]))]
    #[x_kube(
        validation = Rule::new("self.all(w, has(w.tokens) || has(w.costMicros))").message("each window needs tokens, costMicros or both"),
        validation = Rule::new("self.all(w, self.exists_one(v, duration(v.period) == duration(w.period)))").message("two windows have the same period"),
        validation = Rule::new("self.all(w, duration(w.period) >= duration('1s') && duration(w.period) <= duration('8784h'))").message("period must be from 1s to 8784h")
    )]
    pub windows: Option<Vec<Window>>,

    /// Bounds per minute; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,

    /// Bounds of single runs and of runs at once; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,

    /// The highest priority it may ask for: interactive, standard (where absent) or batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,

    /// The models it may use; `*` means every model. None where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub models: Option<Vec<PermittedModel>>,

    /// Who shares cached prefixes with this tenant: all tenants with the same scope. The tenant alone where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = TENANT))]
    pub trust_scope: Option<String>,

    /// How long events and content of ended runs are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,

    /// When and where it is told that a budget is used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<Alerts>,

    /// Whether its runs may be mirrored to a version in shadow: Allowed (where absent) or Denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Permission>,
}

/// An API key.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Its name, for people and for the audit log.
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_NAME))]
    pub name: String,
    /// Where its keyed hash is: what `weir key` printed as `hash`.
    pub secret_ref: SecretRef,
    /// When it ends; never where absent. Two keys may overlap while one replaces the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// When it begins; at once where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// What it may less than its tenant; as much where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<KeyLimits>,
}

/// What a key may less than its tenant. The tenant's limits hold beside these.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KeyLimits {
    /// Tokens in one fixed window aligned to the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Accepted runs per minute; no bound of its own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub requests_per_minute: Option<i64>,
    /// Reserved tokens per minute; no bound of its own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens_per_minute: Option<i64>,
    /// Runs at once; no bound of its own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrent_runs: Option<i32>,
    /// The highest priority it may ask for; the tenant's where absent or higher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Models it may use, of those that the tenant may; all of them where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 96), regex(pattern = MODEL)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub models: Option<Vec<String>>,
}

/// An entry of a Secret in the same namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// The Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
    /// The entry in its data.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A budget in fixed windows.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Length of the window, from 1s to 8784h.
    pub period: DurationText,
    /// Tokens per window, prompt and output together; no bound where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000_000_000_i64))]
    pub tokens: Option<i64>,
    /// Cost per window in micro-units; no bound where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000_000_000_i64))]
    pub cost_micros: Option<i64>,
}

/// Bounds per minute, in fixed minutes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// Accepted runs per minute; no bound where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub requests_per_minute: Option<i64>,
    /// Reserved tokens per minute; no bound where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens_per_minute: Option<i64>,
}

/// Bounds of single runs and of runs at once.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Runs at once; no bound where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrent_runs: Option<i32>,
    /// Longest prompt in tokens; the model's context where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<i32>,
    /// Longest output in tokens; the model's context where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_output_tokens: Option<i32>,
    /// Largest share of a pool's KV memory that its live runs may reserve, in percent; 100 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub kv_share_percent: Option<i32>,
}

/// A model that a tenant may use.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PermittedModel {
    /// The model's name, or `*` for every model that no other entry names.
    #[schemars(length(min = 1, max = 96), regex(pattern = MODEL_OR_ALL))]
    pub name: String,
    /// Quality tiers it may use; all where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63), regex(pattern = LABEL_NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub tiers: Option<Vec<String>>,
    /// Whether a smaller model may answer when the request permits it: Allowed or Denied (where absent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Permission>,
    /// Whether requests may name a version, such as `tiny-chat@2`: Allowed or Denied (where absent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Permission>,
}

/// How long events and content of ended runs are kept.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// Events, for replay; 24h where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<DurationText>,
    /// Prompts and outputs; 24h where absent. Events are content: the shorter of the two holds for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<DurationText>,
    /// Whether the tenant's own keys may delete its content: Allowed or Denied (where absent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Permission>,
}

/// Condition types of this kind beside `Ready`, `Reconciling` and `Stalled`.
pub mod conditions {
    /// The quota's fields can be used, and no other quota has the same tenant.
    pub const ADMITTED: &str = "Admitted";
    /// Every key's Secret holds a hash.
    pub const KEYS_RESOLVED: &str = "KeysResolved";
    /// Every permitted model exists.
    pub const MODELS_RESOLVED: &str = "ModelsResolved";
}

/// Condition reasons of this kind.
pub mod reasons {
    /// `Ready`: keys and limits are in force.
    pub const ENFORCED: &str = "Enforced";
    /// `Ready`: it names no key, or all have ended, so that nobody gets in.
    pub const NO_KEY: &str = "NoKey";
    /// `Admitted`: everything fits.
    pub const ACCEPTED: &str = "Accepted";
    /// `Admitted`: a field cannot be used; the message names it.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// `Admitted`: another quota has the same tenant.
    pub const DUPLICATE_TENANT: &str = "DuplicateTenant";
    /// `KeysResolved`: every key's hash was found.
    pub const KEYS_FOUND: &str = "KeysFound";
    /// `KeysResolved`, `Ready`: a Secret or its entry is missing; the message names it.
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    /// `KeysResolved`: an entry is no hash that `weir key` prints.
    pub const INVALID_KEY_HASH: &str = "InvalidKeyHash";
    /// `ModelsResolved`: every permitted model exists.
    pub const MODELS_FOUND: &str = "ModelsFound";
    /// `ModelsResolved`: a permitted model does not exist yet; the message names it.
    pub const MODEL_NOT_FOUND: &str = "ModelNotFound";
}
