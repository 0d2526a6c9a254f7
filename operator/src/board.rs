//! What controllers tell each other: how many workers a model needs, and what a pool serves. Found again by looking after a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_api::ValidGpuPool;
use weir_api::gpu_pool::PoolModel;
use weir_rollout::{Record, VersionId};

/// The answers. Cloning shares them.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Answers>>);

#[derive(Default)]
struct Answers {
    wanted: BTreeMap<String, u32>,
    occupancy: BTreeMap<String, u32>,
    served: BTreeMap<String, Served>,
}

/// What serves a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// The pool.
    pub pool: String,
    /// The version that serves.
    pub stable: Option<VersionId>,
    /// The version that takes a share of its runs on trial.
    pub trial: Option<VersionId>,
    /// As the pool's status shows it.
    pub shown: PoolModel,
}

impl Board {
    /// Workers that a model needs; before anything was seen the fewest that its pool has, and at least one.
    pub fn wanted(&self, model: &str, pool: Option<&ValidGpuPool>) -> u32 {
        let known = self.0.lock().wanted.get(model).copied();
        let Some(pool) = pool else {
            return known.unwrap_or(1);
        };
        let known = known.map(|known| known.clamp(pool.min_replicas, pool.max_replicas));
        known.unwrap_or(pool.min_replicas.max(1))
    }

    /// Sets a model's number; whether it is another one than before.
    pub fn want(&self, model: &str, wanted: u32) -> bool {
        self.0.lock().wanted.insert(model.to_owned(), wanted) != Some(wanted)
    }

    /// How full a pool's workers are, in percent.
    pub fn occupancy(&self, pool: &str) -> u32 {
        self.0.lock().occupancy.get(pool).copied().unwrap_or(0)
    }

    /// Sets a pool's occupancy.
    pub fn occupied(&self, pool: &str, percent: u32) {
        self.0.lock().occupancy.insert(pool.to_owned(), percent);
    }

    /// What a pool serves of a model, by its newest record.
    pub fn serves(&self, model: &str, pool: &str, head: Option<&Record>) {
        let mut answers = self.0.lock();
        let Some(head) = head else {
            answers.served.remove(model);
            return;
        };
        let number = |id: &VersionId| i32::try_from(id.version).ok();
        let attempt = head.attempt.as_ref();
        let shown = PoolModel {
            model: model.to_owned(),
            stable: head.stable.as_ref().and_then(number),
            canary: attempt.and_then(|attempt| number(&attempt.target)),
            canary_weight_percent: attempt
                .and_then(|attempt| i32::try_from(head.weight(&attempt.target.digest)).ok()),
            rollback_to: head.refuge().and_then(number),
        };
        let served = Served {
            pool: pool.to_owned(),
            stable: head.stable.clone(),
            trial: attempt
                .map(|attempt| &attempt.target)
                .filter(|target| head.weight(&target.digest) > 0)
                .cloned(),
            shown,
        };
        answers.served.insert(model.to_owned(), served);
    }

    /// What a pool serves.
    pub fn served(&self, pool: &str) -> BTreeMap<String, Served> {
        let answers = self.0.lock();
        let of_pool = answers
            .served
            .iter()
            .filter(|(_, served)| served.pool == pool);
        of_pool
            .map(|(model, served)| (model.clone(), served.clone()))
            .collect()
    }
}
