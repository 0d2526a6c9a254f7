//! Tests of the crate through its public face.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are outside of test functions"
)]

mod adapters;
mod allocation;
mod drafts;
mod fuzz;
mod gguf;
mod harness;
mod invariance;
mod parity;
mod quantize;
mod scores;
