//! How a pool's workers fetch what they load.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::text::QuantityText;

/// How workers fetch artifacts that are elsewhere (`oci://`, `https://`, `s3://`, `gs://`, `az://`), and where they keep them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Fetch {
    /// The PersistentVolumeClaim in the same namespace that the pool's workers share as their cache. Where absent, the folder of the node that
    /// the operator was given for it, and where it was given none a volume of each pod, which ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub cache_claim: Option<String>,
    /// Most bytes that the cache may hold, such as `200Gi`: the least recently used versions go first, never those in use. As much as the
    /// volume has where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_size: Option<QuantityText>,
    /// Most bytes a second that a worker fetches, such as `100Mi`; as fast as they come where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<QuantityText>,
    /// Files that a worker fetches at the same time; 4 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub parallel: Option<i32>,
}
