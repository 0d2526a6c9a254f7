//! The worked examples of the contract, on real processes.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::float_cmp,
    clippy::too_many_lines,
    reason = "tests: one story each, told in full, whose failure is a panic; counters are whole numbers"
)]

mod adapters;
mod admit;
mod backup;
mod bad_input;
mod bad_sync;
mod batches;
mod broken_builds;
mod clocks;
mod console;
mod documents;
mod ends;
mod fetching;
mod fleet;
mod formats;
mod full_disk;
mod gateway_death;
mod hostile;
mod key_race;
mod ledger;
mod lost_commits;
mod metrics;
mod mutual;
mod openai;
mod outages;
mod partition;
mod quantized;
mod race;
mod replay;
mod replica_death;
mod replicas;
mod retention;
mod rollout;
mod shared;
mod stand;
mod starts;
mod support;
mod tampering;
mod tenants;
mod traces;
mod worker_death;
