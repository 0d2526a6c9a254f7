//! A pool's status: coarse numbers, each of which stays as it is until it is another one.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use weir_api::gpu_pool::{EffectiveEngine, KvOccupancy, PoolModel, conditions, reasons};
use weir_api::{
    CONDITION_READY, CONDITION_RECONCILING, FieldProblem, GpuPool, GpuPoolStatus, LABEL_POOL,
    ValidGpuPool,
};

use super::measure::{Measured, percent};
use crate::status::{ConditionNow, seconds, stamped};

/// Pods of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// All that are not over.
    pub existing: u32,
    /// Ready ones.
    pub ready: u32,
    /// Those that no node has room for.
    pub unschedulable: u32,
}

/// In steps of five, rounded.
fn coarse_percent(percent: u32) -> i32 {
    i32::try_from((percent + 2) / 5 * 5).unwrap_or(100)
}

/// 0, 1, 2, 5, 10, 20, 50 …, rounded up: how long a queue is, not how long exactly.
fn coarse_count(count: u64) -> i32 {
    let mut step = 1;
    while step < count {
        step = match step.to_string().as_bytes().first() {
            Some(b'2') => step / 2 * 5,
            _ => step * 2,
        };
    }
    i32::try_from(if count == 0 { 0 } else { step }).unwrap_or(i32::MAX)
}

/// What is known of a pool.
pub struct Facts<'a> {
    /// The object.
    pub object: &'a GpuPool,
    /// Proven, or what is wrong with it.
    pub valid: Result<&'a ValidGpuPool, &'a [FieldProblem]>,
    /// Why its template is refused, if so.
    pub refused: Option<String>,
    /// Its pods.
    pub pods: Pods,
    /// What the API server says of pods that it does not let come into being.
    pub forbidden: Option<String>,
    /// What gateways say.
    pub measured: Measured,
    /// What it serves.
    pub models: Vec<PoolModel>,
    /// Versions that serve although their objects are gone.
    pub orphans: Vec<String>,
    /// Versions that its workers, which hold several, have no place for.
    pub waiting: Vec<String>,
    /// Why versions have workers of their own although the pool is shared, if some have.
    pub apart: Option<String>,
}

/// Fields whose values alone are no news.
pub const MOVING: &[&str] = &["kvOccupancy", "queueDepth", "prefixHitPercent"];

/// The status.
#[must_use]
pub fn status(facts: &Facts<'_>, now: Timestamp) -> GpuPoolStatus {
    let before = facts.object.status.clone().unwrap_or_default();
    let count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let generation = facts.object.metadata.generation;
    let name = facts.object.metadata.name.as_deref().unwrap_or_default();
    let all = conditions(facts);
    let known = facts.measured.is_known;
    GpuPoolStatus {
        observed_generation: generation,
        replicas: Some(count(facts.pods.existing)),
        ready_replicas: Some(count(facts.pods.ready)),
        selector: Some(format!("{LABEL_POOL}={name}")),
        kv_occupancy: if known {
            kv(facts.measured, before.kv_occupancy, now)
        } else {
            before.kv_occupancy
        },
        queue_depth: if known {
            Some(coarse_count(facts.measured.queue))
        } else {
            before.queue_depth
        },
        prefix_hit_percent: match percent(facts.measured.prompt[1], facts.measured.prompt[0]) {
            Some(percent) => Some(coarse_percent(percent)),
            None => before.prefix_hit_percent,
        },
        models: (!facts.models.is_empty()).then(|| facts.models.clone()),
        effective_engine: facts.valid.ok().map(engine),
        conditions: stamped(&before.conditions, all, generation, now),
    }
}

fn kv(measured: Measured, before: Option<KvOccupancy>, now: Timestamp) -> Option<KvOccupancy> {
    let [held, total] = measured.kv;
    let percent = coarse_percent(measured.occupancy()?);
    let signed = |number: u64| i64::try_from(number).ok();
    let step = (total / 20).max(1);
    let now = KvOccupancy {
        percent,
        tokens_held: signed(held.div_ceil(step) * step),
        tokens_total: signed(total),
        observed_at: Time(seconds(now)),
    };
    // Seen again, it is still what was seen then.
    let same = |before: &KvOccupancy| {
        (before.percent, before.tokens_held, before.tokens_total)
            == (now.percent, now.tokens_held, now.tokens_total)
    };
    before.filter(same).or(Some(now))
}

fn engine(valid: &ValidGpuPool) -> EffectiveEngine {
    let engine = &valid.engine;
    EffectiveEngine {
        max_batch_tokens: i32::try_from(engine.max_batch_tokens).unwrap_or(i32::MAX),
        max_running: i32::try_from(engine.max_running).unwrap_or(i32::MAX),
        kv_bytes: engine.kv_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
        block_tokens: i32::try_from(engine.block_tokens).unwrap_or(i32::MAX),
        kv_dtype: engine.kv_dtype.as_str().to_owned(),
    }
}

fn capacity(facts: &Facts<'_>) -> ConditionNow {
    if let Some(words) = facts.forbidden.as_deref() {
        return ConditionNow::new(
            conditions::CAPACITY_AVAILABLE,
            false,
            reasons::WORKERS_REFUSED,
            words,
        );
    }
    let Pods {
        existing,
        ready: _,
        unschedulable,
    } = facts.pods;
    if unschedulable > 0 {
        let message = format!("no node has room for {unschedulable} of {existing} workers");
        return ConditionNow::new(
            conditions::CAPACITY_AVAILABLE,
            false,
            reasons::UNSCHEDULABLE,
            message,
        );
    }
    if !facts.waiting.is_empty() {
        let most = facts.valid.map_or(0, |valid| valid.max_versions);
        let message = format!(
            "a worker holds {most} versions, and {} wait for a place: raise spec.maxVersions, or take versions back",
            facts.waiting.join(", ")
        );
        return ConditionNow::new(
            conditions::CAPACITY_AVAILABLE,
            false,
            reasons::NO_PLACE,
            message,
        );
    }
    ConditionNow::new(
        conditions::CAPACITY_AVAILABLE,
        true,
        reasons::SCHEDULED,
        "every worker has a node",
    )
}

fn admitted(facts: &Facts<'_>, wrong: Option<&str>) -> ConditionNow {
    if let Some(wrong) = wrong {
        return ConditionNow::new(conditions::ADMITTED, false, reasons::INVALID_SPEC, wrong);
    }
    let message = match &facts.apart {
        Some(apart) => format!(
            "the object makes sense, but {apart}; set sharing: Dedicated, or accelerator.type: cpu and artifacts on a path or in a claim (pvc://)"
        ),
        None => "the object makes sense".to_owned(),
    };
    ConditionNow::new(conditions::ADMITTED, true, reasons::ACCEPTED, message)
}

fn conditions(facts: &Facts<'_>) -> Vec<ConditionNow> {
    let mut all = Vec::new();
    let problems = facts.valid.err().map(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        problems.join("; ")
    });
    let wrong = problems.or_else(|| facts.refused.clone());
    all.push(admitted(facts, wrong.as_deref()));
    all.push(capacity(facts));
    if !facts.orphans.is_empty() {
        let message = format!(
            "{} serve on although their objects are gone",
            facts.orphans.join(", ")
        );
        all.push(ConditionNow::new(
            conditions::ORPHANED_VERSION,
            true,
            conditions::ORPHANED_VERSION,
            message,
        ));
    }
    let says = |holds, reason: &str, message: String| {
        ConditionNow::new(CONDITION_READY, holds, reason, message)
    };
    let ready = match (&wrong, facts.pods.ready, facts.pods.existing) {
        (Some(wrong), ..) => says(false, reasons::INVALID_SPEC, wrong.clone()),
        (None, 0, 0) if facts.forbidden.is_some() => says(
            false,
            reasons::WORKERS_REFUSED,
            facts.forbidden.clone().unwrap_or_default(),
        ),
        (None, 0, 0) => says(true, reasons::IDLE, "no version needs it".to_owned()),
        (None, up, all) if up == all => says(
            true,
            reasons::REPLICAS_READY,
            format!("{up} workers take runs"),
        ),
        (None, up, all) => says(
            false,
            reasons::REPLICAS_UNAVAILABLE,
            format!("{up} of {all} workers take runs"),
        ),
    };
    if ready.status == "False" && wrong.is_none() {
        all.push(ConditionNow::new(
            CONDITION_RECONCILING,
            true,
            &ready.reason,
            ready.message.clone(),
        ));
    }
    all.push(ready);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_coarse() {
        let counts: Vec<i32> = [0, 1, 2, 3, 6, 11, 21, 51, 101].map(coarse_count).to_vec();
        assert_eq!(counts, [0, 1, 2, 5, 10, 20, 50, 100, 200]);
        let percents: Vec<i32> = [0, 2, 3, 7, 8, 100].map(coarse_percent).to_vec();
        assert_eq!(percents, [0, 0, 5, 5, 10, 100]);
    }

    #[test]
    fn what_is_seen_again_does_not_change_a_status() {
        let object = |status: Option<GpuPoolStatus>| -> GpuPool {
            let mut object: GpuPool = serde_json::from_value(json!({
                "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "p", "generation": 3},
                "spec": {"accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 1}},
            }))
            .unwrap();
            object.status = status;
            object
        };
        let tell = |object: &GpuPool, held: u64, second: i64| {
            let facts = Facts {
                object,
                valid: Err(&[]),
                refused: None,
                forbidden: None,
                pods: Pods {
                    existing: 2,
                    ready: 1,
                    unschedulable: 0,
                },
                measured: Measured {
                    kv: [held, 1000],
                    is_known: true,
                    ..Measured::default()
                },
                models: Vec::new(),
                orphans: Vec::new(),
                waiting: Vec::new(),
                apart: None,
            };
            status(&facts, Timestamp::from_second(second).unwrap())
        };
        let first = tell(&object(None), 401, 10);
        assert_eq!(first.kv_occupancy.as_ref().unwrap().tokens_held, Some(450));
        assert_eq!(tell(&object(Some(first.clone())), 420, 20), first);
        assert_ne!(tell(&object(Some(first.clone())), 520, 20), first);
    }
}
