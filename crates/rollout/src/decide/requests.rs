//! What people ask for. A request is handled once; one that has passed, or cannot be, is refused by an event.

use crate::decide::idle::{new_attempt, start_revert};
use crate::decide::next::{Next, Rejection, reject};
use crate::decide::observation::{Action, Request, VersionSpec};
use crate::decide::progress::{allow, into_steps};
use crate::decide::state::State;
use crate::record::{Attempt, HoldReason, Phase};
use crate::{Record, VersionId};

/// What a request comes to: the next record, or why not.
type Outcome = Result<Next, &'static str>;

/// The oldest request that was not handled yet.
pub(super) fn handle(state: &State) -> Option<Next> {
    let handled = &state.head.handled_requests;
    let request = state
        .seen
        .requests
        .iter()
        .find(|request| !handled.contains(&request.id))?;
    let outcome = match request.action {
        Action::Pause => Ok(pause(state, request)),
        Action::Resume => Ok(resume(state, request)),
        Action::Promote | Action::PromoteFull => promote(state, request),
        Action::Abort => abort(state, request),
        Action::Retry => retry(state, request),
        Action::Undo => undo(state, request),
    };
    let mut next = outcome.unwrap_or_else(|why| {
        let message = format!("request \"{}\" was refused: {why}", request.id);
        state.next(
            state.successor(),
            request.version,
            "RequestRefused",
            message,
        )
    });
    next.record.handled_requests.push(request.id.clone());
    next.record.bound();
    Some(next)
}

fn pause(state: &State, request: &Request) -> Next {
    let mut record = state.successor();
    record.paused = true;
    let message = "step and weight do not rise until it is resumed".to_owned();
    state.next(record, request.version, "Paused", message)
}

/// The bake did not go on during the pause: a new table of the same weights starts it again.
fn resume(state: &State, request: &Request) -> Next {
    let mut record = state.successor();
    record.paused = false;
    let baking = state
        .attempt()
        .filter(|a| matches!(a.phase, Phase::Step | Phase::Final));
    if let (true, Some(attempt), Some(stable)) = (state.head.paused, baking, &state.head.stable) {
        let weight = state.head.weight(&attempt.target.digest);
        let is_present = state
            .head
            .routing
            .as_ref()
            .is_some_and(|table| table.step == state.split(attempt, stable, weight).step);
        if weight > 0 && is_present {
            let table = state.split(attempt, stable, weight);
            state.publish(&mut record, table);
        }
        let at_ms = record.at_ms;
        if let Some(attempt) = &mut record.attempt {
            attempt.entered_at_ms = at_ms;
        }
    }
    state.next(
        record,
        request.version,
        "Resumed",
        "the rollout goes on".to_owned(),
    )
}

/// The attempt a request is about, if it is still there.
fn attempt_of<'a>(state: &'a State, request: &Request) -> Result<&'a Attempt, &'static str> {
    let attempt = state
        .attempt()
        .ok_or("no rollout of this model is running")?;
    if request.version != attempt.target.version {
        return Err("another version is being rolled out");
    }
    if request.attempt.as_ref().is_some_and(|id| *id != attempt.id) {
        return Err("its attempt has passed");
    }
    if request.step.is_some_and(|step| step != attempt.step) {
        return Err("its step has passed");
    }
    Ok(attempt)
}

/// Passes bake, sample size, suspicion and missing proof of the step; never signature, readiness, capacity, acknowledgement
/// or a breach, which come first or are guarded elsewhere.
fn promote(state: &State, request: &Request) -> Outcome {
    let attempt = attempt_of(state, request)?;
    if state.head.paused {
        return Err("the rollout is paused: resume it first");
    }
    match attempt.hold.as_ref().map(|hold| hold.reason) {
        Some(HoldReason::GuardrailBreached) => {
            return Err("a guardrail is breached: retry or abort");
        }
        Some(HoldReason::RoutingSkew) => return Err("its evidence is void: retry"),
        Some(HoldReason::CanaryUnavailable) => return Err("it has no ready replica: retry"),
        Some(HoldReason::ShadowDiffers | HoldReason::Interference) | None => {}
    }
    let passed = match attempt.phase {
        Phase::Shadow => 0,
        Phase::Step if !state.is_published(attempt) => {
            return Err("the step's weight is not in force yet");
        }
        Phase::Step if !state.is_acknowledged_by_reachable() => {
            return Err("a gateway has not acknowledged the step's weight yet");
        }
        Phase::Step => attempt.step,
        _ => return Err("the rollout is in no step that could be passed"),
    };
    let to = match request.action {
        Action::PromoteFull => attempt.plan.step_count() + 1,
        _ => passed + 1,
    };
    let too_far = "the version's stage does not let it go further: raise spec.stage";
    let mut next = into_steps(state, attempt, to).ok_or(too_far)?;
    if let Some(attempt) = &mut next.record.attempt {
        for step in passed..to {
            allow(attempt, step, &request.id);
        }
    }
    Ok(next)
}

fn abort(state: &State, request: &Request) -> Outcome {
    let attempt = attempt_of(state, request)?;
    if matches!(attempt.phase, Phase::RollingBack | Phase::Reverting) {
        return Err("the rollout is ending already");
    }
    let message = format!("aborted by request \"{}\"", request.id);
    Ok(state.roll_back(attempt, "Aborted", Rejection::without_proof(), message))
}

/// A new attempt: fresh evidence, a fresh bound on false alarms, the present plan.
fn retry(state: &State, request: &Request) -> Outcome {
    let is_asked = |id: &VersionId| id.version == request.version;
    let spec = state.specs.iter().find(|spec| is_asked(&spec.id));
    let spec = spec.ok_or("there is no object of this version")?;
    let mut record = state.successor();
    record.rejected.retain(|rejected| rejected.id != spec.id);
    let was_rejected = record.rejected.len() < state.head.rejected.len();
    let running = state.attempt().filter(|attempt| attempt.target == spec.id);
    match running.map(|attempt| attempt.phase) {
        Some(Phase::Preparing | Phase::Shadow | Phase::Step | Phase::Final) => {
            restart(state, &mut record, spec);
        }
        _ if was_rejected => {}
        _ => return Err("the version is neither rejected nor being rolled out"),
    }
    let message = "it is tried again with fresh evidence".to_owned();
    Ok(state.next(record, request.version, "Retried", message))
}

fn restart(state: &State, record: &mut Record, spec: &VersionSpec) {
    let attempt = new_attempt(state, spec, Phase::Preparing);
    if let Some(stable) = &state.head.stable
        && state.head.weight(&stable.digest) < 100
    {
        let rollback = state.head.rollback_to.as_ref();
        record.routing = Some(state.whole(stable, rollback, &spec.plan.limits));
    }
    record.mirror = None;
    record.attempt = Some(attempt);
}

/// Rejects stable and returns to the version before.
fn undo(state: &State, request: &Request) -> Outcome {
    if state.attempt().is_some() {
        return Err("a rollout is running: abort it first");
    }
    let stable = state.head.stable.as_ref().ok_or("no version serves")?;
    if stable.version != request.version {
        return Err("it is not the version that serves");
    }
    let mut next = start_revert(state, stable).ok_or("there is no version to return to")?;
    let attempt = next.record.attempt.clone().expect("a revert is an attempt");
    reject(&mut next.record, state, stable, &attempt, ("Undone", None));
    Ok(next)
}
