//! `config.json` and `generation_config.json`: the shape of the network, checked, with everything unsupported refused by name.

mod generation;
mod read;
mod rope;
#[cfg(test)]
mod tests;

pub use generation::GenerationConfig;
pub use read::ConfigError;
pub use rope::{Llama3Rope, Rope};

use read::Keys;
use serde_json::Value;

/// Name of the file that holds the shape of the network.
pub const CONFIG_FILE: &str = "config.json";
/// Name of the file that holds the generation defaults.
pub const GENERATION_FILE: &str = "generation_config.json";

/// A family of networks this crate runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`
    Llama,
    /// `MistralForCausalLM`
    Mistral,
    /// `Qwen2ForCausalLM`
    Qwen2,
    /// `Qwen3ForCausalLM`
    Qwen3,
}

impl Architecture {
    /// The name in `architectures`.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

const ARCHITECTURES: [Architecture; 4] = [
    Architecture::Llama,
    Architecture::Mistral,
    Architecture::Qwen2,
    Architecture::Qwen3,
];

/// The shape of a network. Every number is positive and within bounds; sizes divide as the forward pass needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Layers.
    pub layer_count: usize,
    /// Query heads.
    pub head_count: usize,
    /// Key and value heads; divides `head_count`.
    pub kv_head_count: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Positions the model was trained for.
    pub context_tokens: u32,
    /// Added to the mean square in `RMSNorm`.
    pub rms_norm_eps: f32,
    /// Position encoding.
    pub rope: Rope,
    /// Which projections add a bias.
    pub bias: Biases,
    /// Queries and keys pass an `RMSNorm` per head before rotation (Qwen3).
    pub qk_norm: bool,
    /// The output head is the embedding table.
    pub tied_embeddings: bool,
    /// (layers) how many positions back a layer sees, itself included; `None` sees all.
    pub sliding_window: Vec<Option<u32>>,
    /// First token of every text, if the model has one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// The longest sequence where no more than `tokens` are asked for; 0 asks for as many as the model was trained for.
    pub fn context_at_most(&self, tokens: u32) -> u32 {
        match tokens {
            0 => self.context_tokens,
            tokens => tokens.min(self.context_tokens),
        }
    }

    /// Reads `config.json`. A key that is absent means what the class in `transformers` makes of it.
    ///
    /// # Errors
    /// The text is not JSON, a value is out of bounds, or it asks for something unsupported; the error names file, key and value.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let keys = Keys::parse(CONFIG_FILE, bytes)?;
        let architecture = architecture(&keys)?;
        refuse_unsupported(&keys)?;
        let defaults = Defaults::of(architecture);
        let hidden_size = keys.size("hidden_size", Some(4096), 1 << 20)?;
        let head_count = keys.size("num_attention_heads", Some(32), 1 << 14)?;
        let kv_head_count = keys.size(
            "num_key_value_heads",
            Some(defaults.kv_heads.unwrap_or(head_count)),
            1 << 14,
        )?;
        if !head_count.is_multiple_of(kv_head_count) {
            return Err(keys.refuse(
                "num_key_value_heads",
                format!("does not divide num_attention_heads {head_count}"),
            ));
        }
        let head_dim = keys.size(
            "head_dim",
            Some(defaults.head_dim.unwrap_or(hidden_size / head_count)),
            1 << 12,
        )?;
        if !head_dim.is_multiple_of(2) {
            return Err(keys.refuse(
                "head_dim",
                format!("must be even for rotary positions, but is {head_dim}"),
            ));
        }
        let layer_count = keys.size("num_hidden_layers", Some(32), 1 << 12)?;
        let context = keys.size("max_position_embeddings", Some(defaults.context), 1 << 26)?;
        let vocab_size = keys.size("vocab_size", Some(defaults.vocab), 1 << 24)?;
        let attention_bias = keys.flag("attention_bias", false)?;
        let bias_by_key =
            matches!(architecture, Architecture::Llama | Architecture::Qwen3) && attention_bias;
        if architecture == Architecture::Mistral && attention_bias {
            return Err(keys.refuse(
                "attention_bias",
                "is not part of MistralForCausalLM".to_owned(),
            ));
        }
        let (bos_token_id, eos_token_ids) = end_tokens(&keys, &defaults, vocab_size)?;
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: keys.size(
                "intermediate_size",
                Some(defaults.intermediate),
                1 << 22,
            )?,
            layer_count,
            head_count,
            kv_head_count,
            head_dim,
            vocab_size,
            context_tokens: u32::try_from(context).expect("bounded above"),
            rms_norm_eps: keys.number("rms_norm_eps", 1e-6, 0.0..=1.0)?,
            rope: Rope::read(&keys)?,
            bias: Biases {
                qkv: architecture == Architecture::Qwen2 || bias_by_key,
                output: bias_by_key,
                mlp: architecture == Architecture::Llama && keys.flag("mlp_bias", false)?,
            },
            qk_norm: architecture == Architecture::Qwen3,
            tied_embeddings: keys.flag("tie_word_embeddings", false)?,
            sliding_window: sliding_windows(&keys, architecture, layer_count)?,
            bos_token_id,
            eos_token_ids,
        })
    }

    /// Query heads per key and value head.
    pub fn group_size(&self) -> usize {
        self.head_count / self.kv_head_count
    }

    /// Floats per position in one layer's keys (or values).
    pub fn kv_width(&self) -> usize {
        self.kv_head_count * self.head_dim
    }
}

/// Which projections add a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Query, key and value.
    pub qkv: bool,
    /// The output of attention.
    pub output: bool,
    /// Feed-forward.
    pub mlp: bool,
}

/// What an absent key means, which differs by class.
struct Defaults {
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    context: usize,
    vocab: usize,
    intermediate: usize,
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        let llama = Self {
            kv_heads: None,
            head_dim: None,
            context: 2048,
            vocab: 32_000,
            intermediate: 11_008,
            bos: Some(1),
            eos: Some(2),
        };
        let qwen2 = Self {
            kv_heads: Some(32),
            head_dim: None,
            context: 32_768,
            vocab: 151_936,
            intermediate: 22_016,
            bos: None,
            eos: None,
        };
        match architecture {
            Architecture::Llama => llama,
            Architecture::Mistral => Self {
                kv_heads: Some(8),
                context: 131_072,
                intermediate: 14_336,
                ..llama
            },
            Architecture::Qwen2 => qwen2,
            Architecture::Qwen3 => Self {
                head_dim: Some(128),
                ..qwen2
            },
        }
    }
}

fn architecture(keys: &Keys) -> Result<Architecture, ConfigError> {
    let supported = || {
        let names: Vec<_> = ARCHITECTURES
            .iter()
            .map(|architecture| architecture.class_name())
            .collect();
        format!("is not supported; supported are {}", names.join(", "))
    };
    let Some(Value::Array(names)) = keys.get("architectures") else {
        return Err(keys.refuse("architectures", supported()));
    };
    match names.as_slice() {
        [Value::String(name)] => ARCHITECTURES
            .into_iter()
            .find(|architecture| architecture.class_name() == name)
            .ok_or_else(|| keys.refuse("architectures", supported())),
        _ => Err(keys.refuse("architectures", supported())),
    }
}

/// Keys that would change the network's result and that nothing here implements.
fn refuse_unsupported(keys: &Keys) -> Result<(), ConfigError> {
    let absent: &[(&str, &str)] = &[
        (
            "quantization_config",
            "is not supported; convert the weights to bf16, f16 or f32",
        ),
        (
            "compression_config",
            "is not supported; convert the weights to bf16, f16 or f32",
        ),
        (
            "auto_map",
            "asks for code from the artifact, which is never run",
        ),
        ("num_experts", "is not supported (mixture of experts)"),
        ("num_local_experts", "is not supported (mixture of experts)"),
        ("vision_config", "is not supported (text only)"),
        ("audio_config", "is not supported (text only)"),
        ("final_logit_softcapping", "is not supported"),
        ("attn_logit_softcapping", "is not supported"),
    ];
    for (key, why) in absent {
        if keys.get(key).is_some() {
            return Err(keys.refuse(key, (*why).to_owned()));
        }
    }
    match keys.get("hidden_act") {
        None => {}
        Some(Value::String(name)) if name == "silu" || name == "swish" => {}
        Some(_) => {
            return Err(keys.refuse(
                "hidden_act",
                "is not supported; only \"silu\" is".to_owned(),
            ));
        }
    }
    let one = keys.number("partial_rotary_factor", 1.0, 0.0..=1.0)?;
    if (one - 1.0).abs() > f32::EPSILON {
        return Err(keys.refuse(
            "partial_rotary_factor",
            "is not supported; only 1.0 is".to_owned(),
        ));
    }
    Ok(())
}

fn end_tokens(
    keys: &Keys,
    defaults: &Defaults,
    vocab: usize,
) -> Result<(Option<u32>, Vec<u32>), ConfigError> {
    let bos = if keys.present("bos_token_id") {
        keys.token_ids("bos_token_id", vocab)?.first().copied()
    } else {
        defaults.bos
    };
    let eos = if keys.present("eos_token_id") {
        keys.token_ids("eos_token_id", vocab)?
    } else {
        defaults.eos.into_iter().collect()
    };
    Ok((bos, eos))
}

/// Mistral slides in every layer; Qwen only where asked, from a layer on or by `layer_types`.
fn sliding_windows(
    keys: &Keys,
    architecture: Architecture,
    layer_count: usize,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let window = || -> Result<Option<u32>, ConfigError> {
        if keys.present("sliding_window") && keys.get("sliding_window").is_none() {
            return Ok(None);
        }
        let size = keys.size("sliding_window", Some(4096), 1 << 26)?;
        Ok(Some(u32::try_from(size).expect("bounded above")))
    };
    match architecture {
        Architecture::Llama => match keys.get("sliding_window") {
            None => Ok(vec![None; layer_count]),
            Some(_) => Err(keys.refuse(
                "sliding_window",
                "is not part of LlamaForCausalLM".to_owned(),
            )),
        },
        Architecture::Mistral => Ok(vec![window()?; layer_count]),
        Architecture::Qwen2 | Architecture::Qwen3 => {
            if !keys.flag("use_sliding_window", false)? {
                return Ok(vec![None; layer_count]);
            }
            let window = window()?;
            let Some(types) = keys.get("layer_types") else {
                let from = keys.size_or_zero("max_window_layers", 28, 1 << 12)?;
                return Ok((0..layer_count)
                    .map(|layer| window.filter(|_| layer >= from))
                    .collect());
            };
            layer_windows(keys, types, window, layer_count)
        }
    }
}

fn layer_windows(
    keys: &Keys,
    types: &Value,
    window: Option<u32>,
    layer_count: usize,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let types = types.as_array().filter(|types| types.len() == layer_count);
    let Some(types) = types else {
        return Err(keys.refuse(
            "layer_types",
            format!("must list one type for each of {layer_count} layers"),
        ));
    };
    let one = |name: &Value| match name.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(window),
        _ => Err(keys.refuse(
            "layer_types",
            "may hold \"full_attention\" and \"sliding_attention\" only".to_owned(),
        )),
    };
    types.iter().map(one).collect()
}
