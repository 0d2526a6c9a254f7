//! Rows of the table of situations, each as a short story in a world without chance.

use weir_rollout::decide::{Action, Effect, Seen, Stage, StatusStage, VersionStatus};
use weir_rollout::record::{HoldReason, Room};
use weir_rollout::{OnBreach, Phase, Plan, Policy, Promote};

use crate::faults::{Class, delete, edit, request};
use crate::gateway::Gateway;
use crate::setup::{Behaviour, id, plan, spec, with_shadow};
use crate::world::World;

/// A world in which version 1 serves.
pub(crate) fn serving() -> World {
    let mut world = World::new(1);
    world.specs.push(spec(1, Stage::Production, &plan()));
    assert!(world.until(60, |world| world.serves(1)));
    for _ in 0..4 {
        world.step();
    }
    world
}

/// Version 2 starts as `behaviour` under `plan`.
pub(crate) fn rolling(mut world: World, behaviour: Behaviour, stage: Stage, plan: &Plan) -> World {
    world.behaviours.insert(id(2).digest, behaviour);
    world.specs.push(spec(2, stage, plan));
    world.step();
    world
}

pub(crate) fn healthy(plan: &Plan) -> World {
    rolling(serving(), Behaviour::HEALTHY, Stage::Production, plan)
}

pub(crate) fn in_step(step: u32) -> World {
    let mut world = healthy(&plan());
    let is_there = |world: &World| world.head().attempt.is_some_and(|a| a.step == step);
    assert!(world.until(100, is_there), "{:#?}", world.last);
    world
}

pub(crate) fn status(world: &World, version: u32) -> VersionStatus {
    let decision = world.last.as_ref().unwrap();
    decision
        .status
        .iter()
        .find(|status| status.id.version == version)
        .unwrap()
        .clone()
}

pub(crate) fn reason(world: &World) -> &'static str {
    status(world, 2)
        .progressing
        .map_or("", |reason| reason.reason)
}

fn last_outcome(world: &World) -> String {
    world.head().history.last().unwrap().outcome.clone()
}

pub(crate) fn weight(world: &World, version: u32) -> u32 {
    world.head().weight(&id(version).digest)
}

#[test]
fn a_healthy_version_passes_every_step_and_keeps_the_one_before_warm() {
    let mut world = healthy(&with_shadow(plan()));
    let mut weights = vec![];
    let mut phases = vec![];
    let mut frozen = vec![];
    for _ in 0..200 {
        world.step();
        weights.push(weight(&world, 2));
        phases.push(world.phase());
        if world.phase() == Phase::Final {
            let attempt = world.head().attempt.unwrap();
            frozen = attempt
                .done
                .iter()
                .map(|stratum| (stratum.step, stratum.weight))
                .collect();
        }
        if world.serves(2) {
            break;
        }
    }
    weights.dedup();
    phases.dedup();
    assert_eq!(weights, [0, 5, 25, 50, 100]);
    assert_eq!(
        frozen,
        [(1, 5), (2, 25), (3, 50)],
        "evidence of ended steps is kept"
    );
    assert_eq!(
        phases,
        [
            Phase::Preparing,
            Phase::Shadow,
            Phase::Step,
            Phase::Final,
            Phase::Idle
        ]
    );
    world.until(10, |_| false);
    let status = status(&world, 2);
    assert_eq!(
        (status.stage, status.weight_percent),
        (StatusStage::Production, Some(100))
    );
    assert_eq!(
        status.rollback_to,
        Some((id(1), 2)),
        "all its replicas for an hour"
    );
    assert!(status.is_rollback_ready && !status.is_sole_serving);
    world.until(800, |_| false);
    assert_eq!(world.children[&id(1)].desired, 1, "then one");
    // Without an object nobody could follow it.
    world.specs.retain(|spec| spec.id.version != 1);
    world.until(2, |_| false);
    assert!(self::status(&world, 2).is_sole_serving);
}

#[test]
fn a_breach_sends_everything_back_in_one_record_and_stays_rejected() {
    let failing = Class::FailsAlways.behaviour();
    let mut world = rolling(serving(), failing, Stage::Production, &plan());
    assert!(world.until(100, |world| !world.head().rejected.is_empty()));
    let rejected = world.head().rejected[0].clone();
    assert_eq!(
        (rejected.id, rejected.reason.as_str()),
        (id(2), "GuardrailBreached")
    );
    assert_eq!(rejected.evidence.unwrap().guardrail, "errors");
    assert!(world.until(60, |world| world.phase() == Phase::Idle));
    // Re-applying the same YAML, or lowering and raising the stage, changes nothing.
    delete(&mut world, 2);
    world.until(10, |_| false);
    let again = world.deleted.pop();
    world.specs.extend(again);
    world.until(30, |_| false);
    assert_eq!(
        (world.phase(), world.children.contains_key(&id(2))),
        (Phase::Idle, false)
    );
    assert_eq!(status(&world, 2).stage, StatusStage::RolledBack);
    // A change of the spec is another try.
    world.behaviours.insert(id(2).digest, Behaviour::HEALTHY);
    edit(&mut world, 2, |plan| plan.final_bake_ms = 10_000);
    assert!(world.until(200, |world| world.serves(2)));
}

#[test]
fn on_breach_hold_freezes_until_a_person_retries_or_aborts() {
    let plan = Plan {
        on_breach: OnBreach::Hold,
        ..plan()
    };
    let failing = Class::FailsAlways.behaviour();
    let mut world = rolling(serving(), failing, Stage::Production, &plan);
    let is_held = |world: &World| world.head().attempt.is_some_and(|a| a.hold.is_some());
    assert!(world.until(100, is_held));
    let hold = world.head().attempt.unwrap().hold.unwrap();
    assert_eq!(hold.reason, HoldReason::GuardrailBreached);
    assert!(status(&world, 2).is_stalled);
    request(&mut world, Action::Promote, 2);
    world.step();
    assert_eq!(
        world.checks.notes["RequestRefused"], 1,
        "no promotion over an active breach"
    );
    request(&mut world, Action::Abort, 2);
    assert!(world.until(60, |world| world.phase() == Phase::Idle));
    assert_eq!(last_outcome(&world), "Aborted");
}

#[test]
fn a_newer_version_takes_over_with_fresh_evidence() {
    let mut world = in_step(2);
    world.specs.push(spec(3, Stage::Production, &plan()));
    assert!(world.until(200, |world| world.serves(3)));
    let head = world.head();
    let outcomes: Vec<&str> = head.history.iter().map(|e| e.outcome.as_str()).collect();
    assert_eq!(outcomes, ["Promoted", "Superseded", "Promoted"]);
    assert!(head.rejected.is_empty(), "superseded is not rejected");
    assert_eq!(
        head.rollback_to,
        Some(id(1)),
        "the version that served before, not the one that never did"
    );
}

#[test]
fn from_the_final_phase_on_the_running_one_ends_first() {
    let mut world = healthy(&plan());
    assert!(world.until(100, |world| world.phase() == Phase::Final));
    world.specs.push(spec(3, Stage::Production, &plan()));
    assert!(world.until(200, |world| world.serves(3)));
    assert_eq!(world.head().rollback_to, Some(id(2)));
}

#[test]
fn a_revert_in_mid_rollout_is_no_rejection() {
    let mut world = in_step(2);
    delete(&mut world, 2);
    assert!(world.until(60, |world| world.phase() == Phase::Idle));
    assert_eq!(
        (last_outcome(&world).as_str(), world.head().rejected.len()),
        ("Withdrawn", 0)
    );
    assert!(world.serves(1));
}

#[test]
fn a_re_created_object_does_not_disturb_its_rollout() {
    let mut world = in_step(2);
    let attempt = world.head().attempt.unwrap().id;
    delete(&mut world, 2);
    world.step();
    let again = world.deleted.pop();
    world.specs.extend(again);
    assert!(world.until(200, |world| world.serves(2)));
    assert_eq!(world.head().history.last().unwrap().attempt, attempt);
}

#[test]
fn reverting_after_promotion_switches_before_anything_is_removed() {
    let mut world = healthy(&plan());
    assert!(world.until(200, |world| world.serves(2)));
    world.until(10, |_| false);
    delete(&mut world, 2);
    assert!(world.until(100, |world| world.serves(1)));
    assert_eq!(last_outcome(&world), "Reverted");
    assert_eq!(
        world.head().rollback_to,
        None,
        "nothing is left to return to, and it says so"
    );
    assert!(!status(&world, 1).is_rollback_ready);
}

#[test]
fn undo_rejects_what_serves_and_returns() {
    let mut world = healthy(&plan());
    assert!(world.until(200, |world| world.serves(2)));
    request(&mut world, Action::Undo, 2);
    assert!(world.until(100, |world| world.serves(1)));
    world.until(20, |_| false);
    assert!(world.serves(1), "the undone version is not tried again");
    assert_eq!(world.head().rejected[0].reason, "Undone");
    request(&mut world, Action::Retry, 2);
    assert!(
        world.until(200, |world| world.serves(2)),
        "until a person asks for it"
    );
}

#[test]
fn the_only_serving_version_serves_on_when_its_object_is_deleted() {
    let mut world = serving();
    delete(&mut world, 1);
    world.until(30, |_| false);
    assert!(world.serves(1) && status(&world, 1).is_orphan && status(&world, 1).is_sole_serving);
    assert_eq!(world.children[&id(1)].desired, 2);
}

#[test]
fn a_pause_stops_steps_and_not_a_rollback() {
    let mut world = in_step(2);
    request(&mut world, Action::Pause, 2);
    world.step();
    let before = world.head().attempt.unwrap().step;
    world.until(40, |_| false);
    assert_eq!(world.head().attempt.unwrap().step, before);
    assert_eq!(reason(&world), "Paused");
    world
        .behaviours
        .insert(id(2).digest, Class::FailsAlways.behaviour());
    assert!(world.until(40, |world| world.phase() == Phase::Idle));
    assert_eq!(last_outcome(&world), "GuardrailBreached");
}

#[test]
fn requests_that_have_passed_are_refused_once() {
    let mut world = in_step(2);
    let mut stale = |step: Option<u32>, attempt: Option<&str>| {
        request(&mut world, Action::Promote, 2);
        let request = world.requests.last_mut().unwrap();
        request.step = step;
        request.attempt = attempt.map(str::to_owned);
    };
    stale(Some(1), None);
    stale(None, Some("v2-9"));
    world.step();
    assert_eq!(world.checks.notes["RequestRefused"], 2);
    world.until(3, |_| false);
    assert_eq!(
        world.checks.notes["RequestRefused"], 2,
        "each is handled once"
    );
    request(&mut world, Action::Abort, 9);
    world.step();
    assert_eq!(
        world.checks.notes["RequestRefused"], 3,
        "no attempt at that version"
    );
}

#[test]
fn promote_full_goes_to_the_final_phase_and_says_by_whose_will() {
    let mut world = in_step(1);
    assert!(world.until(40, |world| weight(world, 2) == 5));
    world.until(2, |_| false);
    request(&mut world, Action::PromoteFull, 2);
    world.step();
    let attempt = world.head().attempt.unwrap();
    assert_eq!(attempt.phase, Phase::Final);
    assert!(attempt.overrides.iter().all(|o| o.by == "request-0"));
}

#[test]
fn too_little_data_follows_the_policy() {
    for (policy, want) in [
        (Policy::Hold, "NoData"),
        (Policy::Rollback, ""),
        (Policy::Promote, ""),
    ] {
        let mut quick = plan();
        for step in &mut quick.steps {
            step.max_wait_ms = 60_000;
        }
        let plan = Plan {
            on_no_data: policy,
            on_inconclusive: policy,
            ..quick
        };
        let mut world = serving();
        world.runs_per_tick = 1;
        let mut world = rolling(world, Behaviour::HEALTHY, Stage::Production, &plan);
        world.until(120, |world| {
            world.phase() == Phase::Idle && world.head().history.len() > 1
        });
        assert_eq!(reason(&world), want, "{policy:?}");
        match policy {
            Policy::Hold => assert_eq!(weight(&world, 2), 5),
            Policy::Rollback => assert_eq!(world.head().rejected[0].reason, "NoData"),
            Policy::Promote => assert_eq!(world.head().stable, Some(id(2))),
        }
    }
}

#[test]
fn no_breach_suffices_where_the_plan_says_so() {
    let few = Plan {
        promote: Promote::NoBreach,
        ..plan()
    };
    let runs = |plan: &Plan| {
        let mut world = serving();
        world.runs_per_tick = 20;
        let mut world = rolling(world, Behaviour::HEALTHY, Stage::Production, plan);
        world.until(300, |world| world.phase() == Phase::Final);
        world.tick
    };
    assert!(
        runs(&few) < runs(&plan()),
        "proof takes longer than the absence of harm"
    );
}

#[test]
fn a_canary_stage_stays_at_its_last_step() {
    let mut world = rolling(serving(), Behaviour::HEALTHY, Stage::Canary, &plan());
    world.until(200, |_| false);
    assert_eq!((world.phase(), weight(&world, 2)), (Phase::Step, 50));
    let mut raised = spec(2, Stage::Production, &plan());
    raised.verification = world.specs[1].verification.clone();
    world.specs[1] = raised;
    assert!(
        world.until(60, |world| world.serves(2)),
        "raising the stage lets the same attempt go on"
    );
    assert_eq!(world.head().history.last().unwrap().attempt, "v2-1");
}

#[test]
fn a_shadow_stage_takes_no_run() {
    let mut world = rolling(
        serving(),
        Behaviour::HEALTHY,
        Stage::Shadow,
        &with_shadow(plan()),
    );
    world.until(60, |_| false);
    assert_eq!((world.phase(), weight(&world, 2)), (Phase::Shadow, 0));
    assert!(world.head().mirror.is_some());
}

#[test]
fn what_is_unsigned_never_starts() {
    let unsigned = Class::Unsigned.behaviour();
    let mut world = rolling(serving(), unsigned, Stage::Production, &plan());
    world.until(30, |_| false);
    assert!(!world.children.contains_key(&id(2)) && world.serves(1));
}

#[test]
fn a_gateway_that_does_not_answer_holds_up_the_removal_and_not_the_rollback() {
    let mut world = in_step(2);
    world.until(3, |_| false);
    world.gateways[1].is_reachable = false;
    request(&mut world, Action::Abort, 2);
    world.step();
    assert_eq!(weight(&world, 2), 0, "the weight does not wait");
    world.until(40, |_| false);
    assert!(
        world.children[&id(2)].desired > 0,
        "it may still run the old table"
    );
    assert_eq!(world.phase(), Phase::RollingBack);
    world.gateways[1].is_reachable = true;
    assert!(world.until(40, |world| world.phase() == Phase::Idle));
    assert!(!world.children.contains_key(&id(2)));
}

#[test]
fn the_record_of_an_emergency_rollback_follows() {
    let mut world = in_step(2);
    assert!(world.until(20, |world| weight(world, 2) == 25));
    let emergency = world.head().routing.unwrap().emergency().unwrap();
    for gateway in &mut world.gateways {
        gateway.inbox.push((0, emergency.clone()));
    }
    world.until(2, |_| false);
    assert_eq!((world.phase(), weight(&world, 2)), (Phase::RollingBack, 0));
    assert_eq!(world.head().rejected[0].reason, "EmergencyRollback");
}

#[test]
fn a_gateway_that_joins_acknowledges_before_anything_is_removed() {
    let mut world = in_step(2);
    let mut joins = Gateway::new(9);
    joins.is_reachable = false;
    world.gateways.push(joins);
    request(&mut world, Action::Abort, 2);
    world.until(40, |_| false);
    assert!(world.children[&id(2)].desired > 0);
    world.gateways[2].is_reachable = true;
    assert!(world.until(40, |world| world.phase() == Phase::Idle));
}

#[test]
fn a_version_that_one_gateway_does_not_know_gets_no_weight() {
    let mut world = healthy(&plan());
    world.gateways[1].is_deaf = true;
    world.until(40, |_| false);
    assert_eq!(weight(&world, 2), 0);
    world.gateways[1].is_deaf = false;
    assert!(world.until(200, |world| world.serves(2)));
}

#[test]
fn an_operator_that_remembers_nothing_removes_nothing() {
    let mut world = in_step(2);
    request(&mut world, Action::Abort, 2);
    for gateway in &mut world.gateways {
        gateway.is_reachable = false;
    }
    world.unhear();
    world.until(10, |_| false);
    assert!(
        world
            .gateways
            .iter()
            .all(|gateway| gateway.heard == Seen::Unknown)
    );
    assert!(world.children[&id(2)].desired > 0);
}

#[test]
fn a_lost_head_is_rebuilt_and_the_canary_starts_again() {
    let mut world = in_step(2);
    world.until(2, |_| false);
    world.log.pop();
    world.step();
    assert_eq!(world.checks.rebuilt, 1);
    assert_eq!(world.head().stamp.epoch, 2);
    assert!(world.until(200, |world| world.serves(2)));
}

#[test]
fn an_edited_plan_applies_to_the_next_attempt() {
    let mut world = in_step(2);
    edit(&mut world, 2, |plan| plan.limits.min_requests = 1_000_000);
    world.step();
    let message = status(&world, 2).progressing.unwrap().message;
    assert!(message.contains("edited"), "{message}");
    assert!(world.until(100, |world| world.serves(2)));
}

#[test]
fn the_room_of_an_attempt_is_granted_in_its_own_record() {
    let world = in_step(1);
    let granted = world
        .log
        .iter()
        .find_map(|record| record.attempt.as_ref()?.room);
    assert_eq!(granted, Some(Room::Beside));
}

/// A crash between two effects resumes by looking: the same observation asks for the same again, and for no more.
#[test]
fn effects_are_asked_for_until_they_are_seen() {
    let mut world = healthy(&plan());
    let observation = world.observe();
    let first = world.decide(&observation);
    let second = world.decide(&observation);
    assert_eq!(first, second);
    let scales = |effects: &[Effect]| {
        let scale = |effect: &&Effect| matches!(effect, Effect::Scale { .. });
        effects.iter().filter(scale).count()
    };
    world.until(10, |_| false);
    assert_eq!(
        scales(&world.last.as_ref().unwrap().effects),
        0,
        "what is as it should be is left alone"
    );
}
