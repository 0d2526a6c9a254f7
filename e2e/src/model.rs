//! Models with random weights in the layout people bring, for tests that need a certain shape rather than a good answer.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::{Client, Seeded, repository};

/// The shape of a random Llama. The tokenizer is the quickstart model's.
#[derive(Clone, Copy, Debug)]
pub struct RandomModel {
    /// Width.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Attention heads; half as many KV heads.
    pub heads: usize,
    /// Width of the feed-forward part.
    pub intermediate: usize,
    /// Longest sequence.
    pub context: usize,
    /// Of the weights.
    pub seed: u64,
}

impl Default for RandomModel {
    fn default() -> Self {
        Self {
            hidden: 64,
            layers: 2,
            heads: 4,
            intermediate: 128,
            context: 2048,
            seed: 1,
        }
    }
}

/// Writes a random adapter of a random model, as `peft` saves one: of two products in each layer, and strong enough to be heard.
///
/// # Errors
/// The folder cannot be made or written to.
pub fn write_random_adapter(dir: &Path, shape: RandomModel, seed: u64) -> Result<()> {
    const RANK: usize = 8;
    fs::create_dir_all(dir)?;
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 64, "bias": "none",
        "target_modules": ["q_proj", "down_proj"],
    });
    fs::write(
        dir.join("adapter_config.json"),
        serde_json::to_vec_pretty(&config)?,
    )?;
    let (hidden, inner) = (shape.hidden, shape.intermediate);
    let mut tensors = Vec::new();
    for layer in 0..shape.layers {
        for (module, input, output) in [
            ("self_attn.q_proj", hidden, hidden),
            ("mlp.down_proj", inner, hidden),
        ] {
            let name = format!("base_model.model.model.layers.{layer}.{module}");
            tensors.push((format!("{name}.lora_A.weight"), vec![RANK, input]));
            tensors.push((format!("{name}.lora_B.weight"), vec![output, RANK]));
        }
    }
    let weights = safetensors(&tensors, seed)?;
    fs::write(dir.join("adapter_model.safetensors"), weights)?;
    Ok(())
}

/// Writes a model of the usual shape whose weights are others: as fast as the usual one, and wrong.
///
/// # Errors
/// As [`write_random_model`].
pub fn write_other_weights(dir: &Path) -> Result<()> {
    let other = RandomModel {
        seed: 9,
        ..RandomModel::default()
    };
    write_random_model(
        dir,
        &repository().join("examples/models/tiny-chat-v1"),
        other,
    )
}

/// References in JSON lines: so many prompts with the answers of the version that serves now, which are right.
///
/// # Errors
/// A request fails.
pub fn reference_lines(client: &Client, count: usize) -> Result<String> {
    let line = |place: usize| {
        let prompt = format!("reference {place}");
        let body = json!({"model": "random", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 6});
        let reply = client.post("/v1/chat/completions", &body)?;
        let answer = &reply.body["choices"][0]["message"]["content"];
        let line = json!({"prompt": prompt, "accept": {"exact": answer}, "maxTokens": 6});
        Ok(format!("{line}\n"))
    };
    (0..count).map(line).collect()
}

/// Writes the model into `dir` (made if missing), tokenizer files copied from `tokenizer_of`.
///
/// # Errors
/// Files cannot be read or written.
pub fn write_random_model(dir: &Path, tokenizer_of: &Path, shape: RandomModel) -> Result<()> {
    fs::create_dir_all(dir)?;
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        fs::copy(tokenizer_of.join(name), dir.join(name))
            .with_context(|| format!("copying {name}"))?;
    }
    let base: Value = serde_json::from_slice(&fs::read(tokenizer_of.join("config.json"))?)?;
    let vocab = base["vocab_size"].as_u64().context("vocab_size")? as usize;
    let kv_heads = shape.heads / 2;
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "bos_token_id": base["bos_token_id"],
        "eos_token_id": base["eos_token_id"],
    });
    fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    fs::write(
        dir.join("model.safetensors"),
        safetensors(&tensors(vocab, kv_heads, shape), shape.seed)?,
    )?;
    Ok(())
}

fn tensors(vocab: usize, kv_heads: usize, shape: RandomModel) -> Vec<(String, Vec<usize>)> {
    let (hidden, kv) = (shape.hidden, shape.hidden / shape.heads * kv_heads);
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![vocab, hidden])];
    for layer in 0..shape.layers {
        for (name, dims) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![shape.intermediate, hidden]),
            ("mlp.up_proj", vec![shape.intermediate, hidden]),
            ("mlp.down_proj", vec![hidden, shape.intermediate]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), dims));
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
    tensors
}

fn safetensors(tensors: &[(String, Vec<usize>)], seed: u64) -> Result<Vec<u8>> {
    let mut random = Seeded(seed);
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dims) in tensors {
        let begin = data.len();
        // Norm weights are one, so that a random model's activations stay in range.
        let is_norm = dims.len() == 1;
        for _ in 0..dims.iter().product::<usize>() {
            let uniform = (random.number() >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
            let value = if is_norm { 1.0 } else { uniform * 0.4 };
            data.extend_from_slice(&half::bf16::from_f32(value).to_le_bytes());
        }
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": dims, "data_offsets": [begin, data.len()]}),
        );
    }
    let header = serde_json::to_vec(&Value::Object(header))?;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    Ok(file)
}
