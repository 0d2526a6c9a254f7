//! What is seen of a model: its objects, children, pods and gateways, from caches, as decisions need it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource as _;
use kube::ResourceExt as _;
use weir_api::{
    ANNOTATION_MODEL, ANNOTATION_REQUEST, FieldProblem, GpuPool, LABEL_COMPONENT, ModelVersion,
    ValidGpuPool, ValidModelVersion, Validate as _,
};
use weir_rollout::decide::{GatewayView, Request, Seen};
use weir_rollout::record::{ChildWitness, Witnesses};
use weir_rollout::routing::Table;
use weir_rollout::{Record, VersionId};

use super::memory::ChildSeen;
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
        let mut pools = BTreeMap::new();
        for pool in world.pools.state() {
            let is_used = |seen: &VersionSeen| seen.object.spec.pool == pool.name_any();
            if versions.iter().any(is_used)
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
            child_pools: BTreeMap::new(),
            log,
            damaged,
            gateways,
        };
        view.see_children(world, model);
        view
    }

    fn see_children(&mut self, world: &World, model: &str) {
        for deployment in world.children.deployments.state() {
            let Some((of, id)) = names::version_of(deployment.meta()) else {
                continue;
            };
            if of != model {
                continue;
            }
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            let seen = ChildSeen {
                desired: replicas.map_or(1, |replicas| u32::try_from(replicas).unwrap_or(0)),
                stamp: names::stamp_of(deployment.meta()),
                ..ChildSeen::default()
            };
            let pool = deployment.labels().get(weir_api::LABEL_POOL).cloned();
            self.child_pools
                .insert(id.clone(), pool.unwrap_or_default());
            self.children.insert(id, seen);
        }
        let mut failures: BTreeMap<VersionId, u32> = BTreeMap::new();
        for pod in world.pods.state() {
            let is_worker =
                pod.labels().get(LABEL_COMPONENT).map(String::as_str) == Some(names::WORKER);
            let Some((of, id)) = names::version_of(pod.meta()).filter(|_| is_worker) else {
                continue;
            };
            if of == model
                && let Some(child) = self.children.get_mut(&id)
            {
                count(child, &pod, failures.entry(id));
            }
        }
        for (id, fewest) in failures {
            if let Some(child) = self.children.get_mut(&id) {
                child.start_failures = fewest;
            }
        }
        for gateway in &self.gateways {
            for worker in gateway
                .report
                .iter()
                .flat_map(|(report, _)| report.workers.values())
            {
                for (id, child) in &mut self.children {
                    if worker.digests.contains(&id.digest) {
                        child.live_runs += u64::from(worker.in_flight);
                    }
                }
            }
        }
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
        let children = world.children.deployments.state();
        let witness = |deployment: &Arc<k8s_openapi::api::apps::v1::Deployment>| {
            let (of, id) = names::version_of(deployment.meta())?;
            let role = deployment
                .annotations()
                .get(weir_api::ANNOTATION_ROLE)
                .map(String::as_str);
            (of == model).then(|| ChildWitness {
                stamp: names::stamp_of(deployment.meta()),
                is_stable: role == Some(STABLE),
                is_rollback: role == Some(ROLLBACK),
                id,
            })
        };
        Witnesses {
            newest: self.log.last().cloned(),
            tables: self.gateways.iter().filter_map(table).collect(),
            children: children.iter().filter_map(witness).collect(),
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

/// What a record calls the version that serves.
pub const STABLE: &str = "Stable";
/// What it calls the one before.
pub const ROLLBACK: &str = "Rollback";

/// What a record calls a version.
pub fn role(head: &Record, id: &VersionId) -> &'static str {
    if head.stable.as_ref() == Some(id) {
        STABLE
    } else if head.rollback_to.as_ref() == Some(id) {
        ROLLBACK
    } else {
        "Candidate"
    }
}

fn count(
    child: &mut ChildSeen,
    pod: &Pod,
    failures: std::collections::btree_map::Entry<'_, VersionId, u32>,
) {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let restarts: i32 = containers
        .into_iter()
        .flatten()
        .map(|container| container.restart_count)
        .sum();
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let exits = u32::try_from(restarts).unwrap_or(0) + u32::from(phase == Some("Failed"));
    child.exits += exits;
    if is_over {
        return;
    }
    child.existing += 1;
    let conditions = || {
        status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
    };
    let is = |type_: &str, value: &str| conditions().any(|c| c.type_ == type_ && c.status == value);
    let is_ready = is("Ready", "True") && pod.metadata.deletion_timestamp.is_none();
    child.ready += u32::from(is_ready);
    let unschedulable = conditions()
        .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable"));
    child.unschedulable += u32::from(unschedulable);
    if !is_ready {
        failures
            .and_modify(|fewest| *fewest = (*fewest).min(exits))
            .or_insert(exits);
    }
}
