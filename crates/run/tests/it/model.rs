//! Every order of events, and what must hold in every state.

use stateright::{Checker, HasDiscoveries, Model, Property};
use weir_run::RunStatus;

use crate::world::{Gateway, Mistake, ROWS, World};

/// The life of one run under a mistake, or none.
struct Life(Mistake);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// The writing gateway gives the run to the worker.
    Submit(usize),
    /// The worker makes a row.
    Make,
    /// A gateway passes the next row on to the store.
    PassOn(usize),
    /// The store gets one of the appends on their way.
    Land(usize),
    /// The client cancels, at any gateway.
    Cancel,
    /// The writer learns of the cancellation and ends the run.
    Obey(usize),
    /// The writer sees the deadline pass.
    Deadline(usize),
    /// The writer finds that no worker holds what had started.
    Interrupt(usize),
    /// A gateway dies.
    Crash(usize),
    /// It starts again and knows nothing.
    Restart(usize),
    /// The worker dies; its successor holds nothing.
    CrashWorker,
    /// A gateway takes over from one that is dead, or that it wrongly takes for dead.
    Adopt(usize),
}

impl Model for Life {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.worker.holds && world.worker.made < ROWS {
            actions.push(Action::Make);
        }
        if world.worker.holds && world.worker_crashes > 0 {
            actions.push(Action::CrashWorker);
        }
        if world.cancels > 0 {
            actions.push(Action::Cancel);
        }
        actions.extend((0..world.flying.len()).map(Action::Land));
        for by in 0..2 {
            Self::gateway(world, by, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Submit(by) => {
                if let Gateway::Writing(writer) = &world.gateways[by] {
                    next.worker.holds = true;
                    next.worker.epoch = writer.epoch;
                    next.worker.made = 0;
                }
            }
            Action::Make => next.worker.made += 1,
            Action::PassOn(by) => next.pass_on(by),
            Action::Land(place) => next.land(place, self.0),
            Action::Cancel => next.cancel(),
            Action::Obey(by) => next.end(by, RunStatus::Cancelled),
            Action::Deadline(by) => {
                next.deadlines -= 1;
                next.end(by, RunStatus::Expired);
            }
            Action::Interrupt(by) => next.end(by, RunStatus::Interrupted),
            Action::Crash(by) => {
                next.crashes -= 1;
                next.gateways[by] = Gateway::Down;
            }
            Action::Restart(by) => next.gateways[by] = Gateway::Idle,
            Action::CrashWorker => {
                next.worker_crashes -= 1;
                next.worker.holds = false;
            }
            Action::Adopt(by) => {
                if matches!(world.gateways[1 - by], Gateway::Writing(_)) {
                    next.false_alarms -= 1;
                }
                next.adopt(by);
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("sequences are 1, 2, 3 without a gap", |_, world: &World| {
                let numbered = (1..).zip(&world.log).all(|(n, entry)| entry.sequence == n);
                numbered && world.row.last == world.log.len() as u64
            }),
            Property::always("one end, and nothing after it", |_, world: &World| {
                let is_end = |kind: &str| !matches!(kind, "accepted" | "started" | "delta");
                let ends = world.log.iter().filter(|entry| is_end(entry.kind)).count();
                let last = world.log.last().is_some_and(|entry| is_end(entry.kind));
                ends == usize::from(world.has_ended()) && last == world.has_ended()
            }),
            Property::always("no event of a fenced writer", |_, world: &World| {
                world.log.iter().all(|entry| entry.epoch == entry.present)
            }),
            Property::always("every row is in the log once", |_, world: &World| {
                let deltas = world.log.iter().filter(|entry| entry.kind == "delta");
                let rows: Vec<u64> = deltas.map(|entry| entry.index).collect();
                rows == (1..=world.row.index).collect::<Vec<_>>()
                    && world.row.output == world.row.index
            }),
            Property::always(
                "the reservation ends once, with the run",
                |_, world: &World| {
                    world.settled == u8::from(world.has_ended()) && world.held != world.has_ended()
                },
            ),
            Property::always(
                "where nothing can happen any more, the run has ended",
                |life: &Self, world| {
                    let mut actions = vec![];
                    life.actions(world, &mut actions);
                    !actions.is_empty() || world.has_ended()
                },
            ),
        ];
        // What is never reached is not checked either.
        all.extend([
            Property::sometimes("it completes", |_, world: &World| {
                world.row.status == RunStatus::Completed
            }),
            Property::sometimes("it is cancelled", |_, world: &World| {
                world.row.status == RunStatus::Cancelled
            }),
            Property::sometimes("it is interrupted", |_, world: &World| {
                world.row.status == RunStatus::Interrupted
            }),
            Property::sometimes("it expires", |_, world: &World| {
                world.row.status == RunStatus::Expired
            }),
            Property::sometimes("an adopted run completes", |_, world: &World| {
                world.row.status == RunStatus::Completed && world.row.epoch > 1
            }),
        ]);
        all
    }
}

impl Life {
    fn gateway(world: &World, by: usize, actions: &mut Vec<Action>) {
        let gateway = &world.gateways[by];
        let other = &world.gateways[1 - by];
        if *gateway == Gateway::Down {
            actions.push(Action::Restart(by));
            return;
        }
        if world.crashes > 0 {
            actions.push(Action::Crash(by));
        }
        let Gateway::Writing(writer) = gateway else {
            let alone = !matches!(other, Gateway::Writing(_));
            if !world.has_ended() && (alone || world.false_alarms > 0) {
                actions.push(Action::Adopt(by));
            }
            return;
        };
        if writer.waiting {
            return;
        }
        let here = world.worker.holds && world.worker.epoch == writer.epoch;
        if !writer.started && !here {
            actions.push(Action::Submit(by));
        }
        if writer.started && !here {
            actions.push(Action::Interrupt(by));
        }
        if writer.can_pass_on(&world.worker) {
            actions.push(Action::PassOn(by));
        }
        if world.row.status == RunStatus::Cancelling {
            actions.push(Action::Obey(by));
        }
        if world.deadlines > 0 {
            actions.push(Action::Deadline(by));
        }
    }
}

#[test]
fn in_every_order_of_events_a_run_ends_once_without_gaps_and_settles_once() {
    let checker = Life(Mistake::None).checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, depth {}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
    assert!(
        checker.unique_state_count() > 5_000,
        "a model this small shows little"
    );
}

#[test]
fn every_mistake_made_on_purpose_is_found() {
    for (mistake, broken) in [
        (Mistake::NoFence, "no event of a fenced writer"),
        (Mistake::Renumber, "every row is in the log once"),
        (Mistake::EndsTwice, "one end, and nothing after it"),
    ] {
        let wanted = std::collections::BTreeSet::from([broken]);
        let checker = Life(mistake)
            .checker()
            .finish_when(HasDiscoveries::AllOf(wanted))
            .spawn_bfs()
            .join();
        let found = checker
            .discovery(broken)
            .map(stateright::Path::into_actions);
        let steps = found.unwrap_or_else(|| panic!("{mistake:?} is not found as {broken:?}"));
        println!(
            "{mistake:?} breaks {broken:?} in {} steps: {steps:?}",
            steps.len()
        );
    }
}
