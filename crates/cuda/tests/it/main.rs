//! The kernels' own sources, run on the CPU against plain references and against the CPU backend.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions; a test that cannot run says so"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    clippy::needless_for_each,
    clippy::similar_names,
    clippy::too_many_lines,
    reason = "references: numbers are small and some exact, names are the field's, and a launch is a long list"
)]

mod ahead;
mod attention;
#[path = "../../../scheduler/tests/it/counting.rs"]
mod counting;
mod faults;
#[cfg(feature = "cuda")]
mod figures;
mod host;
mod model;
mod numbers;
#[path = "../../examples/gpu/parity/mod.rs"]
mod parity;
mod quant;
mod rows;
mod sample;
mod shim;
