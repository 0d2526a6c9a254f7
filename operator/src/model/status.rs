//! A version's status: what the rollout decided, what was verified, and what it amounts to. A function of what was seen.

use jiff::Timestamp;
use weir_api::model_version::{StatusStage, conditions, reasons};
use weir_api::{
    CONDITION_READY, CONDITION_RECONCILING, CONDITION_STALLED, FieldProblem, ModelVersion,
    ModelVersionStatus, ValidModelVersion,
};
use weir_rollout::Record;
use weir_rollout::decide::VersionStatus;

use super::project;
use crate::fetches::Progress;
use crate::status::{ConditionNow, stamped};
use crate::verify::Verdict;

/// What is known of a version's object.
pub struct Facts<'a> {
    /// The object.
    pub object: &'a ModelVersion,
    /// Proven, or what is wrong with it.
    pub valid: Result<&'a ValidModelVersion, &'a [FieldProblem]>,
    /// Whether its signature holds; none while that is being found out.
    pub verdict: Option<&'a Verdict>,
    /// Why its pool cannot serve it, if so: a reason and a message.
    pub refusal: Option<(&'static str, String)>,
    /// What the rollout says of it, and all that the rollout remembers.
    pub rollout: Option<(&'a VersionStatus, &'a Record)>,
    /// How far its workers are with files that they fetch.
    pub fetch: Option<&'a Progress>,
    /// Fields of its children that somebody else keeps changing.
    pub contested: &'a [String],
}

/// Fields whose values alone are no news.
pub const MOVING: &[&str] = &["evidence", "minimumSampleAt"];

/// The status.
#[must_use]
pub fn status(facts: &Facts<'_>, now: Timestamp) -> ModelVersionStatus {
    let blank = || ModelVersionStatus {
        stage: Some(StatusStage::Registered),
        weight_percent: Some(0),
        ..ModelVersionStatus::default()
    };
    let rollout = facts.rollout;
    let mut status = rollout.map_or_else(blank, |(version, head)| {
        project::project(version, head, now)
    });
    let verified = facts.verdict.and_then(|verdict| verdict.as_ref().ok());
    let generation = facts.object.metadata.generation;
    status.observed_generation = generation;
    status.manifest_digest = verified.map(|verified| verified.digest.clone());
    status.signer = verified.map(|verified| verified.signer.clone());
    let mut all = vec![verification(facts), admission(facts)];
    all.extend(
        rollout
            .map(|(version, _)| project::conditions(version))
            .unwrap_or_default(),
    );
    all.extend(facts.fetch.map(Progress::condition));
    let ready = readiness(facts);
    all.extend(kstatus(&ready, rollout.map(|(version, _)| version)));
    all.extend(contest(facts.contested));
    all.push(ready);
    let before = facts.object.status.as_ref();
    let before = before.map_or(&[][..], |status| &status.conditions);
    status.conditions = stamped(before, all, generation, now);
    status
}

fn verification(facts: &Facts<'_>) -> ConditionNow {
    let say = |holds, reason: &str, message: String| {
        ConditionNow::new(conditions::VERIFIED, holds, reason, message)
    };
    match facts.verdict {
        Some(Ok(verified)) if verified.is_read => say(
            true,
            reasons::SIGNATURE_VALID,
            format!("signed by key {:?}", verified.signer),
        ),
        Some(Ok(verified)) => say(
            true,
            reasons::SIGNATURE_VALID,
            format!(
                "key {:?} signed every digest; the files are not mounted here, so that each worker checks them before it maps them",
                verified.signer
            ),
        ),
        Some(Err(unverified)) => say(false, &unverified.reason, unverified.message.clone()),
        None => ConditionNow {
            status: "Unknown",
            ..say(
                false,
                reasons::VERIFYING,
                "signature and files are being checked".to_owned(),
            )
        },
    }
}

fn admission(facts: &Facts<'_>) -> ConditionNow {
    let say = |holds, reason: &str, message: String| {
        ConditionNow::new(conditions::ADMITTED, holds, reason, message)
    };
    if let Err(problems) = facts.valid {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return say(false, reasons::INVALID_SPEC, problems.join("; "));
    }
    match &facts.refusal {
        Some((reason, message)) => say(false, reason, message.clone()),
        None => say(true, reasons::ACCEPTED, "the object makes sense".to_owned()),
    }
}

fn readiness(facts: &Facts<'_>) -> ConditionNow {
    let say = |holds, reason: &str, message: String| {
        ConditionNow::new(CONDITION_READY, holds, reason, message)
    };
    let admitted = admission(facts);
    let rollout = facts.rollout.map(|(version, _)| version);
    let is_serving = rollout.is_some_and(|version| {
        version.stage == weir_rollout::decide::StatusStage::Production && version.ready_replicas > 0
    });
    let is_asleep = rollout.is_some_and(|version| {
        version.stage == weir_rollout::decide::StatusStage::Production && version.replicas == 0
    });
    if is_asleep {
        let message = "no worker runs while nobody asks; the first run wakes one".to_owned();
        return say(true, reasons::ASLEEP, message);
    }
    if is_serving {
        return say(
            true,
            reasons::SERVING,
            format!("serves {:?}", facts.object.spec.model),
        );
    }
    if admitted.status == "False" {
        return say(false, &admitted.reason, admitted.message);
    }
    if let Some(Err(unverified)) = facts.verdict {
        return say(false, &unverified.reason, unverified.message.clone());
    }
    if let Some(fetch) = facts.fetch.filter(|fetch| fetch.have == 0) {
        let fetched = fetch.condition();
        return say(false, &fetched.reason, fetched.message);
    }
    if let Some(ready) = project::ready(facts.object.spec.stage, rollout) {
        return ready;
    }
    let head = facts.rollout.map(|(_, head)| head);
    let number = u32::try_from(facts.object.spec.version).unwrap_or(0);
    match head.and_then(|head| head.stable.as_ref()) {
        Some(stable) if stable.version > number => {
            let is_kept = head.and_then(|head| head.rollback_to.as_ref());
            if is_kept.is_some_and(|kept| kept.version == number) {
                return say(true, reasons::RESERVE, "is kept for a rollback".to_owned());
            }
            let message = format!(
                "version {} serves {:?}",
                stable.version, facts.object.spec.model
            );
            say(true, reasons::SUPERSEDED, message)
        }
        _ => say(
            false,
            reasons::STARTING,
            "its workers take no runs yet".to_owned(),
        ),
    }
}

/// kstatus' pair, present only while true.
fn kstatus(ready: &ConditionNow, rollout: Option<&VersionStatus>) -> Vec<ConditionNow> {
    let is_stalled = rollout.is_some_and(|version| version.is_stalled);
    let is_final = matches!(
        ready.reason.as_str(),
        reasons::REJECTED
            | reasons::INVALID_SPEC
            | reasons::POOL_NOT_FOUND
            | reasons::ADAPTERS_UNSUPPORTED
    );
    match (ready.status, is_stalled || is_final) {
        ("True", _) => Vec::new(),
        (_, true) => vec![ConditionNow::new(
            CONDITION_STALLED,
            true,
            &ready.reason,
            ready.message.clone(),
        )],
        (_, false) => vec![ConditionNow::new(
            CONDITION_RECONCILING,
            true,
            &ready.reason,
            ready.message.clone(),
        )],
    }
}

fn contest(fields: &[String]) -> Option<ConditionNow> {
    let message = format!(
        "somebody else keeps changing {}: it is put right at most twice a minute; `kubectl get --show-managed-fields` says who",
        fields.join(", ")
    );
    (!fields.is_empty()).then(|| {
        ConditionNow::new(
            conditions::CONTESTED,
            true,
            reasons::FOREIGN_MANAGER,
            message,
        )
    })
}

#[cfg(test)]
mod tests;
