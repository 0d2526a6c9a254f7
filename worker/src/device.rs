//! Opens the device a model runs on: the CPU, or a GPU where one was asked for.

use weir_model::backend::Backend;
use weir_model::quant::QuantKind;
use weir_model::{CpuOptions, CpuThreads, KvType, OpenFiles, load_cpu, load_cpu_on};

use crate::config::{
    DeviceChoice, DeviceSettings, EngineSettings, KV_BYTES_ON_CPU, KvDtype, ON_CPU, StepLimits,
    WeightFormat,
};
use crate::load::LoadError;

/// What a worker was told to run on, and found.
pub(crate) enum Chosen {
    /// The CPU.
    Cpu,
    /// The first GPU.
    Gpu(gpu::Found),
}

/// Looks for what was asked for, before anything is read. `auto` is the CPU, whatever is found: no kernel has run on a GPU yet.
///
/// # Errors
/// A GPU was asked for, and there is none that can be used.
pub(crate) fn choose(choice: DeviceChoice) -> Result<Chosen, LoadError> {
    match choice {
        DeviceChoice::Cpu => return Ok(Chosen::Cpu),
        DeviceChoice::Cuda => {
            let found = gpu::find().map_err(|why| LoadError::NoDevice { why })?;
            return Ok(Chosen::Gpu(found));
        }
        DeviceChoice::Auto => {}
    }
    match gpu::find() {
        Ok(found) => tracing::info!(
            device = gpu::name(&found),
            "the model runs on the CPU; --device cuda runs it on the GPU, whose kernels have only been tried on a CPU"
        ),
        Err(why) => tracing::info!(why, "the model runs on the CPU; no GPU can be used"),
    }
    Ok(Chosen::Cpu)
}

/// The device, with the weights of verified files. `context_tokens` is what the signed manifest allows.
///
/// # Errors
/// The weights cannot be used, a setting is out of bounds, or the device does not take them.
pub(crate) fn open(
    files: &OpenFiles,
    context_tokens: u32,
    settings: &EngineSettings,
    (chosen, device, threads): (Chosen, &DeviceSettings, Option<CpuThreads>),
) -> Result<Box<dyn Backend>, LoadError> {
    match chosen {
        Chosen::Cpu => open_cpu(files, context_tokens, settings, threads),
        Chosen::Gpu(found) => gpu::open(files, context_tokens, settings, (device, found)),
    }
}

fn weight_format(format: WeightFormat) -> weir_model::WeightFormat {
    match format {
        WeightFormat::Stored => weir_model::WeightFormat::Stored,
        WeightFormat::Int8 => weir_model::WeightFormat::Quantized(QuantKind::Int8),
        WeightFormat::Int4 => weir_model::WeightFormat::Quantized(QuantKind::Int4),
    }
}

/// The CPU, with the weights mapped.
fn open_cpu(
    files: &OpenFiles,
    context_tokens: u32,
    settings: &EngineSettings,
    threads: Option<CpuThreads>,
) -> Result<Box<dyn Backend>, LoadError> {
    let StepLimits {
        max_running,
        max_batch_tokens,
    } = settings.limits(ON_CPU);
    let EngineSettings {
        kv_bytes,
        block_tokens,
        kv_dtype,
        weights,
        threads: count,
        ..
    } = *settings;
    let options = CpuOptions {
        threads: count.unwrap_or(0),
        kv_bytes: kv_bytes.unwrap_or(KV_BYTES_ON_CPU),
        kv_type: match kv_dtype {
            KvDtype::F32 => KvType::F32,
            KvDtype::Bf16 => KvType::Bf16,
            KvDtype::F16 => KvType::F16,
            KvDtype::Int8 => KvType::Int8,
        },
        weights: weight_format(weights),
        block_tokens,
        max_running,
        max_batch_tokens,
        context_tokens,
        ..CpuOptions::default()
    };
    let loaded = match threads {
        Some(threads) => load_cpu_on(files, &options, threads),
        None => load_cpu(files, &options),
    };
    Ok(Box::new(loaded.map_err(LoadError::Weights)?))
}

#[cfg(feature = "cuda")]
mod gpu {
    use weir_cuda::gpu::{Gpu, GpuInfo, KernelCache, Libraries};
    use weir_cuda::kernels::CacheType;
    use weir_cuda::{CudaBackend, CudaOptions, variant};
    use weir_model::load_network;

    use super::{
        Backend, DeviceSettings, EngineSettings, KvDtype, LoadError, OpenFiles, weight_format,
    };
    use crate::config::ON_GPU;
    use crate::error::chain;

    /// Proof that the libraries are there, and the first device.
    pub(super) type Found = (Libraries, GpuInfo);

    /// The first GPU, or why there is none.
    pub(super) fn find() -> Result<Found, String> {
        let libraries = Libraries::find().map_err(|error| error.to_string())?;
        let devices = libraries.devices().map_err(|error| error.to_string())?;
        let count = devices.len();
        let first = devices.into_iter().next();
        let info = first.ok_or_else(|| "the driver sees no device".to_owned())?;
        if count > 1 {
            tracing::warn!(
                count,
                "the worker uses the first of its GPUs only; give a worker one"
            );
        }
        Ok((libraries, info))
    }

    pub(super) fn name((_, info): &Found) -> &str {
        &info.name
    }

    pub(super) fn open(
        files: &OpenFiles,
        context_tokens: u32,
        settings: &EngineSettings,
        (device, (libraries, info)): (&DeviceSettings, Found),
    ) -> Result<Box<dyn Backend>, LoadError> {
        tracing::info!(
            device = info.name,
            capability = format!("{}.{}", info.capability.0, info.capability.1),
            multiprocessors = info.multiprocessors,
            memory_bytes = info.memory_bytes,
            driver = info.driver_version,
            "the model runs on the GPU"
        );
        let format = weight_format(settings.weights);
        let (config, network) = load_network(files, format).map_err(LoadError::Weights)?;
        let limits = settings.limits(ON_GPU);
        let options = CudaOptions {
            kv_bytes: settings.kv_bytes,
            cache: match settings.kv_dtype {
                KvDtype::Int8 => CacheType::Fp8,
                KvDtype::F32 | KvDtype::Bf16 | KvDtype::F16 => CacheType::Act,
            },
            block_tokens: settings.block_tokens,
            max_running: limits.max_running,
            max_batch_tokens: limits.max_batch_tokens,
            context_tokens,
        };
        let kernels = variant(&network, &config, &options);
        let cache = KernelCache::new(device.kernel_cache.clone());
        let failed = |cause: String| LoadError::Device { cause };
        let gpu =
            Gpu::open(libraries, &info, &kernels, &cache).map_err(|error| failed(chain(&error)))?;
        let backend = CudaBackend::new(gpu, &network, &config, &options)
            .map_err(|error| failed(chain(&error)))?;
        Ok(Box::new(backend))
    }
}

#[cfg(not(feature = "cuda"))]
mod gpu {
    use std::convert::Infallible;

    use super::{Backend, DeviceSettings, EngineSettings, LoadError, OpenFiles};

    pub(super) type Found = Infallible;

    pub(super) fn find() -> Result<Found, String> {
        Err("this binary was built without the feature \"cuda\"".to_owned())
    }

    pub(super) fn name(found: &Found) -> &str {
        match *found {}
    }

    pub(super) fn open(
        _: &OpenFiles,
        _: u32,
        _: &EngineSettings,
        (_, found): (&DeviceSettings, Infallible),
    ) -> Result<Box<dyn Backend>, LoadError> {
        match found {}
    }
}
