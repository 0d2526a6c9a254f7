//! A version in a worker: in one of its own, or in a seat of one that holds several.

use std::path::PathBuf;
use std::sync::Arc;

use weir_api::ValidGpuPool;
use weir_gateway::{WorkerAddress, WorkerEndpoint};
use weir_manifest::Digest;

use super::host::Host;
use crate::up::said::PlanSaid;
use crate::up::supervisor::WorkerState;
use crate::up::verify::Verified;

/// See the module.
pub struct Worker {
    /// The version's object.
    pub version: String,
    /// Its pool.
    pub pool: String,
    /// Manifest digest of what it loaded.
    pub digest: String,
    /// Plans of the adapters that it serves beside.
    pub(super) adapters: PathBuf,
    pub(super) host: Arc<Host>,
    pub(super) seat: Option<Seat>,
    /// Whether it takes no new runs, and goes when those it has are over.
    pub(super) is_leaving: bool,
}

/// A version's place in a worker of several.
pub(super) struct Seat {
    /// Name of the plan's file.
    pub(super) file: String,
    /// The plan.
    pub(super) text: Vec<u8>,
}

impl Worker {
    /// Of a version, in a process of its own until it is given a seat.
    pub(super) fn new(
        (version, verified): (&str, &Verified),
        pool: &ValidGpuPool,
        adapters: PathBuf,
        host: Arc<Host>,
    ) -> Self {
        Self {
            version: version.to_owned(),
            pool: pool.name.clone(),
            digest: verified.digest.clone(),
            adapters,
            host,
            seat: None,
            is_leaving: false,
        }
    }

    /// Name of its process: workers of a shared pool have one in common.
    pub fn process(&self) -> &str {
        &self.host.name
    }

    /// How it is.
    pub fn state(&self) -> WorkerState {
        let host = self.host.state.borrow().clone();
        let Some(seat) = &self.seat else {
            return host;
        };
        match host {
            WorkerState::Starting { .. } | WorkerState::Up => seat_state(&self.said_of(seat)),
            WorkerState::Refused {
                reason, message, ..
            } => WorkerState::Refused {
                reason,
                message,
                plan: seat.digest(),
            },
            other => other,
        }
    }

    /// What the gateway connects to.
    pub(super) fn endpoint(&self, name: &str) -> WorkerEndpoint {
        WorkerEndpoint {
            name: name.to_owned(),
            pool: self.pool.clone(),
            address: WorkerAddress::Unix(self.host.socket.clone()),
            version: self.seat.as_ref().map(|_| self.digest.clone()),
        }
    }

    /// Whether nothing is left of it in memory, and nobody comes back.
    pub(super) fn is_gone(&self) -> bool {
        let is_let_go = |seat: &Seat| {
            let is_up = matches!(
                *self.host.state.borrow(),
                WorkerState::Starting { .. } | WorkerState::Up
            );
            !is_up || !self.said_of(seat).is_held()
        };
        self.is_leaving && (self.host.is_over() || self.seat.as_ref().is_some_and(is_let_go))
    }

    fn said_of(&self, seat: &Seat) -> PlanSaid {
        let said = self.host.said.lock();
        said.versions.get(&seat.file).cloned().unwrap_or_default()
    }
}

impl Seat {
    pub(super) fn digest(&self) -> String {
        Digest::of(&self.text).to_string()
    }
}

/// How a version is whose plan was put into its worker's folder.
fn seat_state(said: &PlanSaid) -> WorkerState {
    let PlanSaid {
        state,
        reason,
        message,
        text,
        failures,
    } = said.clone();
    match state.as_str() {
        "loaded" | "leaving" => WorkerState::Up,
        "refused" => WorkerState::Refused {
            reason,
            message,
            plan: text,
        },
        "failed" if said.waits_for_room() => WorkerState::Starting { progress: message },
        "failed" => WorkerState::Backoff {
            reason: message,
            crashes: failures,
        },
        _ => WorkerState::Starting {
            progress: "waits for the pool's worker to load it".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_as_its_worker_said_last() {
        let state = |state: &str, reason: &str| {
            let said = PlanSaid {
                state: state.to_owned(),
                reason: reason.to_owned(),
                message: "why".to_owned(),
                text: "sha256:old".to_owned(),
                failures: 2,
            };
            seat_state(&said)
        };
        let why = || "why".to_owned();
        assert!(matches!(state("", ""), WorkerState::Starting { .. }));
        assert_eq!(state("loaded", ""), WorkerState::Up);
        assert_eq!(state("leaving", ""), WorkerState::Up);
        assert_eq!(
            state("refused", "FileTampered"),
            WorkerState::Refused {
                reason: "FileTampered".to_owned(),
                message: why(),
                plan: "sha256:old".to_owned()
            }
        );
        for full in ["PoolFull", "StillHeld"] {
            assert_eq!(
                state("failed", full),
                WorkerState::Starting { progress: why() }
            );
        }
        assert_eq!(
            state("failed", "EngineFailed"),
            WorkerState::Backoff {
                reason: why(),
                crashes: 2
            }
        );
    }
}
