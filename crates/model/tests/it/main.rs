//! Tests of the crate through its public face.

mod harness;
mod invariance;
mod parity;
