//! Checks and measures the backend on a real GPU; `cargo xtask bench gpu` runs it.
//!
//! `gpu parity DIR` runs every model in a folder on the CPU and on the GPU, and steps that are replayed against ones that are started anew.
//! `gpu speed SHAPE...` measures random weights of these shapes. `gpu host` measures what a step costs the host, and needs no GPU. Each line of the output is JSON. The exit status is 3 where there is no GPU.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example speaks to a person"
)]

mod batches;
mod host;
mod parity;
mod speed;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use weir_cuda::gpu::{Gpu, GpuInfo, KernelCache, Libraries, NoGpu};
use weir_cuda::kernels::Variant;

/// The GPU that everything runs on.
struct Machine {
    libraries: Libraries,
    info: GpuInfo,
}

impl Machine {
    fn find() -> Result<Self, NoGpu> {
        let libraries = Libraries::find()?;
        let info = libraries.devices()?.into_iter().next();
        Ok(Self {
            libraries,
            info: info.ok_or(NoGpu::NoDevice)?,
        })
    }

    fn open(&self, variant: &Variant) -> Result<Gpu, Box<dyn Error>> {
        let cache = KernelCache::new(None);
        Ok(Gpu::open(self.libraries, &self.info, variant, &cache)?)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if words == ["host"] {
        return ended(host::run());
    }
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(error) => {
            eprintln!("no GPU: {error}");
            return ExitCode::from(3);
        }
    };
    let info = &machine.info;
    println!(
        "{{\"gpu\":\"{}\",\"capability\":\"{}.{}\",\"multiprocessors\":{},\"memory_bytes\":{},\"driver\":{}}}",
        info.name,
        info.capability.0,
        info.capability.1,
        info.multiprocessors,
        info.memory_bytes,
        info.driver_version
    );
    let done = match words.as_slice() {
        ["parity", folder] => parity::run(&machine, Path::new(folder)),
        ["speed", shapes @ ..] if !shapes.is_empty() => speed::run(&machine, shapes),
        _ => {
            eprintln!("usage: gpu host | gpu parity DIR | gpu speed 0.5B|1B|8B...");
            return ExitCode::from(2);
        }
    };
    ended(done)
}

fn ended(done: Result<(), Box<dyn Error>>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
