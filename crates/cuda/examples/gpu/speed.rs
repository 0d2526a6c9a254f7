//! How fast shapes of models are, with random weights: decode at several batch sizes, prefill, both mixed, beside what the same device copies and
//! multiplies at best.

use std::error::Error;
use std::time::{Duration, Instant};

use weir_cuda::device::{Address, Device as _, Execute as _, Product, ResultType};
use weir_cuda::gpu::Gpu;
use weir_cuda::kernels::CacheType;
use weir_cuda::{CudaBackend, CudaOptions, variant};
use weir_model::backend::{Backend as _, NoMasks, SamplingParams};
use weir_model::config::ModelConfig;
use weir_model::network::Network;
use weir_scheduler::{Batch, SlotId};

use super::Machine;
use super::batches::{BLOCK_TOKENS, Piece, batch};

/// Positions each sequence has room for.
const CONTEXT: u32 = 1024;
const BLOCKS: u32 = CONTEXT / BLOCK_TOKENS;
const PROMPT: u32 = 512;
const STEPS: u32 = 40;
const BATCHES: [u32; 4] = [1, 8, 64, 256];

/// Configurations of public models of these sizes.
fn config(shape: &str) -> Result<ModelConfig, Box<dyn Error>> {
    let text = match shape {
        "0.5B" => {
            r#"{"architectures":["Qwen2ForCausalLM"],"hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,"num_attention_heads":14,
            "num_key_value_heads":2,"vocab_size":151936,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":1000000.0,
            "tie_word_embeddings":true,"eos_token_id":151645,"hidden_act":"silu"}"#
        }
        "1B" => {
            r#"{"architectures":["LlamaForCausalLM"],"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":32,
            "num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000.0,
            "tie_word_embeddings":true,"eos_token_id":128009,"hidden_act":"silu"}"#
        }
        "8B" => {
            r#"{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,
            "num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000.0,
            "tie_word_embeddings":false,"eos_token_id":128009,"hidden_act":"silu"}"#
        }
        other => return Err(format!("no shape {other:?}; 0.5B, 1B and 8B are known").into()),
    };
    Ok(ModelConfig::parse(text.as_bytes())?)
}

/// Multiply-adds of a token and bytes of weights a step reads.
fn size(config: &ModelConfig) -> (f64, f64) {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let heads = config.head_count * config.head_dim;
    let layer = hidden * (2 * heads + 2 * config.kv_width() + 3 * inner);
    let all = config.layer_count * layer + config.vocab_size * hidden;
    (all as f64, 2.0 * all as f64)
}

pub(super) fn run(machine: &Machine, shapes: &[&str]) -> Result<(), Box<dyn Error>> {
    for shape in shapes {
        let config = config(shape)?;
        let network = Network::random(&config)?;
        let options = CudaOptions {
            kv_bytes: Some(kv_bytes(&config)),
            cache: CacheType::Act,
            block_tokens: BLOCK_TOKENS,
            max_running: 256,
            max_batch_tokens: 8192,
            context_tokens: CONTEXT,
        };
        let mut gpu = machine.open(&variant(&network, &config, &options))?;
        let bandwidth = 2.0 * f64::from(1u32 << 30) / gpu.copy_seconds(1 << 30)?;
        let rate = product_rate(&mut gpu)?;
        println!(
            "{{\"shape\":\"{shape}\",\"copy_bytes_per_second\":{bandwidth:.4e},\"product_flops\":{rate:.4e}}}"
        );
        let begin = Instant::now();
        let mut backend = CudaBackend::new(gpu, &network, &config, &options)?;
        println!(
            "{{\"shape\":\"{shape}\",\"load_seconds\":{:.2}}}",
            begin.elapsed().as_secs_f64()
        );
        for slot in (0..options.max_running).map(SlotId) {
            backend.open(slot, &SamplingParams::greedy(), &[], &[]);
        }
        let (multiplies, bytes) = size(&config);
        for rows in BATCHES {
            let step = decode(rows, PROMPT);
            let median = median(&mut backend, &step)?;
            let tokens = f64::from(rows) / median.as_secs_f64();
            let share = bytes / median.as_secs_f64() / bandwidth;
            println!(
                "{{\"shape\":\"{shape}\",\"decode_rows\":{rows},\"step_us\":{},\"tokens_per_second\":{tokens:.1},\"share_of_copy_bandwidth\":{share:.3}}}",
                median.as_micros()
            );
        }
        for (name, step) in [("prefill", prefill(8)), ("mixed", mixed())] {
            let median = median(&mut backend, &step)?;
            let tokens = step.tokens.len() as f64 / median.as_secs_f64();
            let share = 2.0 * multiplies * tokens / rate;
            println!(
                "{{\"shape\":\"{shape}\",\"{name}_tokens\":{},\"step_us\":{},\"tokens_per_second\":{tokens:.1},\"share_of_product_rate\":{share:.3}}}",
                step.tokens.len(),
                median.as_micros()
            );
        }
    }
    Ok(())
}

fn kv_bytes(config: &ModelConfig) -> u64 {
    let position = 2 * 2 * config.layer_count * config.kv_width();
    position as u64 * u64::from(256 * CONTEXT)
}

fn token(slot: u32, position: u32) -> u32 {
    (slot * 31 + position * 7) % 1000
}

fn decode(rows: u32, start: u32) -> Batch {
    let pieces: Vec<Piece> = (0..rows)
        .map(|slot| Piece {
            slot,
            start,
            count: 1,
            samples: true,
        })
        .collect();
    batch(&pieces, BLOCKS, token)
}

fn prefill(sequences: u32) -> Batch {
    let pieces: Vec<Piece> = (0..sequences)
        .map(|slot| Piece {
            slot,
            start: 0,
            count: PROMPT,
            samples: true,
        })
        .collect();
    batch(&pieces, BLOCKS, token)
}

/// 64 sequences that decode beside a prompt.
fn mixed() -> Batch {
    let mut pieces: Vec<Piece> = (0..64)
        .map(|slot| Piece {
            slot,
            start: PROMPT,
            count: 1,
            samples: true,
        })
        .collect();
    pieces.push(Piece {
        slot: 64,
        start: 0,
        count: PROMPT,
        samples: true,
    });
    batch(&pieces, BLOCKS, token)
}

fn median(backend: &mut CudaBackend<Gpu>, step: &Batch) -> Result<Duration, Box<dyn Error>> {
    let mut sampled = Vec::new();
    let mut times = Vec::new();
    for round in 0..STEPS + 3 {
        let begin = Instant::now();
        backend.step(step, &NoMasks, &mut sampled)?;
        // The first ones choose algorithms.
        if round >= 3 {
            times.push(begin.elapsed());
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Operations per second of a large product.
fn product_rate(gpu: &mut Gpu) -> Result<f64, Box<dyn Error>> {
    const SIDE: usize = 8192;
    let bytes = (SIDE * SIDE * 2) as u64;
    let mut room = || gpu.allocate("a product", bytes);
    let (x, weights, out): (Address, Address, Address) = (room()?, room()?, room()?);
    // Zeros would take less power, and the device would run faster than it does.
    let mut state = 1u32;
    let numbers: Vec<u8> = (0..SIDE * SIDE)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // bf16 numbers from 1 to 2, of both signs.
            (0x3f80 | (state >> 16 & 0x807f)).to_le_bytes()[..2].to_vec()
        })
        .collect();
    gpu.write(x, &numbers)?;
    gpu.write(weights, &numbers)?;
    let product = Product {
        rows: SIDE,
        outputs: SIDE,
        inputs: SIDE,
        x,
        weights,
        out,
        stride: SIDE,
        result: ResultType::Act,
    };
    let mut byte = [0];
    gpu.multiply(&product)?;
    gpu.read(out, &mut byte)?;
    let begin = Instant::now();
    for _ in 0..20 {
        gpu.multiply(&product)?;
    }
    gpu.read(out, &mut byte)?;
    Ok(20.0 * 2.0 * (SIDE as f64).powi(3) / begin.elapsed().as_secs_f64())
}
