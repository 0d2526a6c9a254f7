//! One suite for every engine: the contract, crashes, and a full disk. `weir-postgres` runs the contract's files on a server.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

mod bounded;
mod budgets;
mod contract;
mod crash;
mod events;
mod full_disk;
mod ledger;
mod monotonic;
mod objects;
mod opening;
mod retention;
mod runs;
mod scrub;
#[path = "../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;
mod support;
mod upkeep;
