//! A GPU as a [`Device`]: one context, one stream, and everything in the order it was given.

mod execute;
mod measure;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::result::{self, DriverError, stream::StreamKind};
use cudarc::driver::sys;

use super::KernelCache;
use super::blas::{Blas, WORKSPACE_BYTES};
use super::compile::{Nvrtc, Target};
use super::open::{OpenError, refused};
use super::probe::{GpuInfo, Libraries};
use super::staging::{PLACE_BYTES, RING_BYTES, Staging};
use crate::device::{Address, Device, DeviceError, Product};
use crate::kernels::{FAMILIES, Kernel, Variant};

thread_local! {
    /// The context that is current on this thread, by its address.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// A GPU with the kernels of one variant.
pub struct Gpu {
    ordinal: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    /// By the kernels' numbers.
    functions: Vec<sys::CUfunction>,
    /// Gone before the context is.
    blas: Option<Blas>,
    workspace: u64,
    /// Gone before the context is.
    staging: Option<Staging>,
    allocated: Vec<u64>,
    graphs: HashMap<usize, sys::CUgraphExec>,
    recording: Option<usize>,
    name: String,
    multiprocessors: u32,
}

// SAFETY: the driver's handles may be used by any thread, one at a time, once its context is current there, which every operation sees
// to; the staging memory belongs to this value.
unsafe impl Send for Gpu {}

fn failed(operation: &str, error: DriverError) -> DeviceError {
    DeviceError::Operation {
        operation: operation.to_owned(),
        cause: format!("{error:?}"),
    }
}

impl Gpu {
    /// Opens a device and loads its kernels: code for the device where the driver takes it, else PTX.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        _: Libraries,
        info: &GpuInfo,
        variant: &Variant,
        cache: &KernelCache,
    ) -> Result<Self, OpenError> {
        let nvrtc = Nvrtc::find().ok_or(OpenError::Driver {
            operation: "compile",
            cause: "libnvrtc.so is gone".to_owned(),
        })?;
        let ordinal = i32::try_from(info.ordinal).unwrap_or(i32::MAX);
        let ordinal = result::device::get(ordinal).map_err(refused("give the device"))?;
        // SAFETY: the device is one that the driver has just given.
        let context = unsafe { result::primary_ctx::retain(ordinal) };
        let mut gpu = Self {
            ordinal,
            context: context.map_err(refused("make a context"))?,
            stream: ptr::null_mut(),
            modules: Vec::new(),
            functions: Vec::new(),
            blas: None,
            workspace: 0,
            staging: None,
            allocated: Vec::new(),
            graphs: HashMap::new(),
            recording: None,
            name: info.name.clone(),
            multiprocessors: info.multiprocessors,
        };
        gpu.bind().map_err(refused("use the context"))?;
        gpu.stream =
            result::stream::create(StreamKind::NonBlocking).map_err(refused("make a stream"))?;
        gpu.staging = Some(Staging::new().map_err(refused("give pinned memory"))?);
        gpu.load(nvrtc, info, variant, cache)?;
        let blas = Blas::new(variant.act).map_err(|error| OpenError::Blas {
            cause: error.to_string(),
        })?;
        gpu.blas = Some(blas);
        let workspace = gpu.allocate("cuBLASLt", WORKSPACE_BYTES as u64);
        let workspace = workspace.map_err(|error| OpenError::Blas {
            cause: error.to_string(),
        })?;
        gpu.workspace = workspace.0;
        Ok(gpu)
    }

    fn load(
        &mut self,
        nvrtc: Nvrtc,
        info: &GpuInfo,
        variant: &Variant,
        cache: &KernelCache,
    ) -> Result<(), OpenError> {
        let mut modules = HashMap::new();
        for family in &FAMILIES {
            let code = cache
                .get(nvrtc, family, variant, Target::of(info.capability))
                .map_err(|error| error.to_string())
                .and_then(|image| load(&image).map_err(|error| format!("{error:?}")));
            let module = match code {
                Ok(module) => module,
                Err(code) => {
                    let text = cache.get(nvrtc, family, variant, Target::FALLBACK);
                    let text = text.map_err(OpenError::Compile)?;
                    load(&text).map_err(|error| OpenError::Load {
                        family: family.name,
                        code,
                        text: format!("{error:?}"),
                    })?
                }
            };
            self.modules.push(module);
            modules.insert(family.name, module);
        }
        for kernel in Kernel::ALL {
            let name = CString::new(kernel.name()).expect("names have no zeros");
            // SAFETY: the module was just loaded and stays so.
            let function = unsafe { result::module::get_function(modules[kernel.family()], name) };
            self.functions
                .push(function.map_err(refused("give a kernel"))?);
        }
        Ok(())
    }

    /// Makes the context current on this thread, where another one was.
    fn bind(&self) -> Result<(), DriverError> {
        let context = self.context as usize;
        if CURRENT.get() != context {
            // SAFETY: the context lives as long as this value.
            unsafe { result::ctx::set_current(self.context) }?;
            CURRENT.set(context);
        }
        Ok(())
    }

    fn blas(&mut self) -> Result<&mut Blas, DeviceError> {
        self.blas.as_mut().ok_or_else(|| DeviceError::Operation {
            operation: "a product".to_owned(),
            cause: "cuBLASLt has not been started".to_owned(),
        })
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as this value.
        unsafe { result::stream::synchronize(self.stream) }?;
        self.staging().all_done();
        Ok(())
    }

    fn staging(&mut self) -> &mut Staging {
        let staging = self.staging.as_mut();
        staging.expect("made when the device was opened")
    }

    /// Copies one piece, at most half as large as the ring.
    fn write_piece(&mut self, to: u64, data: &[u8]) -> Result<(), DriverError> {
        let stream = self.stream;
        if !self.staging().has_room(data.len()) {
            self.synchronize()?;
        }
        let ring = self.staging().take(data.len());
        let ring = ring.expect("the ring is empty, or has room");
        ring.copy_from_slice(data);
        // SAFETY: no copy on its way reads from this part of the ring. The destination is the caller's, inside of memory that
        // `allocate` gave.
        unsafe { result::memcpy_htod_async(to, &*ring, stream) }
    }
}

/// Loads an image into the current context.
fn load(image: &[u8]) -> Result<sys::CUmodule, DriverError> {
    // SAFETY: what the compiler made, whole; the driver copies it.
    unsafe { result::module::load_data(image.as_ptr().cast::<c_void>()) }
}

impl Device for Gpu {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let info = result::mem_get_info();
        let (free, _) = info.map_err(|error| failed("asking for free memory", error))?;
        Ok(free as u64)
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: the context is current, and the memory is filled before anybody sees it.
        let address = unsafe { result::malloc_sync(size) };
        let address = match address {
            Ok(address) => address,
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(DeviceError::Memory { what, bytes });
            }
            Err(error) => return Err(failed(what, error)),
        };
        self.allocated.push(address);
        // SAFETY: just allocated, of this size.
        unsafe { result::memset_d8_async(address, 0, size, self.stream) }
            .map_err(|error| failed(what, error))?;
        Ok(Address(address))
    }

    fn write(&mut self, to: Address, data: &[u8]) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let mut to = to.0;
        for piece in data.chunks(RING_BYTES / 2) {
            self.write_piece(to, piece)
                .map_err(|error| failed("a copy to the device", error))?;
            to += piece.len() as u64;
        }
        Ok(())
    }

    fn read(&mut self, from: Address, data: &mut [u8]) -> Result<(), DeviceError> {
        let mut from = from.0;
        for piece in data.chunks_mut(PLACE_BYTES) {
            self.begin_read(0, Address(from), piece.len())?;
            self.end_read(0, piece)?;
            from += piece.len() as u64;
        }
        Ok(())
    }

    fn begin_read(&mut self, place: usize, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let stream = self.stream;
        // SAFETY: the source is the caller's, inside of memory that `allocate` gave.
        unsafe { self.staging().begin(place, (from.0, bytes), stream) }
            .map_err(|error| failed("a copy from the device", error))
    }

    fn end_read(&mut self, place: usize, data: &mut [u8]) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        self.staging()
            .end(place, data)
            .map_err(|error| failed("a copy from the device", error))
    }

    fn prepare(&mut self, product: &Product) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let prepared = self.blas()?.prepare(product);
        prepared.map_err(|error| execute::product_failed(product, error))
    }

    fn begin_record(&mut self, key: usize) -> Result<(), DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        self.recording = Some(key);
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.stream, mode) }
            .map_err(|error| failed("recording", error))
    }

    fn end_record(&mut self) -> Result<(), DeviceError> {
        let Some(key) = self.recording.take() else {
            return Err(DeviceError::Operation {
                operation: "recording".to_owned(),
                cause: "none was begun".to_owned(),
            });
        };
        // SAFETY: the stream records; the graph is made into one that runs, uploaded, and given back.
        let graph = unsafe {
            let graph = result::stream::end_capture(self.stream);
            let graph = graph.map_err(|error| failed("recording", error))?;
            let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            let made = made.map_err(|error| failed("recording", error))?;
            let _ = result::graph::upload(made, self.stream);
            made
        };
        if let Some(old) = self.graphs.insert(key, graph) {
            // SAFETY: replaced, so nobody runs it any more.
            let _ = unsafe { result::graph::exec_destroy(old) };
        }
        Ok(())
    }

    fn replay(&mut self, key: usize) -> Result<bool, DeviceError> {
        self.bind().map_err(|error| failed("binding", error))?;
        let Some(graph) = self.graphs.get(&key) else {
            return Ok(false);
        };
        // SAFETY: graph and stream live as long as this value.
        unsafe { result::graph::launch(*graph, self.stream) }
            .map_err(|error| failed("a recorded step", error))?;
        Ok(true)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // SAFETY: each was made by this value and is given back once; the stream is idle or broken.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            for graph in self.graphs.values() {
                let _ = result::graph::exec_destroy(*graph);
            }
            self.blas = None;
            for address in &self.allocated {
                let _ = result::free_sync(*address);
            }
            for module in &self.modules {
                let _ = result::module::unload(*module);
            }
            self.staging = None;
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            CURRENT.set(0);
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}
