//! What goes wrong, and what people do, in the middle of a rollout.

use weir_rollout::decide::{Action, Request, Stage};
use weir_rollout::{Phase, Plan};

use crate::setup::{Behaviour, id, plan, spec};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    None,
    Lag,
    GatewayRestart,
    Partition,
    OperatorRestart,
    StaleOperator,
    CanaryLost,
    StableLost,
    PlanEdited,
    Superseded,
    Reverted,
    Recreated,
    PausedAndResumed,
    PromotedByHand,
    Aborted,
    Retried,
    HeadLost,
    ClockJumpsBack,
    ApiAway,
    RevertedWhenServing,
    UndoneWhenServing,
}

impl Fault {
    pub(crate) const ALL: [Self; 21] = [
        Self::None,
        Self::Lag,
        Self::GatewayRestart,
        Self::Partition,
        Self::OperatorRestart,
        Self::StaleOperator,
        Self::CanaryLost,
        Self::StableLost,
        Self::PlanEdited,
        Self::Superseded,
        Self::Reverted,
        Self::Recreated,
        Self::PausedAndResumed,
        Self::PromotedByHand,
        Self::Aborted,
        Self::Retried,
        Self::HeadLost,
        Self::ClockJumpsBack,
        Self::ApiAway,
        Self::RevertedWhenServing,
        Self::UndoneWhenServing,
    ];
}

pub(crate) fn request(world: &mut World, action: Action, version: u32) {
    let number = world.requests.len();
    world.requests.push(Request {
        id: format!("request-{number}"),
        action,
        version,
        attempt: None,
        step: None,
    });
}

/// Called each tick; `since` counts ticks since the fault's moment.
pub(crate) fn inject(world: &mut World, fault: Fault, since: u64) {
    match (fault, since) {
        (Fault::Lag, 0) => world.has_lag = true,
        (Fault::GatewayRestart, 0 | 7) => {
            let tick = world.tick;
            world.gateways[0].restart(tick);
        }
        (Fault::Partition, 0) => world.gateways[1].is_reachable = false,
        (Fault::Partition, 20) => world.gateways[1].is_reachable = true,
        (Fault::OperatorRestart, 0 | 5 | 11) => world.unhear(),
        (Fault::StaleOperator, _) => remember(world, since),
        (Fault::CanaryLost, 0) => {
            if let Some(attempt) = world.head().attempt {
                world.lose_pods(&attempt.target, 20);
            }
        }
        (Fault::StableLost, 0) => {
            if let Some(stable) = world.head().stable {
                world.lose_pods(&stable, 6);
            }
        }
        (Fault::PlanEdited, 0) => edit(world, 2, |plan| plan.limits.min_requests = 40),
        (Fault::Superseded, 0) => world.specs.push(spec(3, Stage::Production, &plan())),
        (Fault::Reverted | Fault::Recreated, 0) => delete(world, 2),
        (Fault::Recreated, 1) => {
            let deleted = world.deleted.pop();
            world.specs.extend(deleted);
        }
        (Fault::PausedAndResumed, 0) => request(world, Action::Pause, 2),
        (Fault::PausedAndResumed, 12) => request(world, Action::Resume, 2),
        (Fault::PromotedByHand, 0) => request(world, Action::Promote, 2),
        (Fault::Aborted, 0) => request(world, Action::Abort, 2),
        (Fault::Retried, 0 | 9) => request(world, Action::Retry, 2),
        (Fault::HeadLost, 0) if world.log.len() > 2 => {
            world.log.pop();
        }
        (Fault::ClockJumpsBack, 0) => world.clock_back_ms = 600_000,
        (Fault::ApiAway, 0) => world.is_api_away = true,
        (Fault::ApiAway, 10) => world.is_api_away = false,
        (Fault::RevertedWhenServing, _) if world.serves(2) && has_spec(world, 2) => {
            delete(world, 2);
        }
        (Fault::UndoneWhenServing, _) if world.serves(2) && !has_asked(world, Action::Undo) => {
            request(world, Action::Undo, 2);
        }
        _ => {}
    }
}

fn has_spec(world: &World, version: u32) -> bool {
    world.specs.iter().any(|spec| spec.id.version == version)
}

fn has_asked(world: &World, action: Action) -> bool {
    world
        .requests
        .iter()
        .any(|request| request.action == action)
}

fn remember(world: &mut World, since: u64) {
    if since.is_multiple_of(3) {
        let seen = (world.log.clone(), world.observe());
        world.pending_stale = Some((world.tick + 2, seen));
    }
    if let Some((due, _)) = &world.pending_stale
        && *due <= world.tick
    {
        world.stale = world.pending_stale.take().map(|(_, seen)| seen);
    }
}

pub(crate) fn delete(world: &mut World, version: u32) {
    let (gone, left) = world
        .specs
        .drain(..)
        .partition(|spec| spec.id.version == version);
    world.specs = left;
    world.deleted = gone;
    world.withdrawn.push((id(version), world.tick));
}

pub(crate) fn edit(world: &mut World, version: u32, change: impl Fn(&mut Plan)) {
    for old in &mut world.specs {
        if old.id.version == version {
            let mut plan = old.plan.clone();
            change(&mut plan);
            let edited = spec(version, old.stage, &plan);
            old.spec_hash = edited.spec_hash;
            old.plan = plan;
        }
    }
}

/// How version 2 differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Identical,
    FailsMore,
    FailsAlways,
    FailsFromAMomentOn,
    Late,
    Crashes,
    Unsigned,
    CannotStart,
}

impl Class {
    pub(crate) const ALL: [Self; 9] = [
        Self::Identical,
        Self::Identical,
        Self::FailsMore,
        Self::FailsAlways,
        Self::FailsFromAMomentOn,
        Self::Late,
        Self::Crashes,
        Self::Unsigned,
        Self::CannotStart,
    ];

    pub(crate) fn behaviour(self) -> Behaviour {
        let healthy = Behaviour::HEALTHY;
        match self {
            Self::Identical | Self::FailsFromAMomentOn => healthy,
            Self::FailsMore => Behaviour {
                errors_ppm: 50_000,
                ..healthy
            },
            Self::FailsAlways => Behaviour {
                errors_ppm: 1_000_000,
                ..healthy
            },
            Self::Late => Behaviour {
                late_ppm: 200_000,
                ..healthy
            },
            Self::Crashes => Behaviour {
                exits_ppm: 600_000,
                ..healthy
            },
            Self::Unsigned => Behaviour {
                is_signed: false,
                ..healthy
            },
            Self::CannotStart => Behaviour {
                can_start: false,
                ..healthy
            },
        }
    }
}

/// Whether nothing more will happen by itself.
pub(crate) fn is_at_rest(world: &World) -> bool {
    let head = world.head();
    let is_held = head
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.hold.is_some());
    let is_done = head.phase() == Phase::Idle && head.stable.is_some();
    is_held
        || (is_done
            && world
                .last
                .as_ref()
                .is_some_and(|d| d.record.is_none() && d.effects.is_empty()))
}
