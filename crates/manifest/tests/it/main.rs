//! Artifacts, signatures and trust, over real files and over signatures that the Python implementation of the format made.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, and a skipped test says so"
)]

mod chains;
mod damage;
mod fixture;
mod opening;
mod peer;
mod placing;
mod signatures;
mod trust;
