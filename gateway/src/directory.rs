//! A snapshot with the indexes that requests look things up in.

use std::collections::HashMap;
use std::sync::Arc;

use weir_protocol::error::ErrorCode;
use weir_rollout::routing::{Table, choose, coin};
use weir_run::{DecisionReason, RunId};

use crate::auth::{Identity, KeyUse, Keys};
use crate::error::{ApiError, ApiResult};
use crate::policy::Policies;
use crate::settings::CorsSpec;
use crate::snapshot::{
    ModelPermission, ModelRoute, Pool, QueueBound, ServedVersion, Snapshot, Tenant,
};
use crate::tables::Tables;

pub(crate) struct Directory {
    pub(crate) keys: Keys,
    pub(crate) models: HashMap<String, ModelRoute>,
    pools: HashMap<String, Pool>,
    /// Models, or versions of them, by their further names.
    pub(crate) aliases: HashMap<String, String>,
    pub(crate) cors: CorsSpec,
    pub(crate) identity: Arc<Identity>,
    pub(crate) policies: Policies,
}

/// What a request asks for: a model, or one version of it.
#[derive(Clone)]
pub(crate) struct Target {
    model: String,
    pinned: Option<u32>,
    /// The one that was named, or the stable one.
    pub(crate) version: Arc<ServedVersion>,
}

/// A version that may serve a request, and why it was chosen.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) version: Arc<ServedVersion>,
    pub(crate) reason: DecisionReason,
    /// The table whose coin alone chose it: the run is evidence.
    pub(crate) trial: Option<Arc<Table>>,
}

impl Directory {
    /// `tables` has the last word on which table of a model is in force.
    /// `before` is who vouched in what it takes the place of.
    /// `uses` notes when keys are used.
    pub(crate) fn new(
        snapshot: Snapshot,
        tables: &Tables,
        before: &Arc<Identity>,
        uses: &KeyUse,
    ) -> Self {
        let settings = snapshot.settings;
        let aliases = settings.aliases.into_iter();
        let in_force = |mut model: ModelRoute| {
            model.table = tables.offer(&model.name, model.table);
            (model.name.clone(), model)
        };
        Self {
            aliases: aliases.map(|alias| (alias.name, alias.model)).collect(),
            cors: settings.cors,
            identity: Identity::next(settings.identity, before),
            policies: settings.policies,
            keys: Keys::new(snapshot.tenants, uses),
            models: snapshot.models.into_iter().map(in_force).collect(),
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
            sleeps: false,
            largest_prompt: None,
        })
    }

    /// Longest prompt that a pool takes; any where none.
    pub(crate) fn largest_prompt(&self, pool: &str) -> Option<u32> {
        self.pools.get(pool)?.largest_prompt
    }

    /// What `model` or `model@version` names, if the tenant may use it.
    pub(crate) fn resolve(&self, tenant: &Tenant, asked: &str) -> ApiResult<Target> {
        // A model of that name comes before an alias. Whoever wrote an alias for one version allowed its use.
        let alias = self.alias(asked);
        let by_alias = alias.is_some();
        let (name, pinned) = match alias.unwrap_or(asked).rsplit_once('@') {
            None => (alias.unwrap_or(asked), None),
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
        if pinned.is_some() && !permission.pinning && !by_alias {
            return Err(ApiError::new(
                ErrorCode::ModelNotPermitted,
                format!(
                    "this tenant may not name a version of \"{name}\"; ask for \"{name}\" alone"
                ),
            )
            .param("model"));
        }
        let version = match pinned {
            Some(number) => model.by_number(number),
            None => model.of_table(|_| true),
        };
        let version = version.ok_or_else(|| not_found(asked))?;
        check_tier(permission, version)?;
        Ok(Target {
            model: name.to_owned(),
            pinned,
            version: Arc::clone(version),
        })
    }

    /// What a further name of a model stands for.
    pub(crate) fn alias(&self, name: &str) -> Option<&str> {
        let target = self.aliases.get(name)?;
        (!self.models.contains_key(name)).then_some(target)
    }

    /// Whether the same policies hold for a tenant on what it asked for and on another model.
    pub(crate) fn judges_alike(&self, tenant: &Tenant, asked: &str, other: &str) -> bool {
        let target = self.alias(asked).unwrap_or(asked);
        let model = target.split('@').next().unwrap_or(target);
        let of = |model| self.policies.of(&tenant.name, model);
        match (of(model), of(other)) {
            (None, None) => true,
            (Some(one), Some(two)) => Arc::ptr_eq(&one, &two),
            _ => false,
        }
    }

    /// The version that serves this run: the one that was named, or the one that the table's coin chooses.
    ///
    /// A version of the table without a worker that takes runs (`is_ready`), or of a tier that is not for this tenant, takes no part.
    pub(crate) fn assign(
        &self,
        tenant: &Tenant,
        target: &Target,
        run: RunId,
        is_ready: impl Fn(&ServedVersion) -> bool,
    ) -> ApiResult<Candidate> {
        let permission = permission(tenant, &target.model)?;
        let gone = || not_found(&target.model);
        let model = self.models.get(&target.model).ok_or_else(gone)?;
        if let Some(number) = target.pinned {
            let version = Arc::clone(model.by_number(number).ok_or_else(gone)?);
            check_tier(permission, &version)?;
            return Ok(Candidate {
                version,
                reason: DecisionReason::Pinned,
                trial: None,
            });
        }
        let table = &model.table;
        let takes = |version: &ServedVersion| check_tier(permission, version).is_ok();
        let flip = coin(&run.to_string(), &table.coin_salt);
        let choice = choose(table, flip, |digest| {
            let version = model.by_digest(digest);
            version.is_some_and(|version| takes(version) && is_ready(version))
        });
        let chosen = choice.as_ref().and_then(|c| model.by_digest(&c.id.digest));
        // Nobody is ready: the refusal that follows names the version that should be.
        let version = chosen.or_else(|| model.of_table(takes)).ok_or_else(gone)?;
        let is_stable = version.digest == table.stable.digest;
        Ok(Candidate {
            version: Arc::clone(version),
            reason: if is_stable {
                DecisionReason::Stable
            } else {
                DecisionReason::Canary
            },
            trial: choice.filter(|c| c.is_evidence).map(|_| Arc::clone(table)),
        })
    }

    /// Stand-ins for a version, in order: where the request, the tenant and the version's own list all allow them.
    pub(crate) fn fallbacks(
        &self,
        tenant: &Tenant,
        version: &ServedVersion,
        is_asked_for: bool,
    ) -> Vec<Candidate> {
        let may_fall_back =
            permission(tenant, &version.model).is_ok_and(|permission| permission.fallback);
        if !is_asked_for || !may_fall_back {
            return Vec::new();
        }
        let usable = |name: &String| {
            let permission = permission(tenant, name).ok()?;
            let model = self.models.get(name)?;
            let takes = |version: &ServedVersion| check_tier(permission, version).is_ok();
            Some(Candidate {
                version: Arc::clone(model.of_table(takes)?),
                reason: DecisionReason::Fallback,
                trial: None,
            })
        };
        version.fallback.iter().filter_map(usable).collect()
    }
}

impl ModelRoute {
    /// The first version of the table that is here and `takes`: stable before all others.
    fn of_table(&self, takes: impl Fn(&ServedVersion) -> bool) -> Option<&Arc<ServedVersion>> {
        let table = &self.table;
        let ids = [&table.stable].into_iter().chain(&table.rollback);
        ids.chain(table.entries.iter().map(|entry| &entry.id))
            .filter_map(|id| self.by_digest(&id.digest))
            .find(|version| takes(version))
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

#[cfg(test)]
mod tests;
