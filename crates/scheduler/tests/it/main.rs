//! The scheduler driven against a device that is wrong as soon as one block, position or slot is.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod allocations;
mod counting;
mod device;
mod failures;
mod fairness;
mod random;
mod simulation;
mod world;
