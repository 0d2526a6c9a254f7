//! What the gateway is told: made anew only when something it rests on has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_gateway::{Pool, Snapshot, WorkerEndpoint};

use super::Serving;
use crate::up::placement::Candidate;
use crate::up::snapshot;

/// What the gateway's snapshot was made from: an equal one need not be made again.
#[derive(PartialEq)]
pub(super) struct Basis {
    revision: u64,
    serving: BTreeMap<String, Candidate>,
    placed: Vec<(String, String, i64)>,
    workers: Vec<WorkerEndpoint>,
}

impl Serving {
    pub(super) fn apply(&mut self) {
        let placed = self.placed.iter().map(|(name, placed)| {
            (
                name.clone(),
                placed.verified.digest.clone(),
                placed.entry.generation,
            )
        });
        let basis = Basis {
            revision: self.revision,
            serving: self.placement.serving.clone(),
            placed: placed.collect(),
            workers: self.workers.endpoints(),
        };
        if self.applied.as_ref() != Some(&basis) {
            self.gateway.apply(self.snapshot());
            self.applied = Some(basis);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let versions = self
            .placed
            .values()
            .map(|p| Arc::new(snapshot::served_version(&p.entry.valid, &p.verified)));
        let serving = self
            .placement
            .serving
            .iter()
            .map(|(model, c)| (model.clone(), c.version))
            .collect();
        let quotas = self.catalog.quotas.values();
        Snapshot {
            tenants: quotas
                .map(|entry| snapshot::tenant(&entry.valid, &self.catalog))
                .collect(),
            models: snapshot::routes(versions.collect(), &serving),
            pools: self
                .catalog
                .pools
                .values()
                .map(|entry| Pool::from(&entry.valid))
                .collect(),
            workers: self.workers.endpoints(),
        }
    }
}
