//! What of the device's memory a backend takes, and how much it can leave to keys and values.

use weir_model::backend::BackendLimits;
use weir_model::config::ModelConfig;

use crate::CudaError;
use crate::backend::SamplerMemory;
use crate::buffers::Buffers;
use crate::device::{Device, DeviceError};
use crate::idle::Idle;
use crate::metadata::Metadata;
use crate::options::{CudaOptions, block_bytes, limits};

/// Of what weights and steps leave, the part that keys and values get, in percent; the driver's own things, such as recorded steps, take
/// of the rest.
const KV_PERCENT: u64 = 90;
/// Places of a cache are 32-bit numbers in the kernels.
const POSITIONS_MAX: u64 = (1 << 31) - 1;

/// Everything that steps write.
pub(crate) struct Memory {
    pub buffers: Buffers,
    pub metadata: Metadata,
    pub sampler: SamplerMemory,
}

impl Memory {
    pub(crate) fn new(
        device: &mut impl Device,
        config: &ModelConfig,
        options: &CudaOptions,
        (limits, is_quantized): (&BackendLimits, bool),
    ) -> Result<Self, DeviceError> {
        let kinds = (options.cache, is_quantized);
        Ok(Self {
            buffers: Buffers::new(device, config, limits, kinds)?,
            metadata: Metadata::new(device, limits, config.group_size())?,
            sampler: SamplerMemory::new(device, config, limits)?,
        })
    }
}

/// The limits of a device that has the weights already: those that the options give, or with keys and values in most of what is left.
///
/// # Errors
/// An option is out of bounds, nothing is left, or the device failed.
pub(crate) fn fit(
    device: &impl Device,
    config: &ModelConfig,
    options: &CudaOptions,
    is_quantized: bool,
) -> Result<BackendLimits, CudaError> {
    if let Some(bytes) = options.kv_bytes {
        return limits(config, options, bytes);
    }
    let block = block_bytes(config, options);
    let least = limits(config, options, block)?;
    // Counted on a device that has no memory to run out of.
    let mut counting = Idle::like(device.properties());
    Memory::new(&mut counting, config, options, (&least, is_quantized))
        .map_err(CudaError::Device)?;
    let free = device.free_memory().map_err(CudaError::Device)?;
    let left = free.saturating_sub(counting.allocated()) / 100 * KV_PERCENT;
    if left < block {
        return Err(CudaError::Device(DeviceError::Memory {
            what: "a block of keys and values beside weights and steps",
            bytes: block,
        }));
    }
    let blocks_each = u64::from(least.context_tokens.div_ceil(options.block_tokens));
    let useful = blocks_each * u64::from(options.max_running);
    let countable = POSITIONS_MAX / u64::from(options.block_tokens);
    limits(config, options, left.min(useful.min(countable) * block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::CacheType;

    const MODEL: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":131072,"rms_norm_eps":1e-5,
        "rope_theta":500000.0,"tie_word_embeddings":false,"eos_token_id":128009,"hidden_act":"silu"}"#;

    fn options(kv_bytes: Option<u64>, context_tokens: u32) -> CudaOptions {
        CudaOptions {
            kv_bytes,
            cache: CacheType::Act,
            block_tokens: 16,
            max_running: 256,
            max_batch_tokens: 8192,
            context_tokens,
        }
    }

    #[test]
    fn keys_and_values_get_most_of_what_is_left() {
        let config = ModelConfig::parse(MODEL.as_bytes()).unwrap();
        let mut device = Idle::default();
        let fitted = |device: &Idle, options| fit(device, &config, &options, false);
        let whole = fitted(&device, options(None, 0)).unwrap().kv_bytes;
        let free = device.free_memory().unwrap();
        assert!((free / 2..free / 10 * 9).contains(&whole), "{whole}");
        device.allocate("weights", 16 << 30).unwrap();
        let beside = fitted(&device, options(None, 0)).unwrap().kv_bytes;
        assert!(beside + (14 << 30) < whole, "{beside}");
        // As much as all sequences of a short context can hold, and no more.
        let short = fitted(&device, options(None, 64)).unwrap();
        assert_eq!(short.blocks, 256 * 4);
        let told = fitted(&device, options(Some(1 << 30), 0)).unwrap().kv_bytes;
        assert_eq!(told, 1 << 30);
    }

    #[test]
    fn a_device_that_weights_have_filled_is_refused() {
        let config = ModelConfig::parse(MODEL.as_bytes()).unwrap();
        let mut device = Idle::default();
        let free = device.free_memory().unwrap();
        device.allocate("weights", free - (1 << 20)).unwrap();
        let error = fit(&device, &config, &options(None, 0), false).unwrap_err();
        let CudaError::Device(error) = error else {
            panic!("{error}");
        };
        assert!(error.to_string().contains("keys and values"), "{error}");
    }
}
