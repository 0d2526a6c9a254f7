//! The workers of a shared pool, which hold what the plans in one ConfigMap name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use weir_api::gpu_pool::Sharing;
use weir_api::{Accelerator, ValidGpuPool, ValidModelVersion};

use super::workers::{Group, group};
use super::{Shape, Workers};
use crate::model::template::Refused;
use crate::names;

/// A shared pool's children.
#[derive(Clone, Debug, PartialEq)]
pub struct Several {
    /// The plans of the versions that its workers hold.
    pub plans: Value,
    /// The workers.
    pub workers: Workers,
}

/// Builds them, for plans by file name and the claims that the artifacts lie in.
///
/// # Errors
/// The pool's template asks for what the restricted profile or this operator does not allow.
pub fn several(
    shape: &Shape,
    pool: &ValidGpuPool,
    plans: &BTreeMap<String, String>,
    claims: BTreeSet<String>,
) -> Result<Several, Refused> {
    let of = Group {
        shape,
        pool,
        name: names::pool_child(&pool.name),
        labels: names::pool_labels(&pool.name),
        annotations: BTreeMap::new(),
        selector: names::pool_selector(&pool.name),
        one: None,
        claims: claims.into_iter().collect(),
        held: u32::try_from(plans.len()).unwrap_or(u32::MAX),
    };
    Ok(Several {
        plans: json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": of.name, "namespace": shape.namespace, "labels": names::pool_labels(&pool.name),
            },
            "data": plans,
        }),
        workers: group(&of)?,
    })
}

/// Why a version has workers of its own; `None` where those of its pool hold it.
pub fn unshared(pool: &ValidGpuPool, version: &ValidModelVersion) -> Option<&'static str> {
    if pool.sharing != Sharing::Shared {
        return Some("the pool is Dedicated");
    }
    if pool.accelerator != Accelerator::Cpu {
        return Some("workers of several versions compute on the CPU only");
    }
    let is_remote = version.manifest.is_remote();
    is_remote.then_some("workers of several versions fetch no files")
}
