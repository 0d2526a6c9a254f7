//! The workers of a shared pool, brought to what its versions need.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use kube::ResourceExt as _;
use weir_api::gpu_pool::Sharing;
use weir_api::{ANNOTATION_MODEL, ModelVersion, ValidGpuPool, Validate as _};
use weir_rollout::Record;

use super::{Pools, seats};
use crate::apply::ApplyError;
use crate::log;
use crate::model::build::{several, unshared};
use crate::names;
use crate::world::Key;

impl Pools {
    /// Brings the workers of a pool that hold several versions to what was ordered; the versions that there is no place for. Where the pool's
    /// object is gone or makes no sense they stay as they are.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub(super) async fn hold(
        &self,
        name: &str,
        pool: Option<&ValidGpuPool>,
    ) -> Result<Vec<String>, ApplyError> {
        let stores = &self.world.children;
        let (plans, child) = (stores.plans.state(), names::pool_child(name));
        let anchors = seats::anchors(plans.iter().map(|plan| &**plan), name);
        let live = plans.iter().find(|plan| plan.name_any() == child);
        let has_workers = stores
            .deployments
            .find(|live| live.name_any() == child)
            .is_some();
        if anchors.is_empty() && live.is_none() && !has_workers {
            return Ok(Vec::new());
        }
        let before = live.and_then(|live| live.data.clone()).unwrap_or_default();
        // Reading all records is for plans that nobody orders: rarely any.
        let newest = LazyCell::new(|| self.newest_records());
        // A version whose own plan is there and has no order left the pool.
        let is_lost = |file: &str, plan: &str| {
            let mut all = plans.iter();
            let is_there = all.any(|one| format!("{}.json", one.name_any()) == file);
            !is_there && seats::is_named(plan, &newest)
        };
        let most = pool.map_or(u32::MAX, |pool| pool.max_versions);
        let seats = seats::seats(&anchors, &before, is_lost, most);
        let is_sharing = pool.is_some_and(|pool| pool.sharing == Sharing::Shared);
        if seats.plans.is_empty() && (anchors.is_empty() || !is_sharing) {
            self.applier.sweep_pool(stores, &child).await?;
            return Ok(seats.waiting);
        }
        // What is incomplete is made complete by whoever looks after the model.
        let Some(pool) = pool.filter(|_| !seats.is_incomplete) else {
            return Ok(seats.waiting);
        };
        // A template that is refused is told in the status.
        let Ok(wanted) = several(&self.shape, pool, &seats.plans, seats.claims) else {
            return Ok(seats.waiting);
        };
        let mut writes = self.writes.lock().remove(name).unwrap_or_default();
        let shaped = self
            .applier
            .shape_pool(stores, &mut writes, (&wanted, seats.replicas))
            .await;
        self.writes.lock().insert(name.to_owned(), writes);
        // Others may have waited for a place, or may have to make one.
        if shaped? || !seats.waiting.is_empty() {
            for anchor in anchors {
                self.world.agenda.touch(Key::Model(anchor.model));
            }
        }
        Ok(seats.waiting)
    }

    fn newest_records(&self) -> BTreeMap<String, Record> {
        let mut newest: BTreeMap<String, Record> = BTreeMap::new();
        for revision in self.world.revisions.state() {
            let model = revision.annotations().get(ANNOTATION_MODEL).cloned();
            let Some((model, Ok((_, record)))) = model.map(|model| (model, log::read(&revision)))
            else {
                continue;
            };
            if newest
                .get(&model)
                .is_none_or(|known| known.stamp < record.stamp)
            {
                newest.insert(model, record);
            }
        }
        newest
    }

    /// Why versions of a shared pool have workers of their own, if some have.
    pub(super) fn apart(&self, pool: Option<&ValidGpuPool>) -> Option<String> {
        let pool = pool.filter(|pool| pool.sharing == Sharing::Shared)?;
        let versions = self.world.versions.state();
        let why = |version: &ModelVersion| {
            let valid = version.validate().ok()?;
            let why = unshared(pool, &valid).filter(|_| valid.pool == pool.name)?;
            Some((version.name_any(), why))
        };
        let mut all: Vec<(String, &str)> = versions.iter().filter_map(|one| why(one)).collect();
        all.sort();
        let why = all.first()?.1;
        let names: Vec<String> = all.into_iter().take(8).map(|(name, _)| name).collect();
        Some(format!(
            "{} have workers of their own: {why}",
            names.join(", ")
        ))
    }
}
