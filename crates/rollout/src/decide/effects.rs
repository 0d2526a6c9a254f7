//! What the head asks for now. Each effect is a difference between what is wanted and what is seen: none are left once the
//! world is as the head says, so quiet input writes nothing.

use crate::decide::observation::{Lease, Verification};
use crate::decide::state::State;
use crate::record::{Phase, Room};
use crate::routing::Table;
use crate::{Stamp, VersionId};

/// Something for the caller to do. All are idempotent.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Check a version's signature.
    Verify(VersionId),
    /// Give a version so many replicas and the head's stamp; refuse where the child carries a later stamp.
    Scale {
        /// The version.
        id: VersionId,
        /// How many.
        replicas: u32,
        /// The head's stamp.
        stamp: Stamp,
    },
    /// Remove a child without replicas that no record names.
    Sweep(VersionId),
    /// Send the head's table to these gateways.
    Push {
        /// The table.
        table: Box<Table>,
        /// Gateways that have not acknowledged it.
        gateways: Vec<String>,
    },
    /// Take the pool's exchange lease for this attempt.
    AcquireLease(String),
    /// Give it back.
    ReleaseLease,
}

pub(super) fn effects(state: &State) -> Vec<Effect> {
    let mut effects = Vec::new();
    verify(state, &mut effects);
    lease(state, &mut effects);
    push(state, &mut effects);
    scale(state, &mut effects);
    effects
}

fn verify(state: &State, effects: &mut Vec<Effect>) {
    let pending = state
        .specs
        .iter()
        .filter(|spec| spec.verification == Verification::Pending);
    effects.extend(pending.map(|spec| Effect::Verify(spec.id.clone())));
}

fn lease(state: &State, effects: &mut Vec<Effect>) {
    let is_mine = state.seen.lease == Lease::Mine;
    let is_free = state.seen.lease == Lease::Free;
    let exchanging = state.attempt().filter(|attempt| match attempt.room {
        Some(Room::Beside) => false,
        Some(_) => true,
        None => {
            let wanted = state.seen.wanted.max(1);
            let may_start = matches!(attempt.phase, Phase::Preparing | Phase::Reverting);
            let room = state.fitting_room(attempt, wanted);
            may_start && room.is_some_and(|room| room != Room::Beside)
        }
    });
    match exchanging {
        Some(attempt) if is_free => effects.push(Effect::AcquireLease(attempt.id.clone())),
        None if is_mine => effects.push(Effect::ReleaseLease),
        _ => {}
    }
}

fn push(state: &State, effects: &mut Vec<Effect>) {
    let Some(table) = &state.head.routing else {
        return;
    };
    let missing = state
        .seen
        .gateways
        .iter()
        .filter(|gateway| !state.has_head_table(gateway));
    let gateways: Vec<String> = missing.map(|gateway| gateway.name.clone()).collect();
    if !gateways.is_empty() {
        effects.push(Effect::Push {
            table: Box::new(table.clone()),
            gateways,
        });
    }
}

fn scale(state: &State, effects: &mut Vec<Effect>) {
    let stamp = state.head.stamp;
    for (id, replicas) in state.desired() {
        let view = state.replicas(&id);
        // A newer record than the head is at work: the log must be read again.
        if view.is_some_and(|view| view.stamp > stamp) {
            continue;
        }
        let is_empty = view.is_none_or(|view| view.existing == 0 && view.desired == 0);
        if replicas == 0 && is_empty {
            effects.extend(view.map(|_| Effect::Sweep(id)));
            continue;
        }
        if view.is_none_or(|view| view.desired != replicas || view.stamp < stamp) {
            effects.push(Effect::Scale {
                id,
                replicas,
                stamp,
            });
        }
    }
}
