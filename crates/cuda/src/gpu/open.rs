//! Why a GPU cannot be opened.

use cudarc::driver::result::DriverError;

use super::compile::CompileError;

/// A GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The driver refused something.
    #[error("the driver refuses to {operation}: {cause}")]
    Driver {
        /// What.
        operation: &'static str,
        /// What it said.
        cause: String,
    },
    /// Kernels do not compile.
    #[error("the kernels do not compile")]
    Compile(#[source] CompileError),
    /// Neither form of the kernels is taken.
    #[error(
        "the driver takes kernels \"{family}\" neither as code for this device ({code}) nor as PTX ({text}); it may be older than CUDA 13.0"
    )]
    Load {
        /// Which.
        family: &'static str,
        /// What it said to the code.
        code: String,
        /// What it said to the text.
        text: String,
    },
    /// The matrix library does not start.
    #[error("cuBLASLt does not start: {cause}")]
    Blas {
        /// What it returned.
        cause: String,
    },
}

/// Says what the driver refused.
pub(super) fn refused(operation: &'static str) -> impl Fn(DriverError) -> OpenError {
    move |error| OpenError::Driver {
        operation,
        cause: format!("{error:?}"),
    }
}
