//! Admission in front of a simulated pool of workers.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod simulation;
