//! Logs, metrics, the admin server and shutdown: what every process of Weir does the same way.
//!
//! This crate must not know models, runs, tenants or Kubernetes; names and labels of metrics come from its callers
//! ([`vllm`] apart, which two of them share). Read [`Metrics`]
//! and [`Readiness`] first, then [`shutdown::run_until_signal`], which is the frame of every `main`.

pub mod admin;
mod cap;
mod listen;
pub mod logging;
mod metrics;
mod process;
mod readiness;
pub mod service;
pub mod shutdown;
pub mod trace;
pub mod vllm;

pub use cap::{Cap, OTHER};
pub use listen::{BindError, bind};
pub use metrics::{Bounds, Exemplified, Histograms, Label, Metrics, Rows, encode_gauges};
pub use readiness::Readiness;
