//! A version's status.

use std::collections::BTreeSet;

use weir_api::model_version::{Stage, StatusStage, conditions, reasons};
use weir_api::{CONDITION_READY, ModelVersion, ModelVersionStatus};

use super::count;
use crate::up::catalog::Entry;
use crate::up::serve::{Serving, serves};
use crate::up::status::ConditionNow;
use crate::up::supervisor::WorkerState;

/// What is said about a version, conditions apart.
pub(super) fn version_status(
    serving: &Serving,
    entry: &Entry<ModelVersion>,
    ready: &BTreeSet<String>,
) -> (ModelVersionStatus, Vec<ConditionNow>) {
    let valid = &entry.valid;
    let now = serving.placement.serving.get(&valid.model);
    let is_serving = now.is_some_and(|now| now.name == valid.name);
    let workers = serving
        .workers
        .iter()
        .filter(|(_, worker)| worker.version == valid.name);
    let workers: Vec<WorkerState> = workers
        .map(|(_, worker)| worker.state.borrow().clone())
        .collect();
    let verified = serving
        .verdicts
        .get(&valid.name)
        .and_then(|verdict| verdict.as_ref().ok());
    let of_model = serving
        .placed
        .values()
        .filter(|placed| placed.entry.valid.model == valid.model);
    let status = ModelVersionStatus {
        observed_generation: Some(entry.generation),
        stage: Some(match (is_serving, valid.stage) {
            (true, _) => StatusStage::Production,
            (false, Stage::Retired) => StatusStage::Retired,
            (false, _) => StatusStage::Registered,
        }),
        weight_percent: Some(if is_serving { 100 } else { 0 }),
        manifest_digest: verified.map(|verified| verified.digest.clone()),
        signer: verified.map(|verified| verified.signer.clone()),
        sole_serving: is_serving.then_some(of_model.count() == 1),
        replicas: Some(count(workers.len())),
        ready_replicas: Some(count(
            workers
                .iter()
                .filter(|state| **state == WorkerState::Up)
                .count(),
        )),
        ..ModelVersionStatus::default()
    };
    let conditions = vec![
        version_verified(serving, entry),
        version_admitted(serving, entry),
        version_ready(serving, entry, is_serving, ready, &workers),
    ];
    (status, conditions)
}

fn version_verified(serving: &Serving, entry: &Entry<ModelVersion>) -> ConditionNow {
    let say = |holds, reason: &str, message: String| {
        ConditionNow::new(conditions::VERIFIED, holds, reason, message)
    };
    match serving.verdicts.get(&entry.valid.name) {
        Some(Ok(verified)) => say(
            true,
            reasons::SIGNATURE_VALID,
            format!("signed by key {:?}", verified.signer),
        ),
        Some(Err(unverified)) => say(false, &unverified.reason, unverified.message.clone()),
        None => ConditionNow {
            status: "Unknown",
            ..say(false, reasons::VERIFYING, "not looked at yet".to_owned())
        },
    }
}

fn version_admitted(serving: &Serving, entry: &Entry<ModelVersion>) -> ConditionNow {
    let pool = &entry.valid.pool;
    if serving.catalog.pools.contains_key(pool) {
        return ConditionNow::new(
            conditions::ADMITTED,
            true,
            reasons::ACCEPTED,
            "the object makes sense",
        );
    }
    let message = format!("there is no GpuPool {pool:?}");
    ConditionNow::new(
        conditions::ADMITTED,
        false,
        reasons::POOL_NOT_FOUND,
        message,
    )
}

fn version_ready(
    serving: &Serving,
    entry: &Entry<ModelVersion>,
    is_serving: bool,
    ready: &BTreeSet<String>,
    workers: &[WorkerState],
) -> ConditionNow {
    let valid = &entry.valid;
    let say = |holds, reason: &str, message: String| {
        ConditionNow::new(CONDITION_READY, holds, reason, message)
    };
    if is_serving && ready.contains(&valid.name) {
        return say(true, reasons::SERVING, format!("serves {:?}", valid.model));
    }
    if let Some(Err(unverified)) = serving.verdicts.get(&valid.name) {
        return say(false, &unverified.reason, unverified.message.clone());
    }
    for state in workers {
        match state {
            WorkerState::Refused {
                reason, message, ..
            } => return say(false, reason, message.clone()),
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
        Stage::Retired => say(true, reasons::RETIRED, "is retired, as asked".to_owned()),
        Stage::Registered => say(
            true,
            reasons::REGISTERED,
            "is registered, as asked".to_owned(),
        ),
        stage if !serves(stage) => {
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
