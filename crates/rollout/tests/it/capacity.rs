//! Situations of a tight pool, and of replicas that are lost.

use weir_rollout::decide::{Action, Lease, Stage};
use weir_rollout::record::HoldReason;
use weir_rollout::{Phase, Plan};

use crate::faults::{edit, request};
use crate::setup::{Behaviour, id, plan, spec};
use crate::situations::{reason, rolling, serving, weight};
use crate::world::World;

#[test]
fn without_room_it_waits_and_says_so() {
    let mut world = serving();
    world.capacity = 2;
    world.occupancy_percent = 80;
    let mut world = rolling(world, Behaviour::HEALTHY, Stage::Production, &plan());
    world.until(20, |_| false);
    assert_eq!(
        (world.phase(), reason(&world)),
        (Phase::Preparing, "WaitingForCapacity")
    );
    assert!(!world.children.contains_key(&id(2)));
    // A quieter hour: one replica carries the load, the other is exchanged.
    world.occupancy_percent = 40;
    assert!(
        world.until(300, |world| world.serves(2)),
        "{:#?}",
        world.head()
    );
    assert!(world.checks.notes["WeightPublished"] >= 4);
}

#[test]
fn two_models_exchange_one_after_the_other() {
    let mut world = serving();
    world.capacity = 3;
    world.lease = Lease::Other("other/v7-1".into());
    let mut world = rolling(world, Behaviour::HEALTHY, Stage::Production, &plan());
    world.until(20, |_| false);
    assert_eq!(reason(&world), "PoolBusy");
    world.lease = Lease::Free;
    assert!(world.until(300, |world| world.serves(2)));
    world.step();
    assert_eq!(world.lease, Lease::Free, "released at its end");
}

#[test]
fn one_replica_and_no_room_needs_permission_for_downtime() {
    for allowed in [false, true] {
        let plan = Plan {
            downtime: allowed,
            ..plan()
        };
        let mut world = World::new(1);
        (world.wanted, world.capacity) = (1, 1);
        world.specs.push(spec(1, Stage::Production, &plan));
        assert!(world.until(60, |world| world.serves(1)));
        let mut world = rolling(world, Behaviour::HEALTHY, Stage::Production, &plan);
        world.until(100, |world| world.serves(2));
        assert_eq!(world.serves(2), allowed, "{:#?}", world.head());
        assert!(allowed || reason(&world) == "WaitingForCapacity");
    }
}

#[test]
fn who_never_comes_gives_back_in_time_what_it_took_from_the_one_that_serves() {
    let endless = Behaviour {
        starts_for_ever: true,
        ..Behaviour::HEALTHY
    };
    // Whether something was taken: the only replica, one of two, none.
    for (wanted, capacity, is_taken) in [(1, 1, true), (2, 2, true), (2, 4, false)] {
        let plan = Plan {
            downtime: true,
            progress_deadline_ms: 60_000,
            ..plan()
        };
        let mut world = World::new(1);
        (world.wanted, world.capacity, world.occupancy_percent) = (wanted, capacity, 20);
        world.specs.push(spec(1, Stage::Production, &plan));
        assert!(world.until(60, |world| world.serves(1)));
        let mut world = rolling(world, endless, Stage::Production, &plan);
        let ready = |world: &World| {
            let child = world.children.get(&id(1));
            child.map_or(0, |child| child.pods.len())
        };
        let is_short = world.until(60, |world| ready(world) < wanted as usize);
        assert_eq!(is_short, is_taken, "{wanted} of {capacity}");
        world.until(200, |world| world.serves(1));
        let rejected = world.head().rejected;
        let is_rejected = rejected
            .iter()
            .any(|rejected| rejected.reason == "ProgressDeadlineExceeded");
        assert_eq!(is_rejected, is_taken, "{rejected:?}");
        world.until(20, |_| false);
        assert_eq!(ready(&world), wanted as usize, "it has everything back");
    }
}

#[test]
fn weight_follows_lost_capacity_down_and_not_up() {
    let mut world = four_replicas(Stage::Canary);
    assert!(world.until(200, |world| weight(world, 2) == 50));
    world.lose_one_pod(&id(2), 12);
    assert!(
        world.until(12, |world| weight(world, 2) == 25),
        "one of four replicas is left"
    );
    world.until(30, |_| false);
    assert_eq!(weight(&world, 2), 25, "it does not rise by itself");
    world.lose_pods(&id(2), 40);
    assert!(world.until(20, |world| weight(world, 2) == 0));
    let hold = world.head().attempt.unwrap().hold.unwrap();
    assert_eq!(hold.reason, HoldReason::CanaryUnavailable);
    request(&mut world, Action::Retry, 2);
    world.step();
    assert_eq!(
        world.head().attempt.unwrap().id,
        "v2-2",
        "a retry has fresh evidence"
    );
}

/// Version 1 serves on four replicas, and version 2 starts.
fn four_replicas(stage: Stage) -> World {
    let mut world = World::new(2);
    (world.wanted, world.capacity) = (4, 8);
    world.specs.push(spec(1, Stage::Production, &plan()));
    assert!(world.until(60, |world| world.serves(1)));
    world.specs.push(spec(2, stage, &plan()));
    world
}

#[test]
fn a_replica_lost_at_full_weight_costs_a_detour_and_a_second_one_holds() {
    let slow = |plan: &mut Plan| plan.final_bake_ms = 1_000_000;
    let mut world = four_replicas(Stage::Production);
    edit(&mut world, 2, slow);
    assert!(world.until(200, |world| weight(world, 2) == 100));
    world.lose_one_pod(&id(2), 12);
    assert!(world.until(12, |world| weight(world, 2) == 75));
    assert!(
        world.until(20, |world| weight(world, 2) == 100),
        "it is back"
    );
    world.lose_one_pod(&id(2), 12);
    assert!(world.until(12, |world| weight(world, 2) == 75));
    world.until(20, |_| false);
    assert_eq!(
        (weight(&world, 2), reason(&world)),
        (75, "CanaryUnavailable"),
        "it does not flap"
    );
}
