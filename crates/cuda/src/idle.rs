//! A device that carries out nothing: what is left of a step is the host's part of it.

use crate::device::{Address, Device, DeviceError, Execute, Launch, Product, Properties};

/// Multiprocessors of the largest devices.
const MULTIPROCESSORS: u32 = 132;

/// Their memory.
const MEMORY_BYTES: u64 = 140 << 30;

/// See the module. Zeros are read from it.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    properties: Properties,
    /// Of what was allocated.
    end: u64,
    written: u64,
}

impl Default for Idle {
    fn default() -> Self {
        Self::like(Properties {
            multiprocessors: MULTIPROCESSORS,
        })
    }
}

impl Idle {
    /// With the properties of another device.
    pub fn like(properties: Properties) -> Self {
        Self {
            properties,
            end: 0,
            written: 0,
        }
    }

    /// Bytes that were allocated.
    pub fn allocated(&self) -> u64 {
        self.end
    }

    /// Bytes that were copied to it.
    pub fn written(&self) -> u64 {
        self.written
    }
}

impl Execute for Idle {
    fn properties(&self) -> Properties {
        self.properties
    }

    fn launch(&mut self, _: &Launch) -> Result<(), DeviceError> {
        Ok(())
    }

    fn multiply(&mut self, _: &Product) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Device for Idle {
    fn name(&self) -> String {
        "idle".to_owned()
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(MEMORY_BYTES.saturating_sub(self.end))
    }

    fn allocate(&mut self, _: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        let address = Address(self.end + 256);
        self.end = (address.0 + bytes).next_multiple_of(256);
        Ok(address)
    }

    fn write(&mut self, _: Address, data: &[u8]) -> Result<(), DeviceError> {
        self.written += data.len() as u64;
        Ok(())
    }

    fn read(&mut self, _: Address, data: &mut [u8]) -> Result<(), DeviceError> {
        data.fill(0);
        Ok(())
    }

    fn begin_read(&mut self, _: usize, _: Address, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn end_read(&mut self, _: usize, data: &mut [u8]) -> Result<(), DeviceError> {
        data.fill(0);
        Ok(())
    }

    fn prepare(&mut self, _: &Product) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin_record(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn end_record(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn replay(&mut self, _: usize) -> Result<bool, DeviceError> {
        Ok(true)
    }
}
