//! What the backend needs of a device: memory, kernels, matrix products, and sequences of them that are recorded once.
//!
//! There are two: a GPU, and in tests a process that runs the same kernels on the CPU. Everything else of this crate is the same for
//! both.

use crate::kernels::Kernel;

/// The device failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is not enough memory.
    #[error(
        "the device has no {bytes} bytes of memory for {what}; give less to keys and values, or use smaller weights"
    )]
    Memory {
        /// What it was for.
        what: &'static str,
        /// How many.
        bytes: u64,
    },
    /// An operation failed.
    #[error("{operation} failed on the device: {cause}")]
    Operation {
        /// Which.
        operation: String,
        /// What the device said.
        cause: String,
    },
}

/// A place in the device's memory; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub u64);

impl Address {
    /// No place: what a kernel takes for an argument that is not given.
    pub const NONE: Self = Self(0);

    /// The place so many bytes further on.
    pub fn after(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Multiprocessors: so many blocks of threads run at the same time, at least.
    pub multiprocessors: u32,
}

/// Most arguments of a kernel.
pub const ARGUMENTS_MAX: usize = 20;

/// The arguments of a kernel, by value, in its order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arguments {
    words: [u64; ARGUMENTS_MAX],
    sizes: [u8; ARGUMENTS_MAX],
    count: usize,
}

impl Arguments {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, word: u64, size: u8) -> Self {
        self.words[self.count] = word;
        self.sizes[self.count] = size;
        self.count += 1;
        self
    }

    /// Adds a pointer.
    pub fn at(self, address: Address) -> Self {
        self.push(address.0, 8)
    }

    /// Adds an integer; kernels take 32 bits, of whatever sign.
    pub fn int(self, value: usize) -> Self {
        let value = u32::try_from(value).expect("sizes of a model and a batch are below 2^31");
        self.push(value.into(), 4)
    }

    /// Adds a number.
    pub fn float(self, value: f32) -> Self {
        self.push(value.to_bits().into(), 4)
    }

    /// Each argument's bits, in the lower bytes, and how many bytes of them count.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u8)> + '_ {
        self.words
            .iter()
            .copied()
            .zip(self.sizes.iter().copied())
            .take(self.count)
    }
}

/// A kernel to run.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Which.
    pub kernel: Kernel,
    /// Blocks of threads.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Its arguments.
    pub arguments: Arguments,
}

/// Number format of a product's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultType {
    /// IEEE single.
    F32,
    /// The type of activations.
    Act,
}

/// A product: `out` (rows, outputs) = `x` (rows, inputs) times `weights` (outputs, inputs) transposed.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of `x`.
    pub rows: usize,
    /// Rows of `weights`.
    pub outputs: usize,
    /// Columns of both.
    pub inputs: usize,
    /// Activations, one row behind the other.
    pub x: Address,
    /// Of the activations' type.
    pub weights: Address,
    /// Where the result goes.
    pub out: Address,
    /// Numbers from one row of `out` to the next.
    pub stride: usize,
    /// Their type.
    pub result: ResultType,
}

/// What a pass through the network needs: kernels and products, carried out in the order they are given.
pub trait Execute {
    /// What kind of device it is.
    fn properties(&self) -> Properties;

    /// Runs a kernel.
    ///
    /// # Errors
    /// It cannot be started.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// Multiplies.
    ///
    /// # Errors
    /// It cannot be started.
    fn multiply(&mut self, product: &Product) -> Result<(), DeviceError>;
}

/// A device with kernels for one model. Operations are carried out in the order they are given.
pub trait Device: Execute + Send {
    /// What it is called.
    fn name(&self) -> String;

    /// Bytes of its memory that nobody has.
    ///
    /// # Errors
    /// The device failed.
    fn free_memory(&self) -> Result<u64, DeviceError>;

    /// Memory that is there as long as the device, filled with zeros, at a multiple of 256 bytes.
    ///
    /// # Errors
    /// There is none.
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError>;

    /// Copies to the device. `data` may be changed as soon as this returns.
    ///
    /// # Errors
    /// The device failed.
    fn write(&mut self, to: Address, data: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the device, once everything before is done.
    ///
    /// # Errors
    /// The device failed, now or in what came before.
    fn read(&mut self, from: Address, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Begins to copy from the device into one of two places of the host, once everything before is done; what comes after does not wait.
    ///
    /// # Errors
    /// It cannot be started.
    fn begin_read(&mut self, place: usize, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Waits for the copy that was begun into a place.
    ///
    /// # Errors
    /// The device failed, now or in what came before.
    fn end_read(&mut self, place: usize, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Decides how a product will be carried out, so that nothing is left to be decided, or refused, while somebody waits for it.
    ///
    /// # Errors
    /// The device has no way to carry it out.
    fn prepare(&mut self, product: &Product) -> Result<(), DeviceError>;

    /// From here on, launches and products are not carried out but recorded under `key`, until [`Device::end_record`].
    ///
    /// # Errors
    /// The device cannot record.
    fn begin_record(&mut self, key: usize) -> Result<(), DeviceError>;

    /// Ends a recording.
    ///
    /// # Errors
    /// What was recorded cannot be run.
    fn end_record(&mut self) -> Result<(), DeviceError>;

    /// Carries out what was recorded under `key`; false where nothing was.
    ///
    /// # Errors
    /// It cannot be started.
    fn replay(&mut self, key: usize) -> Result<bool, DeviceError>;
}
