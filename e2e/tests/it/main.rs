//! The worked examples of the contract, on real processes.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::float_cmp,
    clippy::too_many_lines,
    reason = "tests: one story each, told in full, whose failure is a panic; counters are whole numbers"
)]

mod admit;
mod bad_input;
mod batches;
mod ends;
mod formats;
mod full_disk;
mod gateway_death;
mod ledger;
mod openai;
mod race;
mod replay;
mod replicas;
mod rollout;
mod tampering;
mod tenants;
mod worker_death;
