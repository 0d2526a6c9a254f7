//! A real GPU: the driver, the compiler and the matrix library, each loaded only where it is there.
//!
//! The bindings panic where a library is missing, so nothing here can be called without a [`Libraries`] or an [`Nvrtc`], which only exist once
//! they were found.
#![expect(
    unsafe_code,
    reason = "the driver's interface is C: handles and pointers to memory of the device"
)]

mod blas;
mod cache;
mod compile;
mod device;
mod open;
mod probe;
mod staging;

pub use cache::KernelCache;
pub use compile::{CompileError, Compiled, Nvrtc, Target, compile};
pub use device::Gpu;
pub use open::OpenError;
pub use probe::{GpuInfo, Libraries, NoGpu};
