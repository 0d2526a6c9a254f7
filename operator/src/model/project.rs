//! What a rollout says about a version, as fields and conditions of its status: on a cluster as on one machine.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use weir_api::model_version::{
    Evidence, RejectedVersion, ReservedVersion, Stage as AskedStage, StatusStage, Verdict,
    conditions, reasons,
};
use weir_api::{CONDITION_READY, ModelVersionStatus};
use weir_rollout::decide::{StatusStage as Stage, VersionStatus};
use weir_rollout::record::Rejected;
use weir_rollout::statistics::{GuardrailEvidence, Verdict as Judged};
use weir_rollout::{Record, Reserve};

use crate::status::ConditionNow;

/// The fields that a rollout decides. The rest is the caller's.
#[must_use]
pub fn project(version: &VersionStatus, head: &Record, now: Timestamp) -> ModelVersionStatus {
    let is_stable = head.stable.as_ref() == Some(&version.id);
    ModelVersionStatus {
        stage: Some(match version.stage {
            Stage::Registered => StatusStage::Registered,
            Stage::Shadow => StatusStage::Shadow,
            Stage::Canary => StatusStage::Canary,
            Stage::Production => StatusStage::Production,
            Stage::RolledBack => StatusStage::RolledBack,
            Stage::Retired => StatusStage::Retired,
        }),
        weight_percent: version.weight_percent.map(number),
        step: version.step.map(number),
        steps: version.steps.map(number),
        attempt: version.attempt.clone(),
        rollback_to: version
            .rollback_to
            .as_ref()
            .map(|(id, ready)| ReservedVersion {
                version: number(id.version),
                digest: id.digest.clone(),
                ready_replicas: Some(number(*ready)),
                reserve: is_stable.then(|| reserve(head.reserve).to_owned()),
            }),
        rejected: version.rejected.as_ref().map(rejected),
        evidence: (!version.evidence.is_empty())
            .then(|| version.evidence.iter().map(evidence).collect()),
        minimum_sample_at: version.minimum_sample_in_ms.and_then(|ms| {
            let wait = SignedDuration::from_millis(i64::try_from(ms).ok()?);
            // A tenth of a minute is all that an estimate is worth; finer, the object would change at each look.
            let at = now.checked_add(wait).ok()?.as_second() / 6 * 6;
            Some(Time(Timestamp::from_second(at).ok()?))
        }),
        sole_serving: version.is_sole_serving.then_some(true),
        replicas: Some(number(version.replicas)),
        ready_replicas: Some(number(version.ready_replicas)),
        ..ModelVersionStatus::default()
    }
}

/// What `Ready` says of a version that neither serves nor fails: as was asked, as was judged, or what its rollout is doing.
#[must_use]
pub fn ready(asked: AskedStage, rollout: Option<&VersionStatus>) -> Option<ConditionNow> {
    let say = |holds, reason: &str, message: String| {
        Some(ConditionNow::new(CONDITION_READY, holds, reason, message))
    };
    match asked {
        AskedStage::Retired => {
            return say(true, reasons::RETIRED, "is retired, as asked".to_owned());
        }
        AskedStage::Registered => {
            return say(
                true,
                reasons::REGISTERED,
                "is registered, as asked".to_owned(),
            );
        }
        AskedStage::Shadow | AskedStage::Canary | AskedStage::Production => {}
    }
    let rollout = rollout?;
    if let Some(rejected) = &rollout.rejected {
        let message = format!(
            "attempt {} ended with {}; change the object, or ask for a retry",
            rejected.attempt, rejected.reason
        );
        return say(false, reasons::REJECTED, message);
    }
    let doing = rollout.progressing.as_ref()?;
    say(false, doing.reason, doing.message.clone())
}

/// Progressing, `RolledBack` and `RollbackReady`, as far as they say something.
#[must_use]
pub fn conditions(version: &VersionStatus) -> Vec<ConditionNow> {
    let mut all = Vec::new();
    if let Some(doing) = &version.progressing {
        let (reason, message) = (doing.reason, doing.message.clone());
        all.push(ConditionNow::new(
            conditions::PROGRESSING,
            !version.is_stalled,
            reason,
            message,
        ));
    }
    if let Some(rejected) = &version.rejected {
        let message = match &rejected.evidence {
            Some(proof) => format!(
                "guardrail {}: {}/{} of its runs were bad, {}/{} of the stable version's",
                proof.guardrail, proof.canary[0], proof.canary[1], proof.stable[0], proof.stable[1]
            ),
            None => format!("attempt {} was taken back", rejected.attempt),
        };
        all.push(ConditionNow::new(
            conditions::ROLLED_BACK,
            true,
            &rejected.reason,
            message,
        ));
    }
    if let Some((id, ready)) = &version.rollback_to {
        let message = format!(
            "version {} has {ready} workers ready to take over",
            id.version
        );
        let reason = if version.is_rollback_ready {
            reasons::RESERVE
        } else {
            reasons::STARTING
        };
        all.push(ConditionNow::new(
            conditions::ROLLBACK_READY,
            version.is_rollback_ready,
            reason,
            message,
        ));
    }
    all
}

fn rejected(rejected: &Rejected) -> RejectedVersion {
    let proof = rejected.evidence.as_ref();
    let at = i64::try_from(rejected.at_ms).unwrap_or(i64::MAX);
    RejectedVersion {
        reason: rejected.reason.clone(),
        attempt: rejected.attempt.clone(),
        at: Time(Timestamp::from_millisecond(at).unwrap_or(Timestamp::MAX)),
        guardrail: proof.map(|proof| proof.guardrail.clone()),
        canary: proof.map(|proof| share(proof.canary)),
        stable: proof.map(|proof| share(proof.stable)),
        log_evidence_milli: proof.map(|proof| proof.log_evidence_milli),
    }
}

fn evidence(evidence: &GuardrailEvidence) -> Evidence {
    Evidence {
        guardrail: evidence.guardrail.as_str().to_owned(),
        verdict: match evidence.verdict {
            Judged::Worse => Verdict::Worse,
            Judged::Fine => Verdict::Fine,
            Judged::Unknown => Verdict::Unknown,
        },
        canary: share(evidence.canary),
        stable: share(evidence.stable),
        log_evidence_milli: evidence.log_evidence_milli,
    }
}

fn share([bad, settled]: [u64; 2]) -> String {
    format!("{bad}/{settled}")
}

fn reserve(reserve: Reserve) -> &'static str {
    match reserve {
        Reserve::FullThenOne => "FullThenOne",
        Reserve::Full => "Full",
        Reserve::One => "One",
    }
}

fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
