//! What gateways and workers say to each other ([`worker`]), and what gateways say to clients ([`error`]).
//!
//! This crate must not open sockets and must not know how anything is decided: it is vocabulary. Read [`error::ErrorCode`] first,
//! then `proto/worker.proto`.

pub mod error;
pub mod frames;
#[doc(hidden)]
pub mod fuzz;

/// The gateway-worker protocol, generated from `proto/worker.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated code; the .proto file carries the documentation"
)]
pub mod worker {
    tonic::include_proto!("weir.worker.v1");
}
