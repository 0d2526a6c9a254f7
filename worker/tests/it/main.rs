//! Component tests of the worker: real sessions over a Unix socket, the real scheduler, and a backend that is a function.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

mod adapters;
mod ahead;
mod drafts;
mod elsewhere;
mod fake;
mod flow;
mod gateway;
mod grammar;
mod harness;
mod output;
mod ownership;
mod process;
mod several;
mod soak;
