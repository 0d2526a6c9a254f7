//! Two operators, two gateways and a log: every order of events in a small world, with the real core deciding.
//!
//! One operator may be slow: it carries out at any later time what it decided once, or decides from what it saw then. Tables come late,
//! twice or never, workers come and go, an object is taken away and comes back, a version proves worse at any moment. What happens
//! at once in one operator is one step of the world; that it dies in between is that the rest never happens.

mod world;

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};
use weir_rollout::{Phase, Record};

use self::world::{Known, Mistake, Number, Scope, World};

/// One model's rollouts under a mistake, or none.
struct Pointers {
    known: Known,
    scope: Scope,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// The operator that sees what is does one thing of what follows.
    Act(usize),
    /// The slow one decides on one thing that it will do.
    Decide(usize),
    /// It does it, or dies before.
    Do,
    Die,
    /// What it sees stays as it is now, or catches up.
    FallBehind,
    CatchUp,
    /// A table of the log arrives at a gateway.
    Arrive(usize, Number),
    /// A gateway starts again.
    Restart(usize),
    /// A worker starts and is ready, is ready again, ends, or stops being ready.
    Start(usize),
    Ready(usize),
    Stop(usize),
    Fail(usize),
    /// Version 2 is worse from now on.
    Worsen,
    /// Its object is taken away, and comes back.
    Withdraw,
    Return,
}

impl Model for Pointers {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.known, self.scope)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.of_operators(world, actions);
        self.of_gateways(world, actions);
        for (at, child) in world.children.iter().enumerate() {
            let Some(child) = child else { continue };
            if child.existing < child.desired {
                actions.push(Action::Start(at));
            }
            if child.existing > child.desired {
                actions.push(Action::Stop(at));
            }
            if child.ready < child.existing {
                actions.push(Action::Ready(at));
            }
            if child.ready > 0 && world.failures > 0 {
                actions.push(Action::Fail(at));
            }
        }
        if self.scope.worse && !world.is_worse && world.is_there {
            actions.push(Action::Worsen);
        }
        if world.is_there && world.withdrawals > 0 {
            actions.push(Action::Withdraw);
        }
        if !world.is_there {
            actions.push(Action::Return);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Act(which) => {
                let todo = world.decides(&self.known, false);
                next.write(&self.known, &todo[which]);
            }
            Action::Decide(which) => {
                next.held = Some(world.decides(&self.known, true).swap_remove(which));
            }
            Action::Do => {
                let todo = next.held.take()?;
                next.write(&self.known, &todo);
            }
            Action::Die => next.held = None,
            Action::FallBehind => next.falls_behind(),
            Action::CatchUp => next.behind = None,
            Action::Arrive(at, table) => next.take(&self.known, at, table),
            Action::Restart(at) => {
                next.restarts -= 1;
                next.gateways[at].table = next.gateways[at].kept;
            }
            Action::Start(of) => (next.child(of).existing, next.child(of).ready) = (1, 1),
            Action::Ready(of) => next.child(of).ready = 1,
            Action::Stop(of) => (next.child(of).existing, next.child(of).ready) = (0, 0),
            Action::Fail(of) => {
                next.failures -= 1;
                next.child(of).ready = 0;
            }
            Action::Worsen => next.is_worse = true,
            Action::Withdraw => {
                next.withdrawals -= 1;
                next.is_there = false;
            }
            Action::Return => next.is_there = true,
        }
        next.settle();
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ROUTED, |model: &Self, world: &World| {
                let tables = world.gateways.iter().map(|gateway| gateway.table);
                let mut versions = tables.flat_map(|table| model.known.weighted(table));
                versions.all(|version| {
                    let child = world.children[version].as_ref();
                    child.is_some_and(|child| child.desired > 0 && child.existing > 0)
                })
            }),
            Property::always(RECORDED, |model: &Self, world: &World| {
                let of_log: Vec<_> = world.log.iter().map(|at| model.known.table(*at)).collect();
                let mut all = world.gateways.iter();
                all.all(|gateway| of_log.contains(&Some(gateway.table)))
            }),
            // Earlier pairs were the newest ones before.
            Property::always(POINTERS, |model: &Self, world: &World| match *world.log {
                [.., before, after] => model.known.may_follow([before, after], may_follow),
                _ => true,
            }),
            Property::always(
                "where nothing can happen any more, it has come to rest",
                |model: &Self, world| model.is_over(world) || model.goes_on(world),
            ),
            // What is never reached is not checked either.
            Property::sometimes("version 2 is promoted", |model: &Self, world: &World| {
                let head = world.head(&model.known);
                head.attempt.is_none() && head.stable.is_some_and(|stable| stable.version == 2)
            }),
            Property::sometimes(
                "an attempt ends otherwise",
                |model: &Self, world: &World| {
                    let head = world.head(&model.known);
                    head.attempt.is_none()
                        && world.log.len() > 1
                        && head.stable.is_some_and(|stable| stable.version == 1)
                },
            ),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.log.len() <= self.scope.records
    }
}

const ROUTED: &str = "a version that a gateway routes to has its worker";
const RECORDED: &str = "a table that a gateway routes by is in the log";
const POINTERS: &str =
    "pointers move in the record that ends a promotion, and what is rejected stays so";

/// Whether a record may come after another one.
fn may_follow(before: &Record, after: &Record) -> bool {
    let moves = before.stable != after.stable;
    let ends = matches!(before.phase(), Phase::Final | Phase::Reverting);
    let is_back = before.phase() == Phase::Reverting;
    let to_old = after.rollback_to == before.stable || after.rollback_to.is_none();
    let (is_moved, is_kept) = (
        after.phase() == Phase::Idle && ends && (is_back || to_old),
        after.rollback_to == before.rollback_to,
    );
    after.check().is_ok()
        && after.stamp.revision == before.stamp.revision + 1
        && (if moves { is_moved } else { is_kept })
        && before.rejected.iter().all(|of| after.rejected.contains(of))
}

impl Pointers {
    fn new(mistake: Mistake, scope: Scope) -> Self {
        Self {
            known: Known::new(mistake),
            scope,
        }
    }

    fn of_operators(&self, world: &World, actions: &mut Vec<Action>) {
        let now = world.decides(&self.known, false).len();
        actions.extend((0..now).map(Action::Act));
        if world.held.is_some() {
            actions.extend([Action::Do, Action::Die]);
        } else {
            let slow = world.decides(&self.known, true).len();
            actions.extend((0..slow).map(Action::Decide));
        }
        match world.behind {
            Some(_) => actions.push(Action::CatchUp),
            None if self.scope.behind => actions.push(Action::FallBehind),
            None => {}
        }
    }

    fn of_gateways(&self, world: &World, actions: &mut Vec<Action>) {
        let tables = world.log.iter().filter_map(|at| self.known.table(*at));
        let tables: BTreeSet<Number> = tables.collect();
        for (at, gateway) in world.gateways.iter().enumerate() {
            let newer = |table: &&Number| self.known.may_become(gateway.table, **table);
            let newer = tables.iter().filter(newer);
            actions.extend(newer.map(|table| Action::Arrive(at, *table)));
            // One that kept what it has is the same afterwards.
            if world.restarts > 0 && gateway.kept != gateway.table {
                actions.push(Action::Restart(at));
            }
        }
    }

    /// Whether there is nothing left to do.
    fn is_over(&self, world: &World) -> bool {
        let newest = *world.log.last().unwrap();
        let table = self.known.table(newest);
        world.log.len() >= self.scope.records
            || (self.known.record(newest).attempt.is_none()
                && world.gateways.iter().all(|of| Some(of.table) == table))
    }

    /// Whether something can happen that changes anything.
    fn goes_on(&self, world: &World) -> bool {
        let mut actions = vec![];
        self.actions(world, &mut actions);
        let mut actions = actions.into_iter();
        actions.any(|action| self.next_state(world, action).is_some())
    }
}

/// A rollout and the beginning of another one, with one of everything that may happen.
const USUAL: Scope = Scope {
    records: 11,
    restarts: 1,
    failures: 1,
    withdrawals: 1,
    worse: true,
    behind: false,
};
/// A rollout, and a slow operator that decides from old caches too: many more states for each record.
const BEHIND: Scope = Scope {
    records: 8,
    restarts: 0,
    failures: 0,
    withdrawals: 0,
    worse: true,
    behind: true,
};

/// What is looked through; with `WEIR_POINTERS=1` what takes minutes, too.
#[expect(
    clippy::disallowed_methods,
    reason = "how much is looked through is said from outside"
)]
fn scopes() -> Vec<Scope> {
    let mut scopes = vec![USUAL, BEHIND];
    if std::env::var("WEIR_POINTERS").is_ok_and(|text| text == "1") {
        scopes.push(Scope {
            withdrawals: 2,
            ..USUAL
        });
        scopes.push(Scope {
            withdrawals: 1,
            ..BEHIND
        });
    }
    scopes
}

#[test]
fn whatever_two_operators_do_in_whatever_order_runs_go_to_workers_and_pointers_move_once() {
    for scope in scopes() {
        let checker = Pointers::new(Mistake::None, scope)
            .checker()
            .threads(2)
            .spawn_bfs()
            .join();
        let states = checker.unique_state_count();
        println!(
            "{scope:?}: {states} states, depth {}, {} decisions",
            checker.max_depth(),
            checker.model().known.decisions()
        );
        checker.assert_properties();
        assert!(states > 100_000, "a world this small shows little");
    }
}

#[test]
fn every_part_of_the_protocol_that_is_left_out_is_found_out() {
    for (mistake, broken) in [
        (Mistake::Overwrites, RECORDED),
        (Mistake::IgnoresStamps, ROUTED),
        (Mistake::TakesAcknowledgement, ROUTED),
        (Mistake::AcknowledgesFirst, ROUTED),
        (Mistake::TakesReadiness, ROUTED),
        (Mistake::ForgetsRejected, POINTERS),
        (Mistake::MovesPointer, POINTERS),
    ] {
        let wanted = BTreeSet::from([broken]);
        let checker = Pointers::new(mistake, USUAL)
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AllOf(wanted))
            .spawn_bfs()
            .join();
        let found = checker.discovery(broken);
        let found = found.map(stateright::Path::into_actions);
        let steps = found.unwrap_or_else(|| panic!("{mistake:?} is not found as {broken:?}"));
        println!(
            "{mistake:?} breaks {broken:?} in {} steps: {steps:?}",
            steps.len()
        );
    }
}
