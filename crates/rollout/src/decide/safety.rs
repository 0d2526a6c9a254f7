//! Checks that protect users: breach, withdrawal, supersession, lost capacity, holds.

use crate::decide::next::{Next, Rejection};
use crate::decide::observation::{Stage, Verification};
use crate::decide::state::State;
use crate::record::{Attempt, HoldReason, Phase, Proof, Room};
use crate::statistics::{ShadowVerdict, after_promotion, judge_shadow};
use crate::{OnBreach, VersionId};

/// Exits of canary workers in one step that are no coincidence.
const CRASH_LOOP_EXITS: u32 = 3;
/// Starts that every replica failed.
const START_FAILURES: u32 = 3;
/// How long a canary may be short of replicas before its weight follows.
const SHORT_MS: u64 = 30_000;
/// How long it may have none.
const NONE_READY_MS: u64 = 60_000;

/// What ends an attempt with a rejection.
struct Harm {
    reason: String,
    proof: Option<Proof>,
    message: String,
    /// Whether the plan may freeze it instead.
    may_hold: bool,
}

/// A breach sends all new runs back in the same record that rejects the version.
pub(super) fn breach(state: &State) -> Option<Next> {
    let attempt = state.attempt()?;
    if matches!(attempt.phase, Phase::RollingBack | Phase::Reverting) {
        return None;
    }
    let checks: [fn(&State, &Attempt) -> Option<Harm>; 7] = [
        unsigned,
        crash_loop,
        worse_than_stable,
        gross,
        start_failed,
        never_came,
        harmful_in_shadow,
    ];
    let found = checks.iter().find_map(|check| check(state, attempt));
    let harm = found.or_else(|| emergency(state))?;
    let may_hold = harm.may_hold && attempt.plan.on_breach == OnBreach::Hold;
    if !may_hold {
        return Some(state.roll_back(
            attempt,
            &harm.reason,
            Rejection::By(harm.proof),
            harm.message,
        ));
    }
    let is_frozen = attempt
        .hold
        .as_ref()
        .is_some_and(|h| h.reason == HoldReason::GuardrailBreached);
    (!is_frozen).then(|| state.held(attempt, HoldReason::GuardrailBreached, harm.message))
}

fn unsigned(state: &State, attempt: &Attempt) -> Option<Harm> {
    let Verification::Refused(reason) = &state.spec(&attempt.target)?.verification else {
        return None;
    };
    Some(Harm {
        reason: reason.clone(),
        proof: None,
        message: "its signature is not, or no longer, valid".to_owned(),
        may_hold: false,
    })
}

fn crash_loop(state: &State, attempt: &Attempt) -> Option<Harm> {
    if !matches!(attempt.phase, Phase::Step | Phase::Final | Phase::Shadow) {
        return None;
    }
    let exits = |id: &VersionId| {
        let view = state.replicas(id);
        view.map_or((0, 1), |view| (view.exits, view.desired.max(1)))
    };
    let (canary, canary_replicas) = exits(&attempt.target);
    let (stable, stable_replicas) = state.head.stable.as_ref().map_or((0, 1), exits);
    let per_replica_more = u64::from(canary) * u64::from(stable_replicas)
        > u64::from(stable) * u64::from(canary_replicas);
    (canary >= CRASH_LOOP_EXITS && per_replica_more).then(|| Harm {
        reason: "CrashLoop".to_owned(),
        proof: None,
        message: format!("its workers exited {canary} times in this step, stable's {stable} times"),
        may_hold: true,
    })
}

fn worse_than_stable(state: &State, _: &Attempt) -> Option<Harm> {
    let breach = state.judgement.as_ref()?.breach.as_ref()?;
    let Proof { canary, stable, .. } = breach.proof;
    Some(Harm {
        reason: "GuardrailBreached".to_owned(),
        message: format!(
            "guardrail {}: {}/{} runs were bad, {}/{} of stable's",
            breach.guardrail.as_str(),
            canary[0],
            canary[1],
            stable[0],
            stable[1]
        ),
        proof: Some(breach.proof.clone()),
        may_hold: true,
    })
}

/// At 100 percent nothing is left to compare with.
fn gross(state: &State, attempt: &Attempt) -> Option<Harm> {
    let digest = &attempt.target.digest;
    if attempt.phase != Phase::Final || state.head.weight(digest) < 100 {
        return None;
    }
    let counts = state.counts(digest);
    let limit = attempt.plan.limits.error_rate_ppm;
    after_promotion(&counts.error_blocks, limit).then(|| Harm {
        reason: "GuardrailBreached".to_owned(),
        proof: Some(Proof {
            guardrail: "errors".to_owned(),
            canary: [counts.errors.bad, counts.errors.runs],
            stable: [0, 0],
            log_evidence_milli: crate::statistics::threshold_milli(1_000),
        }),
        message: "it fails far more often than its limit at full weight".to_owned(),
        may_hold: true,
    })
}

fn start_failed(state: &State, attempt: &Attempt) -> Option<Harm> {
    let view = state.replicas(&attempt.target)?;
    let never_ready = attempt.phase == Phase::Preparing && view.ready == 0;
    (never_ready && view.start_failures >= START_FAILURES).then(|| Harm {
        reason: "StartFailed".to_owned(),
        proof: None,
        message: format!(
            "every replica exited {} times before it was ready",
            view.start_failures
        ),
        may_hold: false,
    })
}

/// Stable gave something up for it, and it has nobody who could take over: files that do not come, a device that nobody gives.
fn never_came(state: &State, attempt: &Attempt) -> Option<Harm> {
    let was_taken = matches!(attempt.room, Some(Room::Reduced | Room::Downtime));
    // From when its workers were ordered: until then stable ends its runs, or keeps what it has.
    let view = state.replicas(&attempt.target)?;
    let is_away = attempt.phase == Phase::Preparing && view.ready == 0;
    let deadline_ms = attempt.plan.progress_deadline_ms;
    let is_late = view.none_ready_ms >= deadline_ms;
    (was_taken && is_away && is_late).then(|| Harm {
        reason: "ProgressDeadlineExceeded".to_owned(),
        proof: None,
        message: format!(
            "no replica was ready {} s after the serving version made room for it (spec.rollout.progressDeadline)",
            deadline_ms / 1_000
        ),
        may_hold: false,
    })
}

fn harmful_in_shadow(state: &State, attempt: &Attempt) -> Option<Harm> {
    let shadow = attempt
        .plan
        .shadow
        .as_ref()
        .filter(|_| attempt.phase == Phase::Shadow)?;
    let ShadowVerdict::Harm(proof) = judge_shadow(&state.seen.shadow, shadow, &attempt.plan) else {
        return None;
    };
    Some(Harm {
        reason: "ShadowRegression".to_owned(),
        message: format!("mirrored runs say that it is worse: {}", proof.guardrail),
        proof: Some(proof),
        may_hold: true,
    })
}

/// Gateways were told to return to the rollback version while no record could be written: the record follows.
fn emergency(state: &State) -> Option<Harm> {
    state.is_emergency().then(|| Harm {
        reason: "EmergencyRollback".to_owned(),
        proof: None,
        message: "gateways returned to the rollback version while no record could be written"
            .to_owned(),
        may_hold: false,
    })
}

/// A person took the version back, or lowered how far it may go.
pub(super) fn withdrawn(state: &State) -> Option<Next> {
    let attempt = state.attempt()?;
    let least = match attempt.phase {
        Phase::Preparing | Phase::Shadow => Stage::Shadow,
        Phase::Step => Stage::Canary,
        Phase::Final => Stage::Production,
        Phase::Idle | Phase::RollingBack | Phase::Reverting => return None,
    };
    state.is_below(&attempt.target, least).then(|| {
        let message = "its object was deleted or its stage lowered".to_owned();
        state.roll_back(attempt, "Withdrawn", Rejection::None, message)
    })
}

/// Another version should serve: before the final phase it takes over, with fresh evidence against the same stable version.
pub(super) fn superseded(state: &State) -> Option<Next> {
    let attempt = state.attempt()?;
    if attempt.phase >= Phase::Final {
        return None;
    }
    let target = state.target()?;
    // While its object is being re-created, a lower version does not slip in.
    let is_absent = state.spec(&attempt.target).is_none();
    if is_absent && target.id.version < attempt.target.version {
        return None;
    }
    // A version that is not verified yet may never be: it does not end one that is under way.
    let replaces = target.id != attempt.target && target.verification == Verification::Verified;
    replaces.then(|| {
        let message = format!("version {} took its place", target.id.version);
        state.roll_back(attempt, "Superseded", Rejection::None, message)
    })
}

/// Weight follows capacity down, never up: what is not there cannot serve its share.
pub(super) fn capacity_lost(state: &State) -> Option<Next> {
    let attempt = state.attempt()?;
    let stable = state.head.stable.as_ref()?;
    let weight = state.head.weight(&attempt.target.digest);
    let is_judged = matches!(attempt.phase, Phase::Step | Phase::Final);
    if !is_judged || weight == 0 || attempt.room == Some(Room::Downtime) {
        return None;
    }
    let view = state.replicas(&attempt.target);
    let (ready, short_ms, none_ms) = view.map_or((0, u64::MAX, u64::MAX), |view| {
        (view.ready, view.short_ms, view.none_ready_ms)
    });
    let can_return = state.ready(stable) > 0;
    if ready == 0 && none_ms >= NONE_READY_MS && can_return {
        let message = "no replica has been ready for a minute".to_owned();
        let mut next = state.held(attempt, HoldReason::CanaryUnavailable, message);
        let table = state.split(attempt, stable, 0);
        state.publish(&mut next.record, table);
        return Some(next);
    }
    let lower = 100 * ready / state.basis().max(1);
    let stable_carries = state.serving(stable) >= state.need(100 - lower.min(100));
    let is_short = ready > 0 && ready < state.need(weight) && short_ms >= SHORT_MS;
    if !is_short || lower >= weight || lower == 0 || !stable_carries {
        return None;
    }
    let message =
        format!("{ready} replicas are ready: weight falls from {weight} to {lower} percent");
    let version = attempt.target.version;
    let again = attempt.phase == Phase::Final && attempt.lowered;
    let mut next = if again {
        state.held(attempt, HoldReason::CanaryUnavailable, message)
    } else {
        state.next(state.successor(), version, "CapacityLost", message)
    };
    let table = state.split(attempt, stable, lower);
    state.publish(&mut next.record, table);
    if let Some(attempt) = &mut next.record.attempt {
        attempt.lowered = true;
    }
    Some(next)
}

/// What stops an attempt until a person looks: none of it says that the version is worse.
pub(super) fn hold(state: &State) -> Option<Next> {
    let attempt = state.attempt().filter(|attempt| attempt.hold.is_none())?;
    let held = |reason, message: &str| Some(state.held(attempt, reason, message.to_owned()));
    if let (Phase::Shadow, Some(shadow)) = (attempt.phase, &attempt.plan.shadow)
        && let ShadowVerdict::Differs(_) = judge_shadow(&state.seen.shadow, shadow, &attempt.plan)
    {
        return held(
            HoldReason::ShadowDiffers,
            "its answers differ from stable's, and nothing says whether they are worse",
        );
    }
    let judgement = state.judgement.as_ref()?;
    let is_overridden = attempt
        .overrides
        .iter()
        .any(|o| o.step + 1 >= attempt.step.max(1));
    if judgement.is_skewed {
        held(
            HoldReason::RoutingSkew,
            "the measured share is not the weight: its evidence is void",
        )
    } else if judgement.interferes && !is_overridden {
        held(
            HoldReason::Interference,
            "stable breaks a limit that it kept before the attempt",
        )
    } else {
        None
    }
}
