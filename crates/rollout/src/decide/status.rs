//! The status of every version: a function of record and observation, recomputed from nothing each time.

use crate::VersionId;
use crate::decide::observation::{Lease, Seen, Stage, Verification};
use crate::decide::progress::Wait;
use crate::decide::state::State;
use crate::record::{Attempt, Phase, Rejected, Room};
use crate::routing::{Table, TableOrder};
use crate::statistics::{GuardrailEvidence, minimum_sample_in_ms};

/// Where a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusStage {
    /// Known; no traffic.
    Registered,
    /// Mirrored runs only.
    Shadow,
    /// In its steps, or moving to 100 percent.
    Canary,
    /// The stable version.
    Production,
    /// Returned to the version before.
    RolledBack,
    /// It left service.
    Retired,
}

/// Why something is as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub message: String,
}

/// What is reported about a version.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent answers to independent questions"
)]
pub struct VersionStatus {
    /// Which.
    pub id: VersionId,
    /// Where it is.
    pub stage: StatusStage,
    /// Its share in the newest table that every live gateway has acknowledged.
    pub weight_percent: Option<u32>,
    /// The step it is in, from 1.
    pub step: Option<u32>,
    /// How many steps its plan has.
    pub steps: Option<u32>,
    /// The attempt that runs.
    pub attempt: Option<String>,
    /// Where its runs would go, and how many replicas are ready there.
    pub rollback_to: Option<(VersionId, u32)>,
    /// Whether that version has the replicas it should keep.
    pub is_rollback_ready: bool,
    /// Why it may not be tried again.
    pub rejected: Option<Rejected>,
    /// What the guardrails say.
    pub evidence: Vec<GuardrailEvidence>,
    /// What they come to together against it, and where that is a breach: thousandths of natural logarithms.
    pub suspicion_milli: Option<[i64; 2]>,
    /// In how many milliseconds the step has its minimum sample.
    pub minimum_sample_in_ms: Option<u64>,
    /// Whether it is the only version that serves, and no other one could.
    pub is_sole_serving: bool,
    /// Replicas it should have.
    pub replicas: u32,
    /// Replicas that are ready.
    pub ready_replicas: u32,
    /// What the rollout is doing; none without one.
    pub progressing: Option<Reason>,
    /// Whether it waits for something that will not come by itself.
    pub is_stalled: bool,
    /// Whether its object is gone and it serves on.
    pub is_orphan: bool,
}

pub(super) fn status(state: &State) -> Vec<VersionStatus> {
    let mut ids: Vec<VersionId> = state.specs.iter().map(|spec| spec.id.clone()).collect();
    ids.extend(state.head.stable.clone());
    ids.extend(state.attempt().map(|attempt| attempt.target.clone()));
    ids.sort();
    ids.dedup();
    let acknowledged = acknowledged(state);
    ids.into_iter()
        .map(|id| version(state, id, acknowledged))
        .collect()
}

/// The newest table that every live gateway has.
fn acknowledged<'a>(state: &'a State) -> Option<&'a Table> {
    let mut oldest: Option<TableOrder> = state.order();
    for gateway in &state.seen.gateways {
        match gateway.seen {
            Seen::Applied { order, .. } => oldest = oldest.min(Some(order)),
            Seen::Unknown | Seen::Nothing => return None,
        }
    }
    state
        .tables()
        .into_iter()
        .find(|table| Some(table.order) == oldest)
}

fn version(state: &State, id: VersionId, acknowledged: Option<&Table>) -> VersionStatus {
    let spec = state.spec(&id);
    let is_stable = state.head.stable.as_ref() == Some(&id);
    let attempt = state.attempt().filter(|attempt| attempt.target == id);
    let view = state.replicas(&id);
    let serves = |id: &VersionId| state.head.weight(&id.digest) > 0;
    let weighted = state
        .head
        .routing
        .as_ref()
        .map_or(0, |table| table.entries.len());
    let refuge = state
        .head
        .refuge()
        .filter(|refuge| is_stable || attempt.is_some() && **refuge != id);
    let refuge = refuge.filter(|refuge| **refuge != id);
    // Whoever takes its object away goes back to the version before: that one has an object, and may serve.
    let may_serve = |id: &VersionId| {
        let spec = state.spec(id);
        spec.is_some_and(|spec| spec.stage != Stage::Retired)
    };
    let has_heir = refuge.is_some_and(may_serve);
    let rejected = spec.and_then(|spec| state.head.rejection(&id.digest, &spec.spec_hash));
    VersionStatus {
        stage: stage(state, &id, attempt),
        weight_percent: acknowledged.map(|table| table.weight(&id.digest)),
        step: attempt.map(|attempt| attempt.step).filter(|step| *step > 0),
        steps: attempt.map(|attempt| attempt.plan.step_count()),
        attempt: attempt.map(|attempt| attempt.id.clone()),
        is_rollback_ready: refuge.is_some_and(|refuge| state.ready(refuge) >= keeps(state, refuge)),
        rollback_to: refuge.map(|refuge| (refuge.clone(), state.ready(refuge))),
        rejected: rejected.cloned(),
        evidence: match (attempt, &state.judgement) {
            (Some(_), Some(judgement)) => judgement.guardrails.clone(),
            _ => Vec::new(),
        },
        suspicion_milli: attempt
            .and(state.judgement.as_ref())
            .map(|judgement| [judgement.log_evidence_milli, judgement.threshold_milli]),
        minimum_sample_in_ms: attempt.and_then(|attempt| minimum_sample(state, attempt)),
        is_sole_serving: serves(&id) && weighted == 1 && !has_heir,
        replicas: view.map_or(0, |view| view.desired),
        ready_replicas: view.map_or(0, |view| view.ready),
        progressing: attempt.map(|attempt| progressing(state, attempt)),
        is_stalled: attempt.is_some_and(|attempt| is_stalled(state, attempt)),
        is_orphan: spec.is_none(),
        id,
    }
}

/// What the version to return to should have ready: all of stable outside an exchange, its reserve after a promotion.
fn keeps(state: &State, refuge: &VersionId) -> u32 {
    if state.head.stable.as_ref() == Some(refuge) {
        state.seen.wanted.max(1)
    } else {
        state.reserve(state.seen.wanted).max(1)
    }
}

fn stage(state: &State, id: &VersionId, attempt: Option<&Attempt>) -> StatusStage {
    let is_retired = state
        .spec(id)
        .is_some_and(|spec| spec.stage == Stage::Retired);
    if state.head.stable.as_ref() == Some(id) {
        return StatusStage::Production;
    }
    match attempt.map(|attempt| attempt.phase) {
        Some(Phase::Shadow) => StatusStage::Shadow,
        Some(Phase::Step | Phase::Final | Phase::Reverting) => StatusStage::Canary,
        Some(Phase::RollingBack) => StatusStage::RolledBack,
        _ if is_retired => StatusStage::Retired,
        _ if state
            .spec(id)
            .is_some_and(|s| state.head.rejection(&id.digest, &s.spec_hash).is_some()) =>
        {
            StatusStage::RolledBack
        }
        _ => StatusStage::Registered,
    }
}

fn minimum_sample(state: &State, attempt: &Attempt) -> Option<u64> {
    let judgement = state
        .judgement
        .as_ref()
        .filter(|_| attempt.phase == Phase::Step)?;
    let needed = u64::from(attempt.plan.limits.min_requests);
    minimum_sample_in_ms(judgement.settled, needed, state.table_age_ms())
}

fn is_stalled(state: &State, attempt: &Attempt) -> bool {
    let too_long = state.waited_ms() >= attempt.plan.progress_deadline_ms;
    attempt.hold.is_some() || (attempt.phase == Phase::Preparing && too_long)
}

fn progressing(state: &State, attempt: &Attempt) -> Reason {
    let say = |reason, message: String| Reason { reason, message };
    if let Some(hold) = &attempt.hold {
        return say(
            hold.reason.as_str(),
            "it stands still until a person promotes, retries or aborts it".to_owned(),
        );
    }
    match attempt.phase {
        Phase::RollingBack => {
            let reason = attempt
                .ending
                .as_ref()
                .map_or("", |ending| ending.reason.as_str());
            return say("RollingBack", format!("it is being removed: {reason}"));
        }
        Phase::Reverting => return say("Reverting", "new runs return to it".to_owned()),
        _ if state.head.paused => return say("Paused", "step and weight do not rise".to_owned()),
        Phase::Preparing => return preparing(state, attempt),
        Phase::Shadow => {
            let pairs = state.seen.shadow.pairs;
            let needed = attempt
                .plan
                .shadow
                .as_ref()
                .map_or(0, |shadow| shadow.min_requests);
            return say(
                "Shadow",
                format!("{pairs} of {needed} mirrored runs compared"),
            );
        }
        _ => {}
    }
    let is_drifted = state
        .spec(&attempt.target)
        .is_some_and(|spec| spec.plan != attempt.plan);
    let drift = if is_drifted {
        "; its plan was edited, which applies to the next attempt"
    } else {
        ""
    };
    let mut reason = in_steps(state, attempt);
    reason.message.push_str(drift);
    reason
}

fn preparing(state: &State, attempt: &Attempt) -> Reason {
    let say = |reason, message: &str| Reason {
        reason,
        message: message.to_owned(),
    };
    let is_verified = state
        .spec(&attempt.target)
        .is_some_and(|s| s.verification == Verification::Verified);
    if !is_verified {
        return say("Verifying", "signature and files are being checked");
    }
    match (attempt.room, &state.seen.lease) {
        (None, Lease::Other(_)) => say("PoolBusy", "another model exchanges replicas in the pool"),
        (None, _) => say(
            "WaitingForCapacity",
            "the pool has no room for its replicas",
        ),
        (Some(Room::Downtime), _) => {
            say("Starting", "the only replica is being exchanged; runs wait")
        }
        (Some(_), _) => say("Starting", "its replicas start and load"),
    }
}

fn in_steps(state: &State, attempt: &Attempt) -> Reason {
    let weight = state.goal_weight(attempt);
    let say = |reason, message: String| Reason { reason, message };
    let missing: Vec<&str> = state
        .seen
        .gateways
        .iter()
        .filter(|gateway| !state.has_head_table(gateway))
        .map(|gateway| gateway.name.as_str())
        .collect();
    if !missing.is_empty() {
        return say(
            "WaitingForGateways",
            format!("not acknowledged by {}", missing.join(", ")),
        );
    }
    if attempt.phase == Phase::Final {
        return say("Promoting", "all new runs move to it".to_owned());
    }
    if !state.is_published(attempt) {
        return say("Scaling", format!("replicas for {weight} percent start"));
    }
    let Some(judgement) = &state.judgement else {
        return say("Baking", format!("at {weight} percent"));
    };
    let needed = attempt.plan.limits.min_requests;
    match state.waits_for(attempt, judgement) {
        None => say(
            "Baking",
            format!("at {weight} percent, as far as its stage lets it go"),
        ),
        Some(Wait::Gateways | Wait::Bake) => say("Baking", format!("at {weight} percent")),
        Some(Wait::Data) => say(
            "NoData",
            format!("{} of {needed} runs settled", judgement.settled),
        ),
        Some(Wait::Suspect) => say(
            "Suspect",
            "there is evidence against it, not enough for a rollback".to_owned(),
        ),
        Some(Wait::Limits) => say(
            "Inconclusive",
            "it does not keep a limit that stable keeps".to_owned(),
        ),
        Some(Wait::Proof) => say(
            "Inconclusive",
            "it is not yet proven to be no worse".to_owned(),
        ),
    }
}
