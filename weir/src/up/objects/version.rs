//! A version's status.

use std::collections::BTreeSet;

use jiff::Timestamp;
use weir_api::model_version::{StatusStage, conditions, reasons};
use weir_api::{CONDITION_READY, ModelVersion, ModelVersionStatus};
use weir_rollout::decide::VersionStatus;

use crate::up::catalog::Entry;
use crate::up::serve::Serving;
use crate::up::supervisor::WorkerState;
use weir_operator::project as rollout;
use weir_operator::status::ConditionNow;

/// What is said about a version, conditions apart.
pub(super) fn version_status(
    serving: &Serving,
    entry: &Entry<ModelVersion>,
    ready: &BTreeSet<String>,
) -> (ModelVersionStatus, Vec<ConditionNow>) {
    let valid = &entry.valid;
    let workers = serving
        .workers
        .iter()
        .filter(|(_, worker)| worker.version == valid.name);
    let workers: Vec<WorkerState> = workers.map(|(_, worker)| worker.state()).collect();
    let verified = serving
        .verdicts
        .get(&valid.name)
        .and_then(|verdict| verdict.as_ref().ok());
    let rollout = serving.rollout_status(entry);
    let mut status = rollout.map_or_else(
        || ModelVersionStatus {
            stage: Some(StatusStage::Registered),
            weight_percent: Some(0),
            ..ModelVersionStatus::default()
        },
        |(rollout, head)| rollout::project(rollout, head, Timestamp::now()),
    );
    status.observed_generation = Some(entry.generation);
    status.manifest_digest = verified.map(|verified| verified.digest.clone());
    status.signer = verified.map(|verified| verified.signer.clone());
    let mut conditions: Vec<ConditionNow> =
        serving.fetches.condition(&valid.name).into_iter().collect();
    conditions.push(version_verified(serving, entry));
    conditions.push(version_admitted(serving, entry));
    if let Some((rollout, _)) = rollout {
        conditions.extend(rollout::conditions(rollout));
    }
    let rollout = rollout.map(|(rollout, _)| rollout);
    conditions.push(version_ready(serving, entry, rollout, ready, &workers));
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
    if let Some(message) = serving.misplaced(entry) {
        let reason = reasons::BASE_MISMATCH;
        return ConditionNow::new(conditions::ADMITTED, false, reason, message);
    }
    if let Some(message) = serving.unservable(entry) {
        let reason = reasons::INVALID_SPEC;
        return ConditionNow::new(conditions::ADMITTED, false, reason, message);
    }
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
    rollout: Option<&VersionStatus>,
    ready: &BTreeSet<String>,
    workers: &[WorkerState],
) -> ConditionNow {
    let valid = &entry.valid;
    let say = |holds, reason: &str, message: String| {
        ConditionNow::new(CONDITION_READY, holds, reason, message)
    };
    let stable = serving.stable.get(&valid.model);
    let is_serving = stable.is_some_and(|stable| stable.name == valid.name);
    if is_serving && ready.contains(&valid.name) {
        return say(true, reasons::SERVING, format!("serves {:?}", valid.model));
    }
    if let Some(Err(unverified)) = serving.verdicts.get(&valid.name) {
        return say(false, &unverified.reason, unverified.message.clone());
    }
    if let Some(base) = &valid.manifest.adapter_of
        && let Some((reason, message)) = serving.workers.against_adapter(base, &valid.name)
    {
        return say(false, &reason, message);
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
    if let Some(ready) = rollout::ready(valid.stage, rollout) {
        return ready;
    }
    if stable.is_some_and(|stable| stable.version > valid.version) {
        let message = format!("a higher version serves {:?}", valid.model);
        return say(true, reasons::SUPERSEDED, message);
    }
    say(
        false,
        reasons::STARTING,
        "its worker takes no session yet".to_owned(),
    )
}
