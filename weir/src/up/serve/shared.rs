//! Shared pools: versions that live together in one worker.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use weir_api::gpu_pool::Sharing;
use weir_api::{Accelerator, ModelVersion, ValidGpuPool, ValidModelVersion};

use super::Serving;
use crate::up::catalog::Entry;

/// Versions that a model may have in memory at once: what serves, what is on its way in, and what it would go back to.
const VERSIONS_OF_A_MODEL: u32 = 3;

impl Serving {
    /// Places for versions in each worker of a shared pool. They follow from the objects alone, so that a restart finds the same.
    pub(super) fn places(&self, pool: &str) -> NonZeroU32 {
        let written = self.catalog.versions.values().map(|entry| &entry.valid);
        let placed = self.placed.values().map(|placed| &placed.entry.valid);
        // Adapters live in the place of their base.
        let of_pool =
            |valid: &&ValidModelVersion| valid.pool == pool && valid.manifest.adapter_of.is_none();
        let models: BTreeSet<&str> = written
            .chain(placed)
            .filter(of_pool)
            .map(|valid| valid.model.as_str())
            .collect();
        let models = u32::try_from(models.len()).unwrap_or(u32::MAX);
        NonZeroU32::new(models.saturating_mul(VERSIONS_OF_A_MODEL)).unwrap_or(NonZeroU32::MIN)
    }

    /// Whether there are versions that will have workers and have none yet, because their files are still on their way.
    pub(super) fn expects_more(&self) -> bool {
        let mut wanted = self.wanted.iter().filter(|(_, replicas)| **replicas > 0);
        wanted.any(|(name, _)| {
            !self.placed.contains_key(name)
                && match self.verdicts.get(name) {
                    Some(Ok(_)) => false,
                    Some(Err(unverified)) => unverified.may_pass(),
                    None => true,
                }
        })
    }

    /// Why nothing new can be served in a version's pool.
    pub fn unservable(&self, entry: &Entry<ModelVersion>) -> Option<String> {
        let pool = &self.catalog.pools.get(&entry.valid.pool)?.valid;
        let wrong = impossible(pool)?;
        Some(format!(
            "its pool {:?} cannot be served: {wrong}",
            pool.name
        ))
    }
}

/// Why a pool that makes sense cannot be served on this machine.
pub fn impossible(pool: &ValidGpuPool) -> Option<&'static str> {
    (pool.sharing == Sharing::Shared && pool.accelerator != Accelerator::Cpu).then_some(
        "workers that hold several versions (sharing: Shared) run on the CPU only; set `sharing: Dedicated`, or `accelerator: {type: cpu}`; what serves already goes on as it was",
    )
}
