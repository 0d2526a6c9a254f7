//! Checks that go on: from preparing to promotion, and back to rest.

use crate::decide::next::{Next, Rejection, end};
use crate::decide::observation::{Stage, Verification};
use crate::decide::state::State;
use crate::record::{Attempt, Mirror, Override, Phase, Room};
use crate::statistics::{Judgement, ShadowVerdict, judge_shadow};
use crate::{Plan, Policy, Promote, VersionId};

/// The next step of the attempt.
pub(super) fn progress(state: &State) -> Option<Next> {
    let attempt = state.attempt()?;
    match attempt.phase {
        Phase::RollingBack => return rolled_back(state, attempt),
        Phase::Reverting => return reverting(state, attempt),
        _ => {}
    }
    if attempt.room.is_none() {
        return grant_room(state, attempt);
    }
    if state.head.paused || attempt.hold.is_some() {
        return None;
    }
    match attempt.phase {
        Phase::Preparing => prepared(state, attempt),
        Phase::Shadow => shadowed(state, attempt),
        Phase::Step => publish(state, attempt).or_else(|| advance(state, attempt)),
        Phase::Final => publish(state, attempt).or_else(|| promote(state, attempt)),
        Phase::Idle | Phase::RollingBack | Phase::Reverting => None,
    }
}

fn grant_room(state: &State, attempt: &Attempt) -> Option<Next> {
    let is_verified = state
        .spec(&attempt.target)
        .is_some_and(|s| s.verification == Verification::Verified);
    if !is_verified && attempt.phase != Phase::Reverting {
        return None;
    }
    let room = state.room(attempt)?;
    let mut record = state.successor();
    if let Some(attempt) = &mut record.attempt {
        attempt.room = Some(room);
    }
    Some(state.next(
        record,
        attempt.target.version,
        "Starting",
        "it has room in the pool".to_owned(),
    ))
}

fn prepared(state: &State, attempt: &Attempt) -> Option<Next> {
    let target = &attempt.target;
    let Some(stable) = &state.head.stable else {
        // The first version serves as soon as it can: there is nothing it could be worse than.
        return (state.serving(target) > 0).then(|| first(state, attempt));
    };
    if attempt.room == Some(Room::Downtime) {
        let is_gone = state.existing(stable) == 0 && state.serving(target) > 0;
        let mut next = state.enter(
            attempt,
            Phase::Final,
            0,
            "the only replica was exchanged".to_owned(),
        );
        if let Some(attempt) = &mut next.record.attempt {
            allow(attempt, 0, "spec.rollout.downtime");
        }
        return is_gone.then_some(next);
    }
    let weight = state.goal_weight(attempt);
    let least = match attempt.room {
        Some(Room::Beside) => state.need(weight),
        _ => 1,
    };
    if state.serving(target) < least {
        return None;
    }
    let Some(shadow) = &attempt.plan.shadow else {
        return into_steps(state, attempt, 1);
    };
    let mut next = state.enter(
        attempt,
        Phase::Shadow,
        0,
        "runs are mirrored to it".to_owned(),
    );
    next.record.mirror = Some(Mirror {
        target: target.clone(),
        percent: shadow.percent,
        max_tokens_per_second: shadow.max_tokens_per_second,
    });
    Some(next)
}

/// The first version of a model.
fn first(state: &State, attempt: &Attempt) -> Next {
    let mut record = state.successor();
    let table = state.whole(&attempt.target, None, &attempt.plan.limits);
    record.routing = Some(table);
    record.stable = Some(attempt.target.clone());
    record.promoted_at_ms = record.at_ms;
    end(&mut record, attempt, "Promoted");
    state.next(
        record,
        attempt.target.version,
        "Promoted",
        "it is the first version".to_owned(),
    )
}

fn shadowed(state: &State, attempt: &Attempt) -> Option<Next> {
    let shadow = attempt.plan.shadow.as_ref()?;
    let verdict = judge_shadow(&state.seen.shadow, shadow, &attempt.plan);
    (verdict == ShadowVerdict::Passed).then(|| into_steps(state, attempt, 1))?
}

/// Into a step, or the final phase after the last one, if the version's stage lets it.
pub(super) fn into_steps(state: &State, attempt: &Attempt, step: u32) -> Option<Next> {
    let allowed = state.spec(&attempt.target)?.stage;
    let is_final = step > attempt.plan.step_count();
    let least = if is_final {
        Stage::Production
    } else {
        Stage::Canary
    };
    if allowed < least {
        return None;
    }
    Some(if is_final {
        state.enter(
            attempt,
            Phase::Final,
            0,
            "all new runs move to it".to_owned(),
        )
    } else {
        let weight = attempt
            .plan
            .step(step)
            .map_or(100, |step| step.weight_percent);
        state.enter(
            attempt,
            Phase::Step,
            step,
            format!("towards {weight} percent"),
        )
    })
}

/// Puts the step's weight into force, or in an exchange as much of it as there are replicas for. A table only says what is
/// true already: its replicas are ready, known by every live gateway, and carry the stamp of the intent.
fn publish(state: &State, attempt: &Attempt) -> Option<Next> {
    let stable = state.head.stable.as_ref()?;
    let goal = state.goal_weight(attempt);
    let present = state.head.weight(&attempt.target.digest);
    let step = state.split(attempt, stable, goal).step;
    let is_of_step = state
        .head
        .routing
        .as_ref()
        .is_some_and(|table| table.step == step);
    // Lowered for want of replicas, a step's weight stays. In the final phase every proof is made: it rises once more, and a
    // second loss holds it.
    let stays = attempt.lowered && attempt.phase == Phase::Step;
    if is_of_step && (present >= goal || stays) {
        return None;
    }
    let weight = reachable_weight(state, attempt, stable, goal)?;
    if weight <= present {
        return None;
    }
    let mut record = state.successor();
    let table = state.split(attempt, stable, weight);
    state.publish(&mut record, table);
    if let Some(attempt) = &mut record.attempt {
        attempt.entered_at_ms = record.at_ms;
    }
    let message = format!("it takes {weight} percent of new runs");
    Some(state.next(record, attempt.target.version, "WeightPublished", message))
}

fn reachable_weight(
    state: &State,
    attempt: &Attempt,
    stable: &VersionId,
    goal: u32,
) -> Option<u32> {
    let target = &attempt.target;
    let serving = state.serving(target);
    let weight = if serving >= state.need(goal) {
        goal
    } else if matches!(attempt.room, Some(Room::Surge | Room::Reduced)) && is_grown(state, target) {
        (100 * serving / state.basis().max(1)).min(goal)
    } else {
        return None;
    };
    let carries = state.serving(stable) >= state.need(100 - weight);
    let is_stamped = |id: &VersionId, weight: u32| {
        weight == 0
            || state
                .replicas(id)
                .is_some_and(|view| view.stamp == state.head.stamp)
    };
    let stamped = is_stamped(target, weight) && is_stamped(stable, 100 - weight);
    (weight > 0 && carries && stamped && state.is_acknowledged_by_reachable()).then_some(weight)
}

/// Whether a version has all the replicas it may have for now.
fn is_grown(state: &State, id: &VersionId) -> bool {
    let desired = state.desired().get(id).copied().unwrap_or(0);
    state.existing(id) == desired && state.ready(id) == desired
}

/// What keeps a step from its end, in the order in which people should see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A gateway has not acknowledged the table.
    Gateways,
    /// The bake is not over.
    Bake,
    /// Too few runs.
    Data,
    /// Evidence against it.
    Suspect,
    /// A limit is not kept.
    Limits,
    /// Not proven fine.
    Proof,
}

impl State<'_> {
    /// Whether the present table is that of the step, with the step's weight or what was left of it.
    pub(super) fn is_published(&self, attempt: &Attempt) -> bool {
        let is_of_step = self
            .head
            .routing
            .as_ref()
            .is_some_and(|table| table.step == attempt.step);
        let weight = self.head.weight(&attempt.target.digest);
        is_of_step && (weight >= self.goal_weight(attempt) || attempt.lowered)
    }

    /// What the present step still waits for.
    pub(super) fn waits_for(&self, attempt: &Attempt, judgement: &Judgement) -> Option<Wait> {
        let plan = &attempt.plan;
        let step = plan.step(attempt.step)?;
        let is_last = attempt.step == plan.step_count();
        let must_be_fine = is_last && plan.promote == Promote::Fine;
        if !self.is_acknowledged_by_reachable() {
            Some(Wait::Gateways)
        } else if self.table_age_ms() < step.bake_ms {
            Some(Wait::Bake)
        } else if judgement.settled < u64::from(plan.limits.min_requests) {
            Some(Wait::Data)
        } else if judgement.is_suspect {
            Some(Wait::Suspect)
        } else if !judgement.keeps_limits {
            Some(Wait::Limits)
        } else if must_be_fine && !judgement.is_fine {
            Some(Wait::Proof)
        } else {
            None
        }
    }
}

fn advance(state: &State, attempt: &Attempt) -> Option<Next> {
    let judgement = state
        .judgement
        .as_ref()
        .filter(|_| state.is_published(attempt))?;
    let Some(wait) = state.waits_for(attempt, judgement) else {
        return into_steps(state, attempt, attempt.step + 1);
    };
    let step = attempt.plan.step(attempt.step)?;
    if state.waited_ms() < step.max_wait_ms {
        return None;
    }
    let (policy, field, reason) = match wait {
        Wait::Gateways | Wait::Bake => return None,
        Wait::Data => (attempt.plan.on_no_data, "spec.rollout.onNoData", "NoData"),
        Wait::Suspect | Wait::Limits | Wait::Proof => {
            let policy = attempt.plan.on_inconclusive;
            (policy, "spec.rollout.onInconclusive", "Inconclusive")
        }
    };
    match policy {
        Policy::Hold => None,
        Policy::Rollback => {
            let message = "the longest wait is over without a verdict".to_owned();
            Some(state.roll_back(attempt, reason, Rejection::without_proof(), message))
        }
        // Never over evidence against it.
        Policy::Promote if judgement.is_suspect => None,
        Policy::Promote => {
            let mut next = into_steps(state, attempt, attempt.step + 1)?;
            if let Some(next) = &mut next.record.attempt {
                allow(next, attempt.step, field);
            }
            Some(next)
        }
    }
}

/// Remembers that a step went on without proof, and by whose will.
pub(super) fn allow(attempt: &mut Attempt, step: u32, by: &str) {
    attempt.overrides.push(Override {
        step,
        by: by.to_owned(),
    });
    if attempt.overrides.len() > Plan::MAX_STEPS + 1 {
        attempt.overrides.remove(0);
    }
}

/// Pointers move here and nowhere else: stable, rollback version and end of the attempt in one record.
fn promote(state: &State, attempt: &Attempt) -> Option<Next> {
    let stable = state.head.stable.clone()?;
    let is_whole = state.head.weight(&attempt.target.digest) == 100;
    let baked = state.table_age_ms() >= attempt.plan.final_bake_ms;
    if !is_whole || !baked || !state.is_acknowledged_by_reachable() {
        return None;
    }
    let mut record = state.successor();
    // A stable version that was taken back is nothing to return to.
    let rollback = (!state.is_leaving(&stable)).then_some(stable);
    let table = state.whole(&attempt.target, rollback.as_ref(), &attempt.plan.limits);
    record.routing = Some(table);
    record.stable = Some(attempt.target.clone());
    record.rollback_to = rollback;
    record.reserve = attempt.plan.reserve;
    record.promoted_at_ms = record.at_ms;
    end(&mut record, attempt, "Promoted");
    Some(state.next(
        record,
        attempt.target.version,
        "Promoted",
        "it is the stable version".to_owned(),
    ))
}

fn rolled_back(state: &State, attempt: &Attempt) -> Option<Next> {
    let is_gone = state.existing(&attempt.target) == 0;
    if !is_gone || !state.is_acknowledged() {
        return None;
    }
    let reason = attempt
        .ending
        .as_ref()
        .map_or("RolledBack", |ending| ending.reason.as_str());
    let mut record = state.successor();
    end(&mut record, attempt, reason);
    Some(state.next(
        record,
        attempt.target.version,
        "RolledBack",
        format!("the attempt ended: {reason}"),
    ))
}

/// Back to the version before: no shadow and no steps, for it served before. A pause does not stop it.
fn reverting(state: &State, attempt: &Attempt) -> Option<Next> {
    let stable = state.head.stable.as_ref()?;
    if attempt.room.is_none() {
        return grant_room(state, attempt);
    }
    if state.head.weight(&attempt.target.digest) < 100 {
        let weight = reachable_weight(state, attempt, stable, 100)
            .filter(|weight| *weight > state.head.weight(&attempt.target.digest))?;
        let mut record = state.successor();
        let table = state.split(attempt, stable, weight);
        state.publish(&mut record, table);
        let message = format!("it takes {weight} percent of new runs again");
        return Some(state.next(record, attempt.target.version, "WeightPublished", message));
    }
    if !state.is_acknowledged() || state.existing(stable) > 0 {
        return None;
    }
    let mut record = state.successor();
    let table = state.whole(&attempt.target, None, &attempt.plan.limits);
    record.routing = Some(table);
    record.stable = Some(attempt.target.clone());
    record.rollback_to = None;
    record.promoted_at_ms = record.at_ms;
    end(&mut record, attempt, "Reverted");
    Some(state.next(
        record,
        attempt.target.version,
        "Reverted",
        "it is the stable version again".to_owned(),
    ))
}
