//! The controller of pools: how many workers each of its models needs, and what the pool is doing.

mod hold;
pub mod measure;
pub mod rate;
mod refused;
pub mod scale;
pub mod seats;
pub mod status;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use weir_api::{GpuPool, LABEL_COMPONENT, LABEL_POOL, ValidGpuPool};
use weir_rollout::VersionId;
use weir_rollout::report::GatewayReport;

use self::measure::{computed, measure};
use self::scale::{Load, Scaler};
use self::status::{Facts, Pods};
use crate::apply::{Applier, ApplyError};
use crate::board::{Board, Served};
use crate::gateways::{Gateways, Heard, TICK};
use crate::leader::{Leadership, Role};
use crate::model::build::Shape;
use crate::model::memory::Writes;
use crate::model::template;
use crate::names;
use crate::queue::Outcome;
use crate::statuses::{Statuses, told};
use crate::verdicts::Verdicts;
use crate::world::{Key, World};

/// How often load is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What gateways said last.
fn reports<'a>(heard: impl Iterator<Item = &'a Heard>) -> impl Iterator<Item = &'a GatewayReport> {
    heard.filter_map(|gateway| Some(&*gateway.report.as_ref()?.0))
}

/// The controller.
pub struct Pools {
    /// What is watched.
    pub world: World,
    /// What gateways say.
    pub gateways: Gateways,
    /// Writes the status.
    pub applier: Applier,
    /// Whether this operator acts.
    pub leadership: Leadership,
    /// Where the number of workers is told.
    pub board: Board,
    /// What each model asked for lately.
    pub scalers: Mutex<BTreeMap<String, Scaler>>,
    /// What was told of each.
    pub statuses: Statuses,
    /// What is wrong with each.
    pub verdicts: Verdicts<GpuPool>,
    /// What all children share.
    pub shape: Shape,
    /// When children of shared pools were written.
    pub writes: Mutex<BTreeMap<String, Writes>>,
}

impl Pools {
    /// Looks at a pool.
    ///
    /// # Errors
    /// Its status cannot be written.
    pub async fn look(&self, name: &str) -> Result<Outcome, ApplyError> {
        if self.leadership.role(Instant::now()) != Role::Leading {
            return Ok(Outcome::Quiet);
        }
        let found = self.world.pools.state();
        let Some(object) = found.iter().find(|pool| pool.name_any() == name) else {
            self.verdicts.forget(name);
            return match self.hold(name, None).await {
                Err(error) if error.is_race() => Ok(Outcome::Again(TICK)),
                held => held.map(|_| Outcome::Gone),
            };
        };
        let valid = self.verdicts.of(object);
        let served = self.board.served(name);
        if let Ok(valid) = &*valid {
            self.scale(valid, &served);
        }
        let waiting = match self.hold(name, (*valid).as_ref().ok()).await {
            // The cache is behind what was written a moment ago.
            Err(error) if error.is_race() => return Ok(Outcome::Again(TICK)),
            held => held?,
        };
        let heard = self.gateways.all();
        let measured = measure(reports(heard.iter()), name, &[]);
        self.board.occupied(name, measured.occupancy().unwrap_or(0));
        let theirs = (*valid)
            .as_ref()
            .ok()
            .and_then(|valid| valid.pod_template.as_ref());
        let refused =
            theirs.and_then(|theirs| template::merge(serde_json::json!({}), theirs).err());
        let facts = Facts {
            object,
            valid: (*valid).as_ref().map_err(Vec::as_slice),
            refused: refused.map(|refused| refused.to_string()),
            pods: self.pods(name),
            forbidden: refused::refusals(
                self.world
                    .children
                    .deployments
                    .state()
                    .iter()
                    .map(|one| &**one),
                name,
            ),
            measured,
            orphans: self.orphans(&served),
            waiting,
            apart: self.apart((*valid).as_ref().ok()),
            models: served
                .into_values()
                .map(|served| served.shown)
                .take(64)
                .collect(),
        };
        let new = status::status(&facts, Timestamp::now());
        let written = self
            .statuses
            .tell(&self.applier, &**object, &object.status, &new)
            .await;
        told(written, LOOK_EVERY)
    }

    fn scale(&self, pool: &ValidGpuPool, served: &BTreeMap<String, Served>) {
        let heard = self.gateways.all();
        for (model, served) in served {
            let Some(stable) = &served.stable else {
                continue;
            };
            // What runs on trial is load all the same: the version that is left in the end takes all of it.
            let serving: Vec<&VersionId> = [stable].into_iter().chain(&served.trial).collect();
            let digests: Vec<&str> = serving.iter().map(|id| id.digest.as_str()).collect();
            let measured = measure(reports(heard.iter()), &pool.name, &digests);
            let ordered = serving.iter().map(|id| self.ordered(model, id));
            let current = self.ordered(model, stable);
            // What was said a while ago would be read as workers that compute nothing.
            let answering = heard.iter().filter(|gateway| gateway.is_reachable);
            let mut answering = reports(answering).peekable();
            let is_known = answering.peek().is_some();
            let counted = computed(answering, &pool.name, &digests);
            let now = Instant::now();
            let mut scalers = self.scalers.lock();
            let scaler = scalers.entry(model.clone()).or_default();
            let load = Load {
                current,
                workers: ordered.sum(),
                occupancy_percent: measured.occupancy(),
                // Of several models in a pool only those that wait need more.
                queue_ms: if measured.waiting > 0 {
                    measured.queue_ms
                } else {
                    0
                },
                tokens_per_second: is_known.then(|| scaler.rate.next(counted, now)).flatten(),
                runs: measured.waiting + measured.running,
            };
            let wanted = scaler.next(pool, load, now);
            drop(scalers);
            if self.board.want(model, wanted) {
                tracing::info!(pool = pool.name, model, wanted, ?load, "workers wanted");
                self.world.agenda.touch(Key::Model(model.clone()));
            }
        }
    }

    /// Workers of a version, as ordered last.
    fn ordered(&self, model: &str, id: &VersionId) -> u32 {
        let name = names::child(model, id);
        let is_its = |deployment: &Deployment| deployment.metadata.name.as_deref() == Some(&name);
        let deployment = self.world.children.deployments.find(is_its);
        let replicas = deployment.and_then(|deployment| deployment.spec.as_ref()?.replicas);
        let own = replicas.map_or(0, |replicas| u32::try_from(replicas).unwrap_or(0));
        let is_its = |plan: &ConfigMap| plan.metadata.name.as_deref() == Some(&name);
        let plan = self.world.children.plans.find(is_its);
        let seats = plan.and_then(|plan| names::replicas_of(&plan.metadata));
        own.max(seats.unwrap_or(0))
    }

    fn pods(&self, pool: &str) -> Pods {
        let mut pods = Pods::default();
        for pod in self.world.pods.state() {
            let label = |name: &str| pod.labels().get(name).map(String::as_str);
            let status = pod.status.as_ref();
            let phase = status.and_then(|status| status.phase.as_deref());
            let is_over = matches!(phase, Some("Succeeded" | "Failed"));
            if label(LABEL_POOL) != Some(pool)
                || label(LABEL_COMPONENT) != Some(names::WORKER)
                || is_over
            {
                continue;
            }
            pods.existing += 1;
            for condition in status
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten()
            {
                let is_ready = condition.type_ == "Ready" && condition.status == "True";
                pods.ready += u32::from(is_ready && pod.meta().deletion_timestamp.is_none());
                pods.unschedulable +=
                    u32::from(condition.reason.as_deref() == Some("Unschedulable"));
            }
        }
        pods
    }

    fn orphans(&self, served: &BTreeMap<String, Served>) -> Vec<String> {
        let versions = self.world.versions.state();
        let is_orphan = |(model, served): &(&String, &Served)| {
            let number = served
                .stable
                .as_ref()
                .and_then(|id| i32::try_from(id.version).ok());
            number.is_some_and(|number| {
                !versions
                    .iter()
                    .any(|version| version.spec.model == **model && version.spec.version == number)
            })
        };
        let orphans = served.iter().filter(is_orphan);
        orphans
            .map(|(model, served)| format!("{model} v{}", served.shown.stable.unwrap_or(0)))
            .collect()
    }
}
