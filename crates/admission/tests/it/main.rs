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
#[path = "../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;
