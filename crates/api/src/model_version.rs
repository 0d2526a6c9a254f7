//! `ModelVersion`: one immutable signed version of a model, and how far it may go.

mod manifest;
mod rollout;
mod status;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use manifest::{Artifact, File, Manifest, Precision, Signature};
pub use rollout::{
    Guardrails, OnBreach, Policy, Promote, RollbackReserve, Rollout, Shadow, ShadowMode, Step,
};
pub use status::{
    Evidence, ModelVersionStatus, RejectedVersion, ReservedVersion, StatusStage, Verdict,
};

/// Whether something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Permission {
    /// It may.
    Allowed,
    /// It may not.
    Denied,
}

/// Names that clients use for models: letters, digits, `.`, `_`, `/`, `:` and `-`; `@` separates a pinned version.
pub(crate) const MODEL_NAME: &str = "^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$";
/// Names of objects that become part of other names.
pub(crate) const LABEL_NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// One immutable, signed version of a model.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "weir.dev",
    version = "v1alpha1",
    kind = "ModelVersion",
    plural = "modelversions",
    shortname = "mv",
    category = "weir",
    namespaced,
    status = "ModelVersionStatus",
    derive = "PartialEq",
    doc = "One immutable, signed version of a model, and how far it may go: Registered, Shadow, Canary or Production.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must have at most 63 characters: it becomes a label"),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model", description = "The name clients use."),
    printcolumn(name = "Version", type_ = "integer", json_path = ".spec.version", description = "The version's number."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "Whether the version does what its stage asks for."),
    printcolumn(name = "Stage", type_ = "string", json_path = ".status.stage", description = "Where the version is."),
    printcolumn(name = "Goal", type_ = "string", json_path = ".spec.stage", description = "How far it may go."),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".status.weightPercent", description = "Share of new runs, in percent, that every gateway has acknowledged."),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.step", description = "The canary step it is in, from 1."),
    printcolumn(name = "Steps", type_ = "integer", json_path = ".status.steps", description = "How many canary steps its plan has.", priority = 1),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas", description = "Replicas that have it loaded and ready."),
    printcolumn(name = "Rollback-To", type_ = "integer", json_path = ".status.rollbackTo.version", description = "The version that takes over on a breach."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is or is not ready: what the rollout is doing."),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool", description = "The pool that serves it.", priority = 1),
    printcolumn(name = "Signer", type_ = "string", json_path = ".status.signer", description = "The key that signed it.", priority = 1),
    printcolumn(name = "Digest", type_ = "string", json_path = ".status.manifestDigest", description = "Digest of the signed manifest.", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", description = "The reason in words.", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Since when the object exists.")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.fallback) || !(self.model in self.fallback)").message("fallback names the model itself: name only other models").field_path(".fallback")
)]
pub struct ModelVersionSpec {
    /// The name clients use for the model; all its versions share it. Letters, digits and `. _ / : -`. Cannot change.
    #[schemars(length(min = 1, max = 96), regex(pattern = MODEL_NAME))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("model cannot change: create another ModelVersion"))]
    pub model: String,

    /// The version's number, from 1; a higher one replaces a lower one. Cannot change.
    #[schemars(range(min = 1))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("version cannot change: create another ModelVersion"))]
    pub version: i32,

    /// What is signed: the files and what the model can do. Cannot change, but for the place the files are fetched from.
    pub manifest: Manifest,

    /// The signature over every file of the artifact. Exactly one of `bundle` and `file`.
    pub signature: Signature,

    /// How far this version may go: Registered (verified, no traffic), Shadow (mirrored runs only), Canary (its steps), Production (may become the
    /// stable version) or Retired (may be deleted although it serves).
    pub stage: Stage,

    /// The GpuPool, in the same namespace, that serves this version.
    #[schemars(length(min = 1, max = 40), regex(pattern = LABEL_NAME))]
    pub pool: String,

    /// The quality tier that tenants are permitted by; `standard` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_NAME))]
    pub quality_tier: Option<String>,

    /// Price per token; free of charge where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,

    /// Smaller models that may answer instead, in order, where tenant and request permit it; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 96), regex(pattern = MODEL_NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub fallback: Option<Vec<String>>,

    /// How traffic moves to this version; 5, 25 and 50 percent for a minute each under an error guardrail where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
}

/// How far a version may go.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Stage {
    /// Verified and known; no traffic.
    Registered,
    /// Mirrored runs, whose answers nobody sees.
    Shadow,
    /// Its canary steps, never more.
    Canary,
    /// May become the stable version.
    Production,
    /// On its way out: no new runs, may be deleted.
    Retired,
}

impl Stage {
    /// The word used in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "Registered",
            Self::Shadow => "Shadow",
            Self::Canary => "Canary",
            Self::Production => "Production",
            Self::Retired => "Retired",
        }
    }
}

/// Price per token in integer micro-units.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    /// Micro-units for a prompt token that was computed; 0 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub prompt_micros_per_token: Option<i64>,
    /// Micro-units for a prompt token whose KV was reused; the price of a computed one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub cached_micros_per_token: Option<i64>,
    /// Micro-units for an output token; 0 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub output_micros_per_token: Option<i64>,
}

/// Condition types of this kind beside `Ready`, `Reconciling` and `Stalled`.
pub mod conditions {
    /// The artifact's files are here. Present for artifacts that are elsewhere (`https://`, `s3://`, `gs://`, `az://`, `oci://`); the
    /// message says how many of how many bytes have come.
    pub const FETCHED: &str = "Fetched";
    /// The signature is valid, the signer trusted, and the signed manifest says what the object says.
    pub const VERIFIED: &str = "Verified";
    /// Pool, fallback and limits fit together, and the version is not rejected.
    pub const ADMITTED: &str = "Admitted";
    /// A rollout of this version goes on; the reason says what it is doing.
    pub const PROGRESSING: &str = "Progressing";
    /// The version was rolled back; the reason says why.
    pub const ROLLED_BACK: &str = "RolledBack";
    /// The version to fall back to has the capacity it needs.
    pub const ROLLBACK_READY: &str = "RollbackReady";
    /// Present and true while somebody else keeps changing fields of the version's children.
    pub const CONTESTED: &str = "Contested";
}

/// Condition reasons of this kind.
pub mod reasons {
    /// `Ready`: it is the stable version and serves.
    pub const SERVING: &str = "Serving";
    /// `Ready`: it is the stable version, and its pool has no worker while nobody asks.
    pub const ASLEEP: &str = "Asleep";
    /// `Ready`: kept warm for a rollback.
    pub const RESERVE: &str = "Reserve";
    /// `Ready`: registered, verified, takes no traffic by its stage.
    pub const REGISTERED: &str = "Registered";
    /// `Ready`: a higher version serves.
    pub const SUPERSEDED: &str = "Superseded";
    /// `Ready`: it left service.
    pub const RETIRED: &str = "Retired";
    /// `Verified`: signature, signer and manifest are in order.
    pub const SIGNATURE_VALID: &str = "SignatureValid";
    /// `Verified`: the signature does not fit. The verifier has a word of its own for each other fault, such as `KeyRevoked` or
    /// `FileTampered`: `weir_manifest::VerifyError::reason` lists them.
    pub const SIGNATURE_INVALID: &str = "SignatureInvalid";
    /// `Verified`: the signed manifest says something else than the object.
    pub const MANIFEST_MISMATCH: &str = "ManifestMismatch";
    /// `Verified`: the artifact cannot be read.
    pub const ARTIFACT_UNAVAILABLE: &str = "ArtifactUnavailable";
    /// `Fetched`, `Verified`, `Ready`: the artifact's files are on their way. Where they do not come, `Fetched` has the fetcher's word, such
    /// as `ArtifactDenied` or `CacheFull`: `weir_fetch::FetchError::reason` lists them.
    pub const FETCHING: &str = "Fetching";
    /// `Fetched`: every file is here.
    pub const IN_CACHE: &str = "InCache";
    /// `Admitted`: everything fits.
    pub const ACCEPTED: &str = "Accepted";
    /// `Admitted`: a field cannot be used; the message names it.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// `Admitted`: the pool does not exist.
    pub const POOL_NOT_FOUND: &str = "PoolNotFound";
    /// `Admitted`, `Verified`, `Ready`: the engine does not support the model.
    pub const UNSUPPORTED_MODEL: &str = "UnsupportedModel";
    /// `Verified`: the version that the adapter is of is not there, or not verified.
    pub const BASE_UNAVAILABLE: &str = "BaseUnavailable";
    /// `Admitted`, `Verified`: what the adapter is of is no model of its own, or serves in another pool.
    pub const BASE_MISMATCH: &str = "BaseMismatch";
    /// `Admitted`: adapters are not served here; the message says what to do instead.
    pub const ADAPTERS_UNSUPPORTED: &str = "AdaptersUnsupported";
    /// `Verified`: the file of reference prompts cannot be used.
    pub const REFERENCES_INVALID: &str = "ReferencesInvalid";
    /// `Admitted`: an earlier attempt of this digest and spec was rejected.
    pub const REJECTED: &str = "Rejected";
    /// `Progressing`: signature and files are being checked.
    pub const VERIFYING: &str = "Verifying";
    /// `Progressing`: the pool has no room.
    pub const WAITING_FOR_CAPACITY: &str = "WaitingForCapacity";
    /// `Progressing`: replicas start and load.
    pub const STARTING: &str = "Starting";
    /// `Progressing`: replicas are added for the next weight.
    pub const SCALING: &str = "Scaling";
    /// `Progressing`: a gateway has not acknowledged the new weights; the message names it.
    pub const WAITING_FOR_GATEWAYS: &str = "WaitingForGateways";
    /// `Progressing`: runs are observed for the bake time.
    pub const BAKING: &str = "Baking";
    /// `Progressing`: too few runs to tell.
    pub const NO_DATA: &str = "NoData";
    /// `Progressing`: evidence against the version, not yet enough for a rollback.
    pub const SUSPECT: &str = "Suspect";
    /// `Progressing`: enough runs, and still neither worse nor fine.
    pub const INCONCLUSIVE: &str = "Inconclusive";
    /// `Progressing`: all traffic moves over.
    pub const PROMOTING: &str = "Promoting";
    /// `Progressing`: a person paused it.
    pub const PAUSED: &str = "Paused";
    /// `RolledBack`: a guardrail was breached.
    pub const GUARDRAIL_BREACHED: &str = "GuardrailBreached";
    /// `RolledBack`: its workers die.
    pub const CRASH_LOOP: &str = "CrashLoop";
    /// `RolledBack`: no replica ever became ready.
    pub const START_FAILED: &str = "StartFailed";
    /// `RolledBack`: no replica was ready in time after the serving version gave one up for it.
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// `RolledBack`: the commit was reverted.
    pub const WITHDRAWN: &str = "Withdrawn";
    /// `Contested`: another field manager writes what the operator owns.
    pub const FOREIGN_MANAGER: &str = "ForeignManager";
    /// `RolledBack`: a person aborted it.
    pub const ABORTED: &str = "Aborted";
}
