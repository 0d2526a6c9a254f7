//! A pool's status.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use weir_api::gpu_pool::{EffectiveEngine, KvOccupancy, PoolModel, Sharing, conditions, reasons};
use weir_api::{CONDITION_READY, GpuPool, GpuPoolStatus, ValidGpuPool};

use super::count;
use crate::up::catalog::Entry;
use crate::up::rollouts::Rollout;
use crate::up::serve::{Serving, Stable, impossible};
use crate::up::workers::Worker;
use weir_operator::status::ConditionNow;

/// What is said about a pool, conditions apart.
pub(super) fn pool_status(
    serving: &Serving,
    entry: &Entry<GpuPool>,
) -> (GpuPoolStatus, Vec<ConditionNow>) {
    let name = &entry.valid.name;
    let views: Vec<_> = serving
        .gateway
        .workers()
        .into_iter()
        .filter(|view| view.pool == *name)
        .collect();
    let seen = workers_seen(serving, name, &views);
    let total: u64 = views.iter().map(|view| view.kv_tokens).sum();
    let kv_held: u64 = views.iter().map(|view| view.status.kv_tokens).sum();
    let models = serving.stable.iter().filter(|(_, stable)| {
        let placed = serving.placed.get(&stable.name);
        placed.is_some_and(|placed| placed.entry.valid.pool == *name)
    });
    let models = models.map(|(model, stable)| pool_model(serving, model, stable));
    let engine = &entry.valid.engine;
    let status = GpuPoolStatus {
        observed_generation: Some(entry.generation),
        replicas: Some(count(seen.processes)),
        ready_replicas: Some(count(seen.connected)),
        selector: Some(format!("{}={name}", weir_api::LABEL_POOL)),
        kv_occupancy: (total > 0).then(|| KvOccupancy {
            percent: i32::try_from(kv_held * 100 / total).unwrap_or(100),
            tokens_held: i64::try_from(kv_held).ok(),
            tokens_total: i64::try_from(total).ok(),
            observed_at: Time(Timestamp::now()),
        }),
        queue_depth: Some(count(serving.gateway.queue_depth(name))),
        prefix_hit_percent: prefix_hit_percent(&views),
        models: Some(models.collect()),
        effective_engine: Some(EffectiveEngine {
            max_batch_tokens: i32::try_from(engine.max_batch_tokens).unwrap_or(i32::MAX),
            max_running: i32::try_from(engine.max_running).unwrap_or(i32::MAX),
            kv_bytes: engine.kv_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
            block_tokens: i32::try_from(engine.block_tokens).unwrap_or(i32::MAX),
            kv_dtype: engine.kv_dtype.as_str().to_owned(),
        }),
        conditions: Vec::new(),
    };
    (
        status,
        vec![admitted(&entry.valid), ready(&entry.valid, seen)],
    )
}

/// A pool's workers. Versions of a shared pool have a process in common.
#[derive(Clone, Copy)]
struct WorkersSeen {
    processes: usize,
    /// Of them, those that take runs of any version.
    connected: usize,
    versions: usize,
    /// Of them, those that take runs.
    served: usize,
}

fn workers_seen(serving: &Serving, pool: &str, views: &[weir_gateway::WorkerView]) -> WorkersSeen {
    let workers = serving.workers.iter();
    let workers: Vec<_> = workers.filter(|(_, worker)| worker.pool == pool).collect();
    let is_connected = |(name, _): &(&String, &Worker)| {
        let mut views = views.iter();
        views.any(|view| view.connected && view.name == **name)
    };
    let connected: Vec<_> = workers.iter().copied().filter(is_connected).collect();
    let processes = |workers: &[(&String, &Worker)]| {
        let names = workers.iter().map(|(_, worker)| worker.process());
        names.collect::<BTreeSet<_>>().len()
    };
    WorkersSeen {
        processes: processes(&workers),
        connected: processes(&connected),
        versions: workers.len(),
        served: connected.len(),
    }
}

fn admitted(pool: &ValidGpuPool) -> ConditionNow {
    let wrong = impossible(pool);
    let reason = wrong.map_or(reasons::ACCEPTED, |_| reasons::INVALID_SPEC);
    let message = wrong.unwrap_or("the object makes sense");
    ConditionNow::new(conditions::ADMITTED, wrong.is_none(), reason, message)
}

fn ready(pool: &ValidGpuPool, seen: WorkersSeen) -> ConditionNow {
    let WorkersSeen {
        processes,
        connected,
        versions,
        served,
    } = seen;
    let is_whole = served == versions;
    let workers = if connected == processes {
        format!("{connected} workers take runs")
    } else {
        format!("{connected} of {processes} workers take runs")
    };
    let of_versions = match pool.sharing {
        Sharing::Dedicated => String::new(),
        Sharing::Shared if is_whole => format!(" of {served} versions"),
        Sharing::Shared => format!(" of {served} of {versions} versions"),
    };
    let (reason, message) = match (versions, is_whole) {
        (0, _) => (reasons::IDLE, "no version needs it".to_owned()),
        (_, true) => (reasons::REPLICAS_READY, workers + &of_versions),
        (_, false) => (reasons::REPLICAS_UNAVAILABLE, workers + &of_versions),
    };
    ConditionNow::new(CONDITION_READY, is_whole, reason, message)
}

fn prefix_hit_percent(views: &[weir_gateway::WorkerView]) -> Option<i32> {
    let sum = |of: fn(&weir_gateway::WorkerView) -> u64| views.iter().map(of).sum::<u64>();
    let percent = sum(|view| view.status.cached_tokens) * 100;
    i32::try_from(percent.checked_div(sum(|view| view.status.prompt_tokens))?).ok()
}

/// What a pool serves of a model.
fn pool_model(serving: &Serving, model: &str, stable: &Stable) -> PoolModel {
    let number = |version: u32| i32::try_from(version).ok();
    let head = serving.rollouts.of(model).and_then(Rollout::head);
    let attempt = head.and_then(|head| head.attempt.as_ref());
    let weight = attempt.and_then(|attempt| Some(head?.weight(&attempt.target.digest)));
    PoolModel {
        model: model.to_owned(),
        stable: number(stable.version),
        canary: attempt.and_then(|attempt| number(attempt.target.version)),
        canary_weight_percent: weight.and_then(number),
        rollback_to: head
            .and_then(|head| head.refuge())
            .and_then(|id| number(id.version)),
    }
}
