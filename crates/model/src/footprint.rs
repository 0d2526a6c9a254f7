//! What a model takes in memory, told from its configuration before anything is loaded.

use crate::config::ModelConfig;
use crate::cpu::{CpuOptions, KvType, WeightFormat, kv_block_bytes};
use crate::quant::{GROUP, QuantKind};

/// Bytes of a model in a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Numbers in matrices, the embedding among them; norms and biases are too few to count.
    pub parameters: u64,
    /// Of all weights, in the format they are computed with.
    pub weight_bytes: u64,
    /// Of the keys and values of one token, in all layers.
    pub kv_token_bytes: u64,
}

/// The footprint of a model whose files hold `stored_bits` bits a weight.
pub fn footprint(
    config: &ModelConfig,
    weights: WeightFormat,
    kv: KvType,
    stored_bits: u64,
) -> Footprint {
    let parameters = parameters(config);
    let bits = match weights {
        WeightFormat::Stored => stored_bits * GROUP as u64,
        WeightFormat::Quantized(kind) => group_bits(kind),
    };
    let options = CpuOptions {
        kv_type: kv,
        ..CpuOptions::default()
    };
    Footprint {
        parameters,
        weight_bytes: (parameters * bits).div_ceil(8 * GROUP as u64),
        kv_token_bytes: kv_block_bytes(config, &options) / u64::from(options.block_tokens),
    }
}

/// Bits of a group of weights with its scale, and its minimum where there is one.
fn group_bits(kind: QuantKind) -> u64 {
    let bytes = kind.group_bytes() / crate::quant::PANEL + 2 * kind.numbers();
    8 * bytes as u64
}

fn parameters(config: &ModelConfig) -> u64 {
    let heads = config.head_count * config.head_dim;
    let kv_heads = config.kv_head_count * config.head_dim;
    let attention = config.hidden_size * (2 * heads + 2 * kv_heads);
    let forward = 3 * config.hidden_size * config.intermediate_size;
    let tables = if config.tied_embeddings { 1 } else { 2 };
    let table = tables * config.vocab_size * config.hidden_size;
    (config.layer_count * (attention + forward) + table) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileSource as _, OpenFiles};

    #[test]
    fn the_footprint_of_an_example_is_what_its_files_and_its_quantized_copy_take() {
        let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let folder = examples.join("models/tiny-chat-v2");
        let files = OpenFiles::from_dir(&folder).unwrap();
        let config = ModelConfig::parse(&files.require("config.json").unwrap()).unwrap();
        let stored = std::fs::metadata(folder.join("model.safetensors")).unwrap();
        let told = footprint(&config, WeightFormat::Stored, KvType::Bf16, 16);
        let near = |told: u64, found: u64| told.abs_diff(found) * 50 < found;
        assert!(
            near(told.weight_bytes, stored.len()),
            "{told:?}, {stored:?}"
        );
        for kind in [QuantKind::Int8, QuantKind::Int4] {
            let written =
                crate::quant::write_quantized(&files, kind, &mut std::io::sink()).unwrap();
            let told = footprint(&config, WeightFormat::Quantized(kind), KvType::Bf16, 16);
            assert!(
                near(told.weight_bytes, written.after),
                "{told:?}, {written:?}"
            );
        }
        let int8 = footprint(&config, WeightFormat::Stored, KvType::Int8, 16);
        assert!(int8.kv_token_bytes < told.kv_token_bytes * 3 / 4);
    }
}
