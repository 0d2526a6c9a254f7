//! Checks and measures the backend on a real GPU; `cargo xtask bench gpu` runs it.
//!
//! `gpu parity DIR` runs the models in a folder, and some with random weights, on the CPU and on the GPU; steps that are replayed against ones
//! that are started anew; and steps that are started before the one before was read against ones that are not.
//! `gpu devices` only opens it. `gpu speed SHAPE...` measures random weights of these shapes. `gpu host` measures what a step costs the host, and needs no GPU. Each line of the output is JSON. The exit status is 3 where there is no GPU.
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
use weir_cuda::kernels::{ActType, CacheType, Variant};

/// The GPU that everything runs on.
struct Machine {
    libraries: Libraries,
    info: GpuInfo,
    /// Cases share kernels, and compiling them takes longer than running them.
    cache: KernelCache,
}

impl Machine {
    fn find() -> Result<Self, NoGpu> {
        let libraries = Libraries::find()?;
        let info = libraries.devices()?.into_iter().next();
        Ok(Self {
            libraries,
            info: info.ok_or(NoGpu::NoDevice)?,
            cache: KernelCache::new(std::env::var_os("WEIR_KERNEL_CACHE").map(Into::into)),
        })
    }

    /// Compiles and loads kernels, and runs nothing.
    fn probe(&self) -> Result<(), Box<dyn Error>> {
        let variant = Variant {
            act: ActType::Bf16,
            cache: CacheType::Act,
            head_dim: 64,
        };
        self.open(&variant).map(drop)
    }

    fn open(&self, variant: &Variant) -> Result<Gpu, Box<dyn Error>> {
        Ok(Gpu::open(self.libraries, &self.info, variant, &self.cache)?)
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
        ["devices"] => machine.probe(),
        ["parity", folder] => compare(&machine, Path::new(folder)),
        ["speed", shapes @ ..] if !shapes.is_empty() => speed::run(&machine, shapes),
        _ => {
            eprintln!("usage: gpu host | gpu devices | gpu parity DIR | gpu speed 0.5B|1B|8B...");
            return ExitCode::from(2);
        }
    };
    ended(done)
}

/// Everything that is compared; the first difference that is too large ends it.
fn compare(machine: &Machine, folder: &Path) -> Result<(), Box<dyn Error>> {
    let (golden, wide) = (parity::golden(folder)?, parity::wide()?);
    for case in golden.iter().chain(&wide) {
        let report = parity::compare(case, case, |variant| machine.open(variant))?;
        println!("{report}");
        report.judge()?;
    }
    let work = parity::Work {
        sequences: 15,
        vocab: 1000,
        output: 30,
    };
    for case in &wide {
        let mut backend = case.on(|variant| machine.open(variant))?;
        let (want, _) = parity::run_ahead(&mut backend, work, false)?;
        let (got, ahead) = parity::run_ahead(&mut backend, work, true)?;
        let same = got
            .iter()
            .filter(|(id, output)| want.get(id) == Some(output));
        let same = same.count();
        println!(
            "{{\"ahead\":\"{}\",\"steps\":{ahead},\"sequences\":{},\"same\":{same}}}",
            case.name,
            want.len()
        );
        if same != want.len() || ahead == 0 {
            return Err(format!("{}: steps started ahead change tokens", case.name).into());
        }
    }
    Ok(())
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
