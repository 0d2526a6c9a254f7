//! The objects with their status, as `weir get` shows them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use weir_api::gpu_pool::{EffectiveEngine, KvOccupancy, PoolModel};
use weir_api::model_version::{StatusStage, conditions, reasons};
use weir_api::tenant_quota::WindowStatus;
use weir_api::{
    CONDITION_READY, GpuPool, GpuPoolStatus, ModelVersion, ModelVersionStatus, TenantQuota,
    TenantQuotaStatus,
};

use super::catalog::Entry;
use super::serve::Serving;
use super::status::{Verdict, object};
use super::supervisor::WorkerState;

/// Every object with its status, in the order of kinds and names.
pub async fn objects(serving: &mut Serving, ready: &BTreeSet<String>) -> Vec<Value> {
    let now = Timestamp::now();
    let mut all = Vec::new();
    for (name, entry) in &serving.catalog.pools {
        let (mut status, verdicts) = pool_status(serving, entry);
        status.conditions =
            serving
                .report
                .history
                .conditions("GpuPool", name, entry.generation, verdicts, now);
        all.push(object(
            &entry.source.value,
            entry.generation,
            entry.created,
            &status,
        ));
    }
    for (name, entry) in &serving.catalog.versions {
        let (mut status, verdicts) = version_status(serving, entry, ready);
        status.conditions = serving.report.history.conditions(
            "ModelVersion",
            name,
            entry.generation,
            verdicts,
            now,
        );
        all.push(object(
            &entry.source.value,
            entry.generation,
            entry.created,
            &status,
        ));
    }
    for (name, entry) in &serving.catalog.quotas {
        let (mut status, verdicts) = quota_status(serving, entry, now).await;
        status.conditions =
            serving
                .report
                .history
                .conditions("TenantQuota", name, entry.generation, verdicts, now);
        all.push(object(
            &entry.source.value,
            entry.generation,
            entry.created,
            &status,
        ));
    }
    all
}

fn version_status(
    serving: &Serving,
    entry: &Entry<ModelVersion>,
    ready: &BTreeSet<String>,
) -> (ModelVersionStatus, Vec<Verdict>) {
    let valid = &entry.valid;
    let verdict = serving.verdicts.get(&valid.name);
    let is_serving = serving
        .placement
        .serving
        .get(&valid.model)
        .is_some_and(|now| now.name == valid.name);
    let workers: Vec<WorkerState> = serving
        .workers
        .iter()
        .filter(|(_, w)| w.version == valid.name)
        .map(|(_, w)| w.state.borrow().clone())
        .collect();
    let verified = verdict.and_then(|verdict| verdict.as_ref().ok());
    let status = ModelVersionStatus {
        observed_generation: Some(entry.generation),
        stage: Some(match (is_serving, valid.stage) {
            (true, _) => StatusStage::Production,
            (false, weir_api::model_version::Stage::Retired) => StatusStage::Retired,
            (false, _) => StatusStage::Registered,
        }),
        weight_percent: Some(if is_serving { 100 } else { 0 }),
        manifest_digest: verified.map(|verified| verified.digest.clone()),
        signer: verified.map(|verified| verified.signer.clone()),
        sole_serving: is_serving.then_some(
            serving
                .placed
                .values()
                .filter(|p| p.entry.valid.model == valid.model)
                .count()
                == 1,
        ),
        replicas: Some(count(workers.len())),
        ready_replicas: Some(count(
            workers
                .iter()
                .filter(|state| **state == WorkerState::Up)
                .count(),
        )),
        ..ModelVersionStatus::default()
    };
    let mut verdicts = vec![match verdict {
        Some(Ok(verified)) => {
            let message = format!("signed by key {:?}", verified.signer);
            Verdict::new(
                conditions::VERIFIED,
                true,
                reasons::SIGNATURE_VALID,
                message,
            )
        }
        Some(Err(unverified)) => Verdict::new(
            conditions::VERIFIED,
            false,
            &unverified.reason,
            unverified.message.clone(),
        ),
        None => Verdict {
            status: "Unknown",
            ..Verdict::new(
                conditions::VERIFIED,
                false,
                reasons::VERIFYING,
                "not looked at yet",
            )
        },
    }];
    let has_pool = serving.catalog.pools.contains_key(&valid.pool);
    verdicts.push(match has_pool {
        true => Verdict::new(
            conditions::ADMITTED,
            true,
            reasons::ACCEPTED,
            "the object makes sense",
        ),
        false => {
            let message = format!("there is no GpuPool {:?}", valid.pool);
            Verdict::new(
                conditions::ADMITTED,
                false,
                reasons::POOL_NOT_FOUND,
                message,
            )
        }
    });
    verdicts.push(version_ready(serving, entry, is_serving, ready, &workers));
    (status, verdicts)
}

fn version_ready(
    serving: &Serving,
    entry: &Entry<ModelVersion>,
    is_serving: bool,
    ready: &BTreeSet<String>,
    workers: &[WorkerState],
) -> Verdict {
    let valid = &entry.valid;
    let say = |holds, reason: &str, message: String| {
        Verdict::new(CONDITION_READY, holds, reason, message)
    };
    if is_serving && ready.contains(&valid.name) {
        return say(true, reasons::SERVING, format!("serves {:?}", valid.model));
    }
    if let Some(Err(unverified)) = serving.verdicts.get(&valid.name) {
        return say(false, &unverified.reason, unverified.message.clone());
    }
    for state in workers {
        match state {
            WorkerState::Refused { reason, message } => return say(false, reason, message.clone()),
            WorkerState::Backoff { reason, crashes } => {
                return say(
                    false,
                    reasons::CRASH_LOOP,
                    format!("its worker ended {crashes} times: {reason}"),
                );
            }
            WorkerState::Starting { progress } => {
                return say(false, reasons::STARTING, progress.clone());
            }
            WorkerState::Up | WorkerState::Stopped => {}
        }
    }
    match valid.stage {
        weir_api::model_version::Stage::Retired => {
            say(true, reasons::RETIRED, "is retired, as asked".to_owned())
        }
        weir_api::model_version::Stage::Registered => say(
            true,
            reasons::REGISTERED,
            "is registered, as asked".to_owned(),
        ),
        stage if !super::serve::serves(stage) => {
            let message = format!(
                "stage {} needs traffic to be moved in steps, which `weir up` does not do: it serves Production",
                stage.as_str()
            );
            say(false, reasons::REGISTERED, message)
        }
        _ if is_serving || !workers.is_empty() => say(
            false,
            reasons::STARTING,
            "its worker takes no session yet".to_owned(),
        ),
        _ => say(
            true,
            reasons::SUPERSEDED,
            format!("a higher version serves {:?}", valid.model),
        ),
    }
}

fn pool_status(serving: &Serving, entry: &Entry<GpuPool>) -> (GpuPoolStatus, Vec<Verdict>) {
    let name = &entry.valid.name;
    let views: Vec<_> = serving
        .gateway
        .workers()
        .into_iter()
        .filter(|view| view.pool == *name)
        .collect();
    let connected = views.iter().filter(|view| view.connected).count();
    let total: u64 = views.iter().map(|view| view.kv_tokens).sum();
    let held: u64 = views.iter().map(|view| view.status.kv_tokens).sum();
    let models = serving.placement.serving.values();
    let models = models.filter(|c| {
        serving
            .placed
            .get(&c.name)
            .is_some_and(|p| p.entry.valid.pool == *name)
    });
    let models = models.map(|c| PoolModel {
        model: c.model.clone(),
        stable: i32::try_from(c.version).ok(),
        canary: None,
        canary_weight_percent: None,
        rollback_to: None,
    });
    let engine = &entry.valid.engine;
    let status = GpuPoolStatus {
        observed_generation: Some(entry.generation),
        replicas: Some(count(views.len())),
        ready_replicas: Some(count(connected)),
        selector: Some(format!("{}={name}", weir_api::LABEL_POOL)),
        kv_occupancy: (total > 0).then(|| KvOccupancy {
            percent: i32::try_from(held * 100 / total).unwrap_or(100),
            tokens_held: i64::try_from(held).ok(),
            tokens_total: i64::try_from(total).ok(),
            observed_at: Time(Timestamp::now()),
        }),
        queue_depth: Some(count(serving.gateway.queue_depth(name))),
        models: Some(models.collect()),
        effective_engine: Some(EffectiveEngine {
            max_batch_tokens: i32::try_from(engine.max_batch_tokens).unwrap_or(i32::MAX),
            max_running: i32::try_from(engine.max_running).unwrap_or(i32::MAX),
            kv_bytes: i64::try_from(engine.kv_bytes).unwrap_or(i64::MAX),
            block_tokens: i32::try_from(engine.block_tokens).unwrap_or(i32::MAX),
            kv_dtype: format!("{:?}", engine.kv_dtype).to_lowercase(),
        }),
        conditions: Vec::new(),
    };
    let verdict = match (connected, views.len()) {
        (0, 0) => Verdict::new(CONDITION_READY, true, "Idle", "no version needs it"),
        (up, all) if up == all => Verdict::new(
            CONDITION_READY,
            true,
            "WorkersReady",
            format!("{up} workers take runs"),
        ),
        (up, all) => Verdict::new(
            CONDITION_READY,
            false,
            "WorkersStarting",
            format!("{up} of {all} workers take runs"),
        ),
    };
    (status, vec![verdict])
}

async fn quota_status(
    serving: &Serving,
    entry: &Entry<TenantQuota>,
    now: Timestamp,
) -> (TenantQuotaStatus, Vec<Verdict>) {
    let valid = &entry.valid;
    let now_ms = u64::try_from(now.as_millisecond()).unwrap_or(0);
    let hash = |key: &weir_api::TenantKey| serving.catalog.key_hash(&key.secret, &key.entry);
    let in_force = |key: &&weir_api::TenantKey| {
        hash(key).is_some() && key.not_after.is_none_or(|end| end > now)
    };
    let active = valid.keys.iter().filter(in_force).count();
    let periods = valid
        .windows
        .iter()
        .map(|window| window.period.as_secs())
        .collect();
    // A store that does not answer is reported where it matters, on requests.
    let budget = serving
        .store
        .budget(&valid.tenant, periods, now_ms)
        .await
        .unwrap_or_default();
    let written = |limit: &weir_api::Window| {
        let mut windows = entry.object.spec.windows.iter().flatten();
        let as_written = windows.find(|window| window.period.parse() == Ok(limit.period));
        as_written.map_or_else(
            || format!("{}s", limit.period.as_secs()),
            |window| window.period.0.clone(),
        )
    };
    let windows = valid.windows.iter().zip(&budget.windows);
    let windows = windows.map(|(limit, window)| window_status(limit, written(limit), window));
    let status = TenantQuotaStatus {
        observed_generation: Some(entry.generation),
        active_keys: Some(count(active)),
        windows: Some(windows.collect()),
        live_runs: i32::try_from(budget.live_runs).ok(),
        observed_at: Some(Time(now)),
        conditions: Vec::new(),
    };
    let missing: Vec<&str> = valid
        .keys
        .iter()
        .filter(|key| hash(key).is_none())
        .map(|key| key.name.as_str())
        .collect();
    let verdict = match (missing.is_empty(), active) {
        (false, _) => Verdict::new(
            CONDITION_READY,
            false,
            "KeyMissing",
            format!("no hash in the Secret for keys {}", missing.join(", ")),
        ),
        (true, 0) => Verdict::new(
            CONDITION_READY,
            false,
            "NoKey",
            "no API key is in force: add one with `weir key`",
        ),
        (true, _) => Verdict::new(
            CONDITION_READY,
            true,
            "InForce",
            format!("{active} keys in force"),
        ),
    };
    (status, vec![verdict])
}

fn window_status(
    limit: &weir_api::Window,
    period: String,
    window: &weir_store::BudgetWindow,
) -> WindowStatus {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let at = |ms: u64| Time(Timestamp::from_millisecond(signed(ms)).unwrap_or_default());
    let left = |limit: Option<u64>, used: u64, reserved: u64| {
        limit.map(|limit| signed(limit) - signed(used) - signed(reserved))
    };
    WindowStatus {
        period,
        start: at(window.start_ms),
        end: at(window.start_ms + window.period_s * 1000),
        limit_tokens: limit.tokens.map(signed),
        used_tokens: Some(signed(window.used_tokens)),
        reserved_tokens: Some(signed(window.reserved_tokens)),
        available_tokens: left(limit.tokens, window.used_tokens, window.reserved_tokens),
        limit_micros: limit.micros.map(signed),
        used_micros: Some(signed(window.used_micros)),
        reserved_micros: Some(signed(window.reserved_micros)),
        available_micros: left(limit.micros, window.used_micros, window.reserved_micros),
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
