//! A snapshot with the indexes that requests look things up in.

use std::collections::HashMap;
use std::sync::Arc;

use weir_protocol::error::ErrorCode;
use weir_run::DecisionReason;

use crate::auth::Keys;
use crate::error::{ApiError, ApiResult};
use crate::snapshot::{
    ModelPermission, ModelRoute, Pool, QueueBound, ServedVersion, Snapshot, Tenant,
};

pub(crate) struct Directory {
    pub(crate) keys: Keys,
    pub(crate) models: HashMap<String, ModelRoute>,
    pools: HashMap<String, Pool>,
}

/// A version that may serve a request, and why it was chosen.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) version: Arc<ServedVersion>,
    pub(crate) reason: DecisionReason,
}

impl Directory {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self {
            keys: Keys::new(snapshot.tenants),
            models: snapshot
                .models
                .into_iter()
                .map(|model| (model.name.clone(), model))
                .collect(),
            pools: snapshot
                .pools
                .into_iter()
                .map(|pool| (pool.name.clone(), pool))
                .collect(),
        }
    }

    /// A pool's bounds; a pool that left the snapshot while its models stayed takes nothing new.
    pub(crate) fn pool(&self, name: &str) -> Pool {
        self.pools.get(name).cloned().unwrap_or(Pool {
            name: name.to_owned(),
            queues: [QueueBound {
                max_depth: 0,
                max_wait_ms: 0,
            }; 3],
            class_bounds: [u32::MAX; 2],
        })
    }

    /// The version for `model` or `model@version`. `coin` decides between stable and canary.
    pub(crate) fn resolve(&self, tenant: &Tenant, asked: &str, coin: u128) -> ApiResult<Candidate> {
        let (name, pinned) = match asked.rsplit_once('@') {
            None => (asked, None),
            Some((name, version)) => match version.parse::<u32>() {
                Ok(version) => (name, Some(version)),
                Err(_) => {
                    return Err(ApiError::invalid(
                        "model",
                        format!("{asked:?} names no version; write model or model@2"),
                    ));
                }
            },
        };
        // The tenant's list decides before what exists, so that a refusal tells nothing about other tenants' models.
        let permission = permission(tenant, name)?;
        let model = self.models.get(name).ok_or_else(|| not_found(asked))?;
        let (version, reason) = match pinned {
            Some(_) if !permission.pinning => {
                return Err(ApiError::new(
                    ErrorCode::ModelNotPermitted,
                    format!(
                        "this tenant may not name a version of \"{name}\"; ask for \"{name}\" alone"
                    ),
                )
                .param("model"));
            }
            Some(version) => (version, DecisionReason::Pinned),
            None => choose(model, coin),
        };
        let version = model.version(version).ok_or_else(|| not_found(asked))?;
        check_tier(permission, &version)?;
        Ok(Candidate { version, reason })
    }

    /// Permitted stand-ins for a version, in order.
    pub(crate) fn fallbacks(&self, tenant: &Tenant, version: &ServedVersion) -> Vec<Candidate> {
        let may_fall_back =
            permission(tenant, &version.model).is_ok_and(|permission| permission.fallback);
        if !may_fall_back {
            return Vec::new();
        }
        let usable = |name: &String| {
            let permission = permission(tenant, name).ok()?;
            let model = self.models.get(name)?;
            let version = model.version(model.stable)?;
            check_tier(permission, &version).ok()?;
            Some(Candidate {
                version,
                reason: DecisionReason::Fallback,
            })
        };
        version.fallback.iter().filter_map(usable).collect()
    }
}

impl ModelRoute {
    fn version(&self, version: u32) -> Option<Arc<ServedVersion>> {
        self.versions
            .iter()
            .find(|served| served.version == version)
            .cloned()
    }
}

fn choose(model: &ModelRoute, coin: u128) -> (u32, DecisionReason) {
    match model.canary {
        Some(canary) if coin % 1000 < u128::from(canary.weight_permille) => {
            (canary.version, DecisionReason::Canary)
        }
        _ => (model.stable, DecisionReason::Stable),
    }
}

/// The tenant's permission for a model.
pub(crate) fn permission<'a>(tenant: &'a Tenant, model: &str) -> ApiResult<&'a ModelPermission> {
    tenant
        .models
        .iter()
        .find(|permission| permission.name == model)
        .ok_or_else(|| {
            ApiError::new(
                ErrorCode::ModelNotPermitted,
                format!(
                    "this key may not use model {model:?}; GET /v1/models lists what it may use"
                ),
            )
            .param("model")
        })
}

fn check_tier(permission: &ModelPermission, version: &ServedVersion) -> ApiResult<()> {
    if permission.tiers.is_empty() || permission.tiers.contains(&version.tier) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::TierNotPermitted,
        format!(
            "this key may not use tier {:?} of model {:?}; it may use {}",
            version.tier,
            version.model,
            permission.tiers.join(", ")
        ),
    )
    .param("model"))
}

fn not_found(asked: &str) -> ApiError {
    ApiError::new(
        ErrorCode::ModelNotFound,
        format!("no version of model {asked:?} is served now; GET /v1/models lists what is"),
    )
    .param("model")
}
