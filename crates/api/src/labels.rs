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
