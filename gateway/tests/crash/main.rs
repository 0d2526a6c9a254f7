//! Crash points: a gateway, its store on a medium that loses power, and a worker, in one process, ended at every named point and at any
//! write, over and over. The independent checker of the end-to-end tests judges what is left; with each deliberate break it has to turn red.
//!
//! A binary of its own: hundreds of gateways that die would disturb the tests that measure time beside them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "helpers of tests fail as tests do, and say what they did"
)]
#![allow(dead_code, reason = "the helpers are shared with the component tests")]

#[path = "../it/client.rs"]
mod client;
#[path = "../it/site.rs"]
mod site;
#[path = "../it/worker.rs"]
mod worker;

mod breaks;
mod points;
mod world;
