//! What the gateway is told: made anew only when something it rests on has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_api::ValidGpuPool;
use weir_gateway::{Mirror, Pool, Snapshot, WorkerEndpoint};
use weir_rollout::routing::{Table, TableOrder};

use super::{Placed, Serving};
use crate::up::snapshot;

/// What the gateway's snapshot was made from: an equal one need not be made again.
#[derive(PartialEq)]
pub(super) struct Basis {
    revision: u64,
    /// The order of each model's routing table.
    tables: BTreeMap<String, TableOrder>,
    /// The attempt and version in each model's shadow.
    mirrors: BTreeMap<String, (String, String)>,
    placed: Vec<(String, String, i64)>,
    workers: Vec<WorkerEndpoint>,
}

impl Serving {
    /// Whether there was something to apply.
    pub(super) fn apply(&mut self) -> bool {
        let placed = self.placed.iter().map(|(name, placed)| {
            (
                name.clone(),
                placed.verified.digest.clone(),
                placed.entry.generation,
            )
        });
        let mirrors = self.mirrors();
        let basis = Basis {
            revision: self.revision,
            mirrors: mirrors
                .iter()
                .map(|(model, mirror)| {
                    let of = (mirror.attempt.clone(), mirror.target.clone());
                    (model.clone(), of)
                })
                .collect(),
            tables: self
                .tables()
                .iter()
                .map(|(model, table)| (model.clone(), table.order))
                .collect(),
            placed: placed.collect(),
            workers: self.workers.endpoints(),
        };
        if self.applied.as_ref() == Some(&basis) {
            return false;
        }
        self.gateway.apply(self.snapshot(&mirrors));
        self.applied = Some(basis);
        true
    }

    /// Where new runs go, by model.
    fn tables(&self) -> BTreeMap<String, Arc<Table>> {
        let table = |model: &String| self.rollouts.of(model)?.table().cloned().map(Arc::new);
        self.stable
            .keys()
            .filter_map(|model| Some((model.clone(), table(model)?)))
            .collect()
    }

    /// Which version is asked in the shadow, by model.
    fn mirrors(&self) -> BTreeMap<String, Mirror> {
        let mirror = |model: &String| {
            let head = self.rollouts.of(model)?.head()?;
            let (mirror, attempt) = (head.mirror.as_ref()?, head.attempt.as_ref()?);
            let of_target = |placed: &&Placed| placed.verified.digest == mirror.target.digest;
            let placed = self.placed.values().find(of_target)?;
            Some(Mirror {
                attempt: attempt.id.clone(),
                target: mirror.target.digest.clone(),
                percent: mirror.percent,
                max_tokens_per_second: mirror.max_tokens_per_second,
                is_scored: attempt.plan.is_scored(),
                references: Arc::clone(&placed.verified.references),
            })
        };
        let models = self.stable.keys();
        models
            .filter_map(|model| Some((model.clone(), mirror(model)?)))
            .collect()
    }

    fn snapshot(&self, mirrors: &BTreeMap<String, Mirror>) -> Snapshot {
        let versions = self
            .placed
            .values()
            .map(|p| Arc::new(snapshot::served_version(&p.entry.valid, &p.verified)));
        let quotas = self.catalog.quotas.values();
        let written = self.catalog.versions.values();
        // A model that serves although its objects are gone is still a model.
        let models = written
            .map(|entry| entry.valid.model.as_str())
            .chain(self.stable.keys().map(String::as_str))
            .collect();
        let settings = self.catalog.settings.clone();
        let secrets =
            |secret: &str, entry: &str| self.catalog.entry(secret, entry).map(str::to_owned);
        let tenants = quotas.map(|entry| weir_gateway::tenant(&entry.valid, &secrets, &models));
        Snapshot {
            tenants: tenants.filter(|_| settings.is_some()).collect(),
            settings: settings.unwrap_or_default(),
            models: snapshot::routes(versions.collect(), &self.tables(), mirrors),
            pools: self.pools(),
            workers: self.workers.endpoints(),
        }
    }

    /// Pools in force, and those that serve although their objects are gone.
    fn pools(&self) -> Vec<Pool> {
        let written = self.catalog.pools.values().map(|entry| &entry.valid);
        let kept = self.placed.values().map(|placed| &placed.pool);
        let mut by_name: BTreeMap<&str, &ValidGpuPool> =
            kept.map(|pool| (pool.name.as_str(), pool)).collect();
        by_name.extend(written.map(|pool| (pool.name.as_str(), pool)));
        by_name.into_values().map(Pool::from).collect()
    }
}
