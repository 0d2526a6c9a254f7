//! Labels and annotations on objects and their children.

/// On every child: the model it belongs to (hashed where the name is no label value).
pub const LABEL_MODEL: &str = "weir.dev/model";
/// On every child: the version it belongs to.
pub const LABEL_VERSION: &str = "weir.dev/version";
/// On every child: the pool it runs in.
pub const LABEL_POOL: &str = "weir.dev/pool";
/// On children of a tenant.
pub const LABEL_TENANT: &str = "weir.dev/tenant";
/// On children: `<epoch>.<revision>` of the rollout record that last changed them; an older record may not.
pub const ANNOTATION_RECORD: &str = "weir.dev/record";
/// On a `ModelVersion`: a person's request `{id, action, version, attempt, step}` (pause, resume, promote, abort, retry, undo).
pub const ANNOTATION_REQUEST: &str = "weir.dev/request";
/// On children and gateways: what part of Weir it is, `worker` or `gateway`.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// On children: the program that made them.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGER: &str = "weir-operator";
/// On children: the model's name, which may be no label value.
pub const ANNOTATION_MODEL: &str = "weir.dev/model-name";
/// On children: the manifest digest of the version they run.
pub const ANNOTATION_DIGEST: &str = "weir.dev/digest";
/// On plans of versions that workers of a shared pool hold: on how many of those workers it is counted on.
pub const ANNOTATION_REPLICAS: &str = "weir.dev/replicas";
/// On workers that hold several versions, and on their Deployment: `Shared`.
pub const LABEL_SHARING: &str = "weir.dev/sharing";
/// On children: what the record that last changed them called their version, `Stable` or `Rollback`.
pub const ANNOTATION_ROLE: &str = "weir.dev/role";
