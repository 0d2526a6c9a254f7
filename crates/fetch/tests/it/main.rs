//! Fetching from servers that are as bad as servers get, by any number of processes into one cache.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::cast_possible_truncation,
    reason = "tests: one story each, told in full, whose failure is a panic"
)]

mod archives;
mod bad_servers;
mod processes;
mod registries;
mod server;
mod space;
