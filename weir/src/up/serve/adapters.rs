//! Adapters: versions that have no workers of their own, and live in those of their bases.

use std::collections::{BTreeMap, BTreeSet};

use weir_api::ModelVersion;

use super::Serving;
use super::rollout::Look;
use crate::up::catalog::Entry;
use crate::up::problem::Problem;
use crate::up::rollouts::ReplicasSeen;
use crate::up::verify::Verified;

impl Serving {
    /// Adapters are served by the workers of their bases.
    pub(super) fn adapt(&self, problems: &mut Vec<Problem>) {
        let mut by_base: BTreeMap<String, BTreeMap<&str, &Verified>> = BTreeMap::new();
        for (_, worker) in self.workers.iter() {
            by_base.entry(worker.digest.clone()).or_default();
        }
        for (name, placed) in &self.placed {
            let is_wanted = self.wanted.get(name).is_some_and(|replicas| *replicas > 0);
            if let Some(base) = placed.verified.adapter_of().filter(|_| is_wanted)
                && let Some(adapters) = by_base.get_mut(&base)
            {
                adapters.insert(name, &placed.verified);
            }
        }
        for (base, adapters) in &by_base {
            if let Err(error) = self.workers.adapt(base, adapters) {
                problems.push(Problem::in_file(
                    &self.dir,
                    format!("cannot tell the workers of {base} which adapters they have: {error}; make room in --data, or make it writable"),
                ));
            }
        }
    }

    /// Adapters need workers of their bases: those that nothing else needs are kept for them.
    pub(super) fn keep_bases(
        &self,
        wanted: &mut BTreeMap<String, u32>,
        names: &BTreeMap<String, String>,
    ) -> BTreeSet<String> {
        let mut kept = BTreeMap::new();
        for (name, replicas) in wanted.iter().filter(|(_, replicas)| **replicas > 0) {
            let known = self
                .verdicts
                .get(name)
                .and_then(|verdict| verdict.as_ref().ok());
            let placed = || self.placed.get(name).map(|placed| &placed.verified);
            let base = known.or_else(placed).and_then(Verified::adapter_of);
            if let Some(base) = base.and_then(|digest| names.get(&digest))
                && wanted.get(base).is_none_or(|replicas| *replicas == 0)
            {
                kept.insert(base.clone(), *replicas);
            }
        }
        let names = kept.keys().cloned().collect();
        wanted.extend(kept);
        names
    }

    /// Why a version cannot be served where it says: an adapter lives in its base's pool.
    pub fn misplaced(&self, entry: &Entry<ModelVersion>) -> Option<String> {
        let base = entry.valid.manifest.adapter_of.as_ref()?;
        let mut bases = self.catalog.versions.values();
        let base = bases.find(|other| self.digest(other) == *base)?;
        let (own, its) = (&entry.valid.pool, &base.valid.pool);
        (own != its).then(|| {
            let name = &base.valid.name;
            format!("it is an adapter of {name:?}, whose workers are in the pool {its:?}: name that pool instead of {own:?}")
        })
    }

    /// The workers of its base that serve an adapter, or are to. What those processes do otherwise is their base's business.
    pub(super) fn adapter_replicas(
        &self,
        (name, digest): (&String, &String),
        base: &str,
        look: &Look,
    ) -> ReplicasSeen {
        let is_wanted = self.wanted.get(name).is_some_and(|replicas| *replicas > 0);
        let mut seen = ReplicasSeen::default();
        for (worker, _) in self
            .workers
            .iter()
            .filter(|(_, worker)| worker.digest == base)
        {
            let view = look.workers.iter().find(|view| view.name == *worker);
            let view = view.filter(|view| view.digests.contains(digest));
            seen.existing += u32::from(is_wanted || view.is_some());
            let is_ready = view.is_some_and(|view| view.connected && !view.draining);
            seen.ready += u32::from(is_ready);
        }
        seen
    }
}
