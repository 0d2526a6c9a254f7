//! What a pass asks of a GPU: kernels and products.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::result;

use super::{Gpu, failed};
use crate::device::{ARGUMENTS_MAX, DeviceError, Execute, Launch, Product, Properties};

impl Execute for Gpu {
    fn properties(&self) -> Properties {
        Properties {
            multiprocessors: self.multiprocessors,
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let function = self.functions[launch.kernel as usize];
        let [x, y, z] = launch
            .grid
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let threads = u32::try_from(launch.threads).unwrap_or(u32::MAX);
        let mut words = [0u64; ARGUMENTS_MAX];
        let mut pointers = [ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        let arguments = launch.arguments.iter();
        let count = arguments.len();
        // A number of 32 bits is the lower half of its word, which on a little-endian machine comes first.
        for ((word, pointer), (value, _)) in words.iter_mut().zip(&mut pointers).zip(arguments) {
            *word = value;
            *pointer = ptr::from_mut(word).cast();
        }
        // SAFETY: the function is loaded; the arguments are those of its kernel, which the tests run with the same values; the driver
        // copies them before it returns.
        let launched = unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (threads, 1, 1),
                0,
                self.stream,
                &mut pointers[..count],
            )
        };
        launched.map_err(|error| failed(launch.kernel.name(), error))
    }

    fn multiply(&mut self, product: &Product) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let (workspace, stream) = (self.workspace, self.stream.cast());
        // SAFETY: the operands lie in memory that `allocate` gave, and so does the workspace.
        let multiplied = unsafe { self.blas()?.multiply(product, workspace, stream) };
        multiplied.map_err(|error| product_failed(product, error))
    }
}

pub(super) fn product_failed(product: &Product, error: CublasError) -> DeviceError {
    let Product {
        rows,
        outputs,
        inputs,
        ..
    } = product;
    DeviceError::Operation {
        operation: format!("a product of {rows} by {outputs} by {inputs}"),
        cause: format!("cuBLASLt: {error}"),
    }
}
