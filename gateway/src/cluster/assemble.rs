//! From what is known of a cluster to what the gateway serves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt as _;
use weir_api::{ANNOTATION_MODEL, Validate as _};
use weir_rollout::Record;

use super::objects::{Seat, Served, endpoints, seat, served, worker};
use super::{Cluster, SETTINGS};
use crate::settings::Settings;
use crate::snapshot::{
    Mirror, ModelRoute, Pool, SamplingDefaults, ServedVersion, Snapshot, WorkerEndpoint,
};
use crate::text::PromptText;

impl Cluster {
    /// Everything that is in force now, and what it was made from. Blocks.
    pub(super) fn snapshot(&self) -> io::Result<(String, Snapshot)> {
        let inner = &self.0;
        let records = newest_records(&inner.revisions.state());
        let table =
            |(model, record): (&String, &Record)| Some((model.clone(), record.routing.clone()?));
        inner.book.offer(records.iter().filter_map(table))?;
        let tables = inner.book.all();
        let plans: Vec<Served> = inner
            .plans
            .state()
            .iter()
            .filter_map(|plan| served(plan))
            .collect();
        inner
            .texts
            .retain(|digest| plans.iter().any(|plan| plan.digest == digest));
        let workers = self.workers();
        let quotas = self.quotas();
        let pools: Vec<Pool> = inner
            .pools
            .state()
            .iter()
            .filter_map(|pool| Some(Pool::from(&pool.validate().ok()?)))
            .collect();
        let settings = self.settings();
        let models = self.versions(&plans);
        let mirrors = self.mirrors(&records, &plans);
        let names: BTreeSet<&str> = plans.iter().map(|plan| plan.model.as_str()).collect();
        let secrets = inner.secrets.lock().clone();
        let entry = |secret: &str, entry: &str| secrets.get(secret)?.get(entry).cloned();
        let tenants = quotas
            .iter()
            .map(|quota| crate::objects::tenant(quota, &entry, &names))
            .collect();
        let orders: BTreeMap<&String, _> = tables
            .iter()
            .map(|(model, table)| (model, table.order))
            .collect();
        let read: Vec<_> = models.iter().map(|(model, of)| (model, of.len())).collect();
        let maps = inner.settings.state();
        let texts: Vec<_> = maps.iter().map(|map| map.data.clone()).collect();
        let shadowed: Vec<_> = mirrors
            .iter()
            .map(|(model, mirror)| (model, &mirror.attempt, &mirror.target))
            .collect();
        let basis = format!(
            "{orders:?} {shadowed:?} {plans:?} {read:?} {workers:?} {pools:?} {quotas:?} {secrets:?} {texts:?}"
        );
        let route = |(model, versions): (&str, Vec<Arc<ServedVersion>>)| {
            let table = Arc::clone(tables.get(model)?);
            Some(ModelRoute {
                mirror: mirrors.get(model).cloned(),
                name: model.to_owned(),
                versions,
                table,
            })
        };
        let models = models.into_iter().filter_map(route).collect();
        Ok((
            basis,
            Snapshot {
                tenants,
                models,
                pools,
                workers,
                settings,
            },
        ))
    }

    /// What is served of each model.
    fn versions<'a>(&self, plans: &'a [Served]) -> BTreeMap<&'a str, Vec<Arc<ServedVersion>>> {
        let mut models: BTreeMap<&str, Vec<Arc<ServedVersion>>> = BTreeMap::new();
        for plan in plans {
            if let Some(version) = self.version(plan) {
                models
                    .entry(&plan.model)
                    .or_default()
                    .push(Arc::new(version));
            }
        }
        models
    }

    fn version(&self, plan: &Served) -> Option<ServedVersion> {
        let text = self.0.texts.get(plan)?.model;
        Some(ServedVersion {
            model: plan.model.clone(),
            version: plan.version,
            digest: plan.digest.clone(),
            pool: plan.pool.clone(),
            tier: plan.tier.clone(),
            price: plan.price,
            context_tokens: plan.context_tokens.min(text.context_tokens()),
            defaults: SamplingDefaults::from(&text.generation),
            text: text as Arc<dyn PromptText>,
            fallback: plan.fallback.clone(),
        })
    }

    /// Which version is asked in the shadow, by model: as the newest record says, once its text side is there.
    fn mirrors(
        &self,
        records: &BTreeMap<String, Record>,
        plans: &[Served],
    ) -> BTreeMap<String, Mirror> {
        let mirror = |(model, record): (&String, &Record)| {
            let (mirror, attempt) = (record.mirror.as_ref()?, record.attempt.as_ref()?);
            let is_target =
                |plan: &&Served| plan.model == *model && plan.digest == mirror.target.digest;
            let text = self.0.texts.get(plans.iter().find(is_target)?)?;
            let mirror = Mirror {
                attempt: attempt.id.clone(),
                target: mirror.target.digest.clone(),
                percent: mirror.percent,
                max_tokens_per_second: mirror.max_tokens_per_second,
                is_scored: attempt.plan.is_scored(),
                references: text.references,
            };
            Some((model.clone(), mirror))
        };
        records.iter().filter_map(mirror).collect()
    }

    fn workers(&self) -> Vec<WorkerEndpoint> {
        let pods = self.0.pods.state();
        let mut ready = self.0.ready.lock();
        ready.retain(|uid| {
            pods.iter()
                .any(|pod| pod.metadata.uid.as_ref() == Some(uid))
        });
        let plans = self.0.plans.state();
        let seats: Vec<Seat> = plans.iter().filter_map(|plan| seat(plan)).collect();
        let mut workers: Vec<WorkerEndpoint> = pods
            .iter()
            .filter_map(|pod| Some(endpoints(pod, worker(pod, &mut ready)?, &seats)))
            .flatten()
            .collect();
        workers.sort_by(|one, other| one.name.cmp(&other.name));
        workers
    }

    /// Settings in force: the last ones that could be used.
    fn settings(&self) -> Settings {
        let found = self.0.settings.state();
        let map = found.iter().find(|map| map.name_any() == SETTINGS);
        let text = map.and_then(|map| map.data.as_ref()?.get("settings.yaml").cloned());
        let mut in_force = self.0.in_force.lock();
        match text.as_deref().map(Settings::from_yaml) {
            None => *in_force = Settings::default(),
            Some(Ok(settings)) => *in_force = settings,
            Some(Err(error)) => tracing::error!(
                error = &error as &dyn std::error::Error,
                "settings cannot be used; the last ones stay in force"
            ),
        }
        in_force.clone()
    }
}

/// The newest record of each model.
fn newest_records(revisions: &[Arc<ControllerRevision>]) -> BTreeMap<String, Record> {
    let mut newest: BTreeMap<String, Record> = BTreeMap::new();
    for revision in revisions {
        let model = revision.annotations().get(ANNOTATION_MODEL);
        let data = revision.data.as_ref().map(|data| data.0.to_string());
        let Some((model, data)) = model.zip(data) else {
            continue;
        };
        match weir_rollout::record::decode(data.as_bytes()) {
            Ok(record) => {
                let is_newer = newest
                    .get(model.as_str())
                    .is_none_or(|known| known.stamp < record.stamp);
                if is_newer {
                    newest.insert(model.clone(), record);
                }
            }
            Err(error) => tracing::warn!(
                revision = revision.name_any(),
                error = &error as &dyn std::error::Error,
                "a record cannot be read"
            ),
        }
    }
    newest
}
