//! Rollouts decided by the real core in a world that is late, loses messages and breaks.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod capacity;
mod checks;
mod faults;
mod gateway;
mod operator;
mod pointers;
mod random;
mod rates;
mod setup;
mod simulation;
mod situations;
#[path = "../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;
mod world;
