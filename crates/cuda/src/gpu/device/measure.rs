//! What a device reaches at best, for measurements beside it.

use cudarc::driver::result;

use super::{Gpu, failed};
use crate::device::{Device as _, DeviceError};

impl Gpu {
    /// Seconds of one copy of so many bytes inside the device's memory, over some of them: what reading and writing takes at best.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn copy_seconds(&mut self, bytes: usize) -> Result<f64, DeviceError> {
        const COPIES: u32 = 10;
        let [from, to] = [
            self.allocate("a copy", bytes as u64)?,
            self.allocate("a copy", bytes as u64)?,
        ];
        let copy_failed = |error| failed("a copy", error);
        let mut begin = std::time::Instant::now();
        for round in 0..=COPIES {
            // SAFETY: both were just allocated with this size.
            unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream) }
                .map_err(copy_failed)?;
            if round == 0 {
                self.synchronize().map_err(copy_failed)?;
                begin = std::time::Instant::now();
            }
        }
        self.synchronize().map_err(copy_failed)?;
        Ok(begin.elapsed().as_secs_f64() / f64::from(COPIES))
    }
}
