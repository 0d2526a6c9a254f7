//! The core over time.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "helpers of tests fail as tests do, and print the figures they judge"
)]

mod estimates;
mod greedy;
mod policies;
mod pool;
mod simulation;
