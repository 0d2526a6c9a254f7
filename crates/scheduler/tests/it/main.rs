//! The scheduler driven against a device that is wrong as soon as one block, position or slot is.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod allocations;
mod counting;
mod device;
mod drafts;
mod failures;
mod fairness;
mod random;
mod simulation;
#[path = "../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;
mod world;
