//! The life of a run, model-checked: every order of everything that can happen to it, with two gateways, a worker, and crashes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

mod model;
mod world;
