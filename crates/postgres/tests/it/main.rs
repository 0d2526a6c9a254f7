//! The contract of the store on a real server, and what only a store of several gateways promises.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

#[path = "../../../store/tests/it/bounded.rs"]
mod bounded;
#[path = "../../../store/tests/it/budgets.rs"]
mod budgets;
#[path = "../../../store/tests/it/contract.rs"]
mod contract;
mod dump;
#[path = "../../../store/tests/it/events.rs"]
mod events;
mod faults;
#[path = "../../../store/tests/it/ledger.rs"]
mod ledger;
#[path = "../../../store/tests/it/monotonic.rs"]
mod monotonic;
#[path = "../../../store/tests/it/objects.rs"]
mod objects;
mod repair;
mod replicas;
#[path = "../../../store/tests/it/retention.rs"]
mod retention;
#[path = "../../../store/tests/it/runs.rs"]
mod runs;
mod schema;
#[path = "../../../../e2e/src/postgres.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod server;
#[path = "../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;
mod support;
#[path = "../../../store/tests/it/upkeep.rs"]
mod upkeep;
