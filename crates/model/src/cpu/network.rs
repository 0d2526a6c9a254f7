//! The weights of a network by their place in it.

use crate::config::ModelConfig;
use crate::weights::{Matrix, TensorFiles, WeightsError};

/// A network's weights. Matrices stay where they are mapped; vectors are small and become f32.
pub(super) struct Network {
    /// (vocabulary, hidden)
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    /// (hidden)
    pub final_norm: Vec<f32>,
    /// (vocabulary, hidden)
    pub head: Matrix,
}

/// A product and its bias.
pub(super) struct Linear {
    /// (out, in)
    pub weight: Matrix,
    /// (out)
    pub bias: Option<Vec<f32>>,
}

pub(super) struct Layer {
    /// (hidden)
    pub attention_norm: Vec<f32>,
    /// (heads · `head_dim`, hidden)
    pub q: Linear,
    /// (`kv_heads` · `head_dim`, hidden)
    pub k: Linear,
    /// (`kv_heads` · `head_dim`, hidden)
    pub v: Linear,
    /// (`head_dim`) each, where queries and keys are normalised
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// (hidden, heads · `head_dim`)
    pub o: Linear,
    /// (hidden)
    pub mlp_norm: Vec<f32>,
    /// (intermediate, hidden)
    pub gate: Linear,
    /// (intermediate, hidden)
    pub up: Linear,
    /// (hidden, intermediate)
    pub down: Linear,
}

impl Network {
    pub(super) fn load(mut files: TensorFiles, config: &ModelConfig) -> Result<Self, WeightsError> {
        let table = [config.vocab_size, config.hidden_size];
        let embedding = files.take("model.embed_tokens.weight", &table)?;
        let layers = (0..config.layer_count)
            .map(|layer| Layer::load(&mut files, config, layer))
            .collect::<Result<_, _>>()?;
        let final_norm = files
            .take("model.norm.weight", &[config.hidden_size])?
            .to_vec();
        let head = if config.tied_embeddings {
            embedding.clone()
        } else {
            files.take("lm_head.weight", &table)?
        };
        // Old files carry the frequencies, which follow from the configuration; tied ones may carry the head a second time.
        let tied = config.tied_embeddings;
        files.finish(|name| {
            name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
        })?;
        Ok(Self {
            embedding,
            layers,
            final_norm,
            head,
        })
    }
}

impl Layer {
    fn load(
        files: &mut TensorFiles,
        config: &ModelConfig,
        layer: usize,
    ) -> Result<Self, WeightsError> {
        let hidden = config.hidden_size;
        let (heads, kv) = (config.head_count * config.head_dim, config.kv_width());
        let mut vector = |name: &str, size: usize| -> Result<Vec<f32>, WeightsError> {
            Ok(files
                .take(&format!("model.layers.{layer}.{name}.weight"), &[size])?
                .to_vec())
        };
        let attention_norm = vector("input_layernorm", hidden)?;
        let mlp_norm = vector("post_attention_layernorm", hidden)?;
        let mut qk_norm = None;
        if config.qk_norm {
            let queries = vector("self_attn.q_norm", config.head_dim)?;
            qk_norm = Some((queries, vector("self_attn.k_norm", config.head_dim)?));
        }
        let mut linear =
            |name: &str, out: usize, input: usize, bias: bool| -> Result<Linear, WeightsError> {
                let name = format!("model.layers.{layer}.{name}");
                let weight = files.take(&format!("{name}.weight"), &[out, input])?;
                let bias = bias
                    .then(|| files.take(&format!("{name}.bias"), &[out]))
                    .transpose()?;
                Ok(Linear {
                    weight,
                    bias: bias.map(|bias| bias.to_vec()),
                })
            };
        let bias = config.bias;
        Ok(Self {
            attention_norm,
            mlp_norm,
            qk_norm,
            q: linear("self_attn.q_proj", heads, hidden, bias.qkv)?,
            k: linear("self_attn.k_proj", kv, hidden, bias.qkv)?,
            v: linear("self_attn.v_proj", kv, hidden, bias.qkv)?,
            o: linear("self_attn.o_proj", hidden, heads, bias.output)?,
            gate: linear("mlp.gate_proj", config.intermediate_size, hidden, bias.mlp)?,
            up: linear("mlp.up_proj", config.intermediate_size, hidden, bias.mlp)?,
            down: linear("mlp.down_proj", hidden, config.intermediate_size, bias.mlp)?,
        })
    }
}
