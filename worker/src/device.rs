//! Opens the device a model runs on. CUDA joins the CPU here.

use weir_model::backend::Backend;
use weir_model::quant::QuantKind;
use weir_model::{CpuOptions, KvType, LoadError, OpenFiles, load_cpu};

use crate::config::{EngineSettings, KvDtype, WeightFormat};

/// The CPU, with the weights mapped from verified files. `context_tokens` is what the signed manifest allows.
///
/// # Errors
/// The weights cannot be used, or a setting is out of bounds.
pub(crate) fn open_cpu(
    files: &OpenFiles,
    context_tokens: u32,
    settings: &EngineSettings,
) -> Result<Box<dyn Backend>, LoadError> {
    let EngineSettings {
        max_running,
        max_batch_tokens,
        kv_bytes,
        block_tokens,
        kv_dtype,
        weights,
        draft_tokens: _,
        max_waiting: _,
        threads,
    } = *settings;
    let options = CpuOptions {
        threads: threads.unwrap_or(0),
        kv_bytes,
        kv_type: match kv_dtype {
            KvDtype::F32 => KvType::F32,
            KvDtype::Bf16 => KvType::Bf16,
            KvDtype::F16 => KvType::F16,
            KvDtype::Int8 => KvType::Int8,
        },
        weights: match weights {
            WeightFormat::Stored => weir_model::WeightFormat::Stored,
            WeightFormat::Int8 => weir_model::WeightFormat::Quantized(QuantKind::Int8),
            WeightFormat::Int4 => weir_model::WeightFormat::Quantized(QuantKind::Int4),
        },
        block_tokens,
        max_running,
        max_batch_tokens,
        context_tokens,
        ..CpuOptions::default()
    };
    Ok(Box::new(load_cpu(files, &options)?))
}
