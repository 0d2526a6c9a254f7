//! Whether there is a GPU, asked so that a machine without one only learns that.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute};

use super::Nvrtc;

/// The libraries that a GPU needs are there. Only [`Libraries::find`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Libraries(());

/// Why no GPU can be used.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// A library is missing.
    #[error("{library} is not there; {remedy}")]
    Library {
        /// Its name.
        library: &'static str,
        /// Where it comes from.
        remedy: &'static str,
    },
    /// The driver does not come up.
    #[error("the driver does not start: {cause}")]
    Driver {
        /// What it said.
        cause: String,
    },
    /// The driver is there and knows no device.
    #[error("the driver sees no device; ask for one in the pod's limits (nvidia.com/gpu: 1)")]
    NoDevice,
}

/// What the driver says about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its place among the machine's devices.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// How many there are.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Newest version of CUDA that the driver runs, 1000 · major + 10 · minor.
    pub driver_version: u32,
}

impl Libraries {
    /// Looks for the driver, the matrix library and the compiler, in this order.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn find() -> Result<Self, NoGpu> {
        // SAFETY: looks for a library by its name and closes it again.
        let (driver, blas) = unsafe {
            (
                sys::is_culib_present(),
                cudarc::cublaslt::sys::is_culib_present(),
            )
        };
        if !driver {
            return Err(NoGpu::Library {
                library: "libcuda.so",
                remedy: "it comes with the driver, which the container runtime of a GPU node puts in",
            });
        }
        if !blas {
            return Err(NoGpu::Library {
                library: "libcublasLt.so",
                remedy: "the worker's image has it; LD_LIBRARY_PATH must name its folder",
            });
        }
        if Nvrtc::find().is_none() {
            return Err(NoGpu::Library {
                library: "libnvrtc.so",
                remedy: "the worker's image has it; LD_LIBRARY_PATH must name its folder",
            });
        }
        Ok(Self(()))
    }

    /// The machine's devices.
    ///
    /// # Errors
    /// The driver does not start, or there is none.
    pub fn devices(self) -> Result<Vec<GpuInfo>, NoGpu> {
        let failed = |error: DriverError| match error {
            // What the driver says where it was given no device.
            DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE) => NoGpu::NoDevice,
            error => NoGpu::Driver {
                cause: format!("{error:?}"),
            },
        };
        result::init().map_err(failed)?;
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(failed)?;
        let count = result::device::get_count().map_err(failed)?;
        let devices = (0..count).map(|ordinal| info(ordinal, version).map_err(failed));
        let devices: Vec<GpuInfo> = devices.collect::<Result<_, _>>()?;
        if devices.is_empty() {
            return Err(NoGpu::NoDevice);
        }
        Ok(devices)
    }
}

fn info(ordinal: i32, driver_version: i32) -> Result<GpuInfo, DriverError> {
    let device = result::device::get(ordinal)?;
    let number = |attribute| {
        // SAFETY: the device is one of those the driver has.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map(i32::unsigned_abs)
    };
    Ok(GpuInfo {
        ordinal: ordinal.unsigned_abs(),
        name: result::device::get_name(device)?,
        capability: (
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
        driver_version: driver_version.unsigned_abs(),
    })
}
