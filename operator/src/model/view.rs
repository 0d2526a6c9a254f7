//! What is seen of a model: its objects, children, pods and gateways, from caches, as decisions need it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use weir_api::{
    ANNOTATION_MODEL, ANNOTATION_REQUEST, FieldProblem, GpuPool, ModelVersion, ValidGpuPool,
    ValidModelVersion, Validate as _,
};
use weir_rollout::decide::{GatewayView, Request, Seen};
use weir_rollout::record::{ChildWitness, Witnesses};
use weir_rollout::routing::Table;
use weir_rollout::{Record, VersionId};

use super::build::unshared;
use super::child::ChildSeen;
use super::forms::{self, Forms};
use super::see::is_of;
use crate::gateways::Heard;
use crate::request::request;
use crate::world::World;
use crate::{log, names};

/// A version's object.
pub struct VersionSeen {
    /// As it is.
    pub object: Arc<ModelVersion>,
    /// Proven, or what is wrong with it.
    pub valid: Result<ValidModelVersion, Vec<FieldProblem>>,
}

/// A model's objects and children.
pub struct View {
    /// Its versions, the highest first.
    pub versions: Vec<VersionSeen>,
    /// The pools that they name, where they are there and make sense.
    pub pools: BTreeMap<String, ValidGpuPool>,
    /// Children by version.
    pub children: BTreeMap<VersionId, ChildSeen>,
    /// What kinds of workers each child has.
    pub forms: BTreeMap<VersionId, Forms>,
    /// Pools of children, for versions whose objects are gone.
    pub child_pools: BTreeMap<VersionId, String>,
    /// Records, oldest first.
    pub log: Vec<Record>,
    /// Records that could not be read.
    pub damaged: Vec<String>,
    /// Live gateways.
    pub gateways: Vec<Heard>,
}

impl View {
    /// Looks.
    pub fn of(world: &World, gateways: Vec<Heard>, model: &str) -> Self {
        let mut versions: Vec<VersionSeen> = world
            .versions
            .state()
            .into_iter()
            .filter(|version| version.spec.model == model)
            .map(|object| VersionSeen {
                valid: object.validate(),
                object,
            })
            .collect();
        // Of two objects for one number the older one comes first, and is the one that counts.
        versions.sort_by_key(|seen| {
            let created = seen.object.metadata.creation_timestamp.clone();
            (
                std::cmp::Reverse(seen.object.spec.version),
                created.map(|at| at.0),
                seen.object.name_any(),
            )
        });
        let seen = forms::forms(world, &gateways, model);
        let mut pools = BTreeMap::new();
        for pool in world.pools.state() {
            let is_used = |seen: &VersionSeen| seen.object.spec.pool == pool.name_any();
            let holds = |forms: &Forms| forms.pool == pool.name_any();
            if (versions.iter().any(is_used) || seen.values().any(holds))
                && let Ok(valid) = GpuPool::validate(&pool)
            {
                pools.insert(pool.name_any(), valid);
            }
        }
        let (mut log, mut damaged) = (Vec::new(), Vec::new());
        let is_mine = |annotations: &BTreeMap<String, String>| {
            annotations.get(ANNOTATION_MODEL).map(String::as_str) == Some(model)
        };
        // Only this model's are read: there may be thousands.
        for revision in world.revisions.state() {
            if !is_mine(revision.annotations()) {
                continue;
            }
            match log::read(&revision) {
                Ok((_, record)) => log.push(record),
                Err(error) => damaged.push(format!("{}: {error}", revision.name_any())),
            }
        }
        log.sort_by_key(|record| record.stamp);
        let mut view = Self {
            versions,
            pools,
            children: BTreeMap::new(),
            forms: BTreeMap::new(),
            child_pools: BTreeMap::new(),
            log,
            damaged,
            gateways,
        };
        view.see_children(seen);
        view
    }

    fn see_children(&mut self, seen: BTreeMap<VersionId, Forms>) {
        for (id, mut forms) in seen {
            forms.is_shared = self.is_shared(&id, &forms);
            let mut child = forms.merged();
            child.live_runs = forms::live_runs(&self.gateways, &id.digest);
            self.child_pools.insert(id.clone(), forms.pool.clone());
            self.children.insert(id.clone(), child);
            self.forms.insert(id, forms);
        }
    }

    /// Whether workers of its pool are to hold a version. One whose object or pool is gone stays as it is.
    fn is_shared(&self, id: &VersionId, forms: &Forms) -> bool {
        let seen = self.versions.iter().find(|seen| is_of(seen, id));
        let valid = seen.and_then(|seen| seen.valid.as_ref().ok());
        match valid.and_then(|valid| Some((valid, self.pool_of(valid, Some(forms))?))) {
            Some((valid, pool)) => unshared(pool, valid).is_none(),
            None => forms.is_seated() || forms.own.is_none(),
        }
    }

    /// The pool of a version. The one whose workers hold it now keeps it, also where its object is gone or makes no sense: nothing that another
    /// one has would serve meanwhile.
    pub fn pool_of(
        &self,
        valid: &ValidModelVersion,
        forms: Option<&Forms>,
    ) -> Option<&ValidGpuPool> {
        let held = forms.filter(|forms| forms.is_seated());
        let name = held.map_or(&valid.pool, |forms| &forms.pool);
        self.pools.get(name)
    }

    /// Gateways as decisions see them: an unreachable one stays live with what it said last.
    pub fn gateway_views(&self, model: &str, now: Instant) -> Vec<GatewayView> {
        let view = |heard: &Heard| {
            let mut known: BTreeMap<String, u32> = BTreeMap::new();
            let seen = match &heard.report {
                None => Seen::Unknown,
                Some((report, at)) => {
                    for worker in report.workers.values() {
                        for digest in worker.digests.iter().filter(|digest| worker.serves(digest)) {
                            *known.entry(digest.clone()).or_default() += 1;
                        }
                    }
                    match report
                        .models
                        .get(model)
                        .and_then(|of| Some((of.table.as_ref()?, of.age_ms)))
                    {
                        None => Seen::Nothing,
                        Some((table, age_ms)) => {
                            let since = now.saturating_duration_since(*at).as_millis();
                            let since = u64::try_from(since).unwrap_or(u64::MAX);
                            Seen::Applied {
                                order: table.order,
                                age_ms: age_ms.saturating_add(since),
                            }
                        }
                    }
                }
            };
            GatewayView {
                name: heard.name.clone(),
                is_reachable: heard.is_reachable,
                seen,
                known,
            }
        };
        self.gateways.iter().map(view).collect()
    }

    /// Who still knows what the rollout was, should its log be gone.
    pub fn witnesses(&self, model: &str, world: &World) -> Witnesses {
        let table = |heard: &Heard| -> Option<Table> {
            heard.report.as_ref()?.0.models.get(model)?.table.clone()
        };
        let witness = |meta: &ObjectMeta| {
            let (of, id) = names::version_of(meta)?;
            let role = names::role_of(meta);
            (of == model).then(|| ChildWitness {
                stamp: names::stamp_of(meta),
                is_stable: role == names::STABLE,
                is_rollback: role == names::ROLLBACK,
                id,
            })
        };
        let (deployments, plans) = (
            world.children.deployments.state(),
            world.children.plans.state(),
        );
        let seats = plans.iter().map(|plan| &plan.metadata);
        let seats = seats.filter(|meta| names::replicas_of(meta).is_some());
        let metas = deployments.iter().map(|one| &one.metadata).chain(seats);
        Witnesses {
            newest: self.log.last().cloned(),
            tables: self.gateways.iter().filter_map(table).collect(),
            children: metas.filter_map(witness).collect(),
            ..Witnesses::default()
        }
    }

    /// What people ask for in an annotation of any version, and what is wrong with the rest.
    pub fn requests(&self) -> (Vec<Request>, Vec<(Arc<ModelVersion>, String)>) {
        let (mut requests, mut wrong) = (Vec::new(), Vec::new());
        for seen in &self.versions {
            let Some(text) = seen.object.annotations().get(ANNOTATION_REQUEST) else {
                continue;
            };
            let version = u32::try_from(seen.object.spec.version).unwrap_or(0);
            match request(text, version) {
                Ok(request) => requests.push(request),
                Err(message) => wrong.push((Arc::clone(&seen.object), message)),
            }
        }
        (requests, wrong)
    }
}

/// What a record calls a version.
pub fn role(head: &Record, id: &VersionId) -> &'static str {
    if head.stable.as_ref() == Some(id) {
        names::STABLE
    } else if head.rollback_to.as_ref() == Some(id) {
        names::ROLLBACK
    } else {
        names::CANDIDATE
    }
}
