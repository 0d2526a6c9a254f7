//! The CUDA backend: kernels, and the pass of a batch through them.
//!
//! This crate must not know scheduling decisions, networks between machines or tenants. Read [`device::Device`] (what a device is),
//! [`kernels`] (what runs on it) and [`CudaBackend`] first. The sources in `kernels/` are compiled for a GPU when a worker starts, and
//! for the CPU by the tests (`shim/`), which run them, and the whole backend with them, where there is no GPU.

mod backend;
mod buffers;
pub mod device;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod idle;
pub mod kernels;
mod memory;
mod metadata;
mod options;
mod pass;
pub mod sampling;
mod tables;
mod upload;

pub use backend::{CudaBackend, variant};
pub use options::CudaOptions;

/// The backend cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The kernels do not hold the model.
    #[error("{what} {value} of the model {why}, which is what the CUDA kernels hold")]
    Unsupported {
        /// Which of its numbers.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What they hold.
        why: &'static str,
    },
    /// An option is out of bounds.
    #[error("engine option {option} = {value} {why}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong and what would be right.
        why: String,
    },
    /// The device failed.
    #[error("the device failed while the model was loaded")]
    Device(#[source] device::DeviceError),
}
