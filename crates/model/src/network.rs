//! The weights of a network by their place in it.

mod random;

use crate::config::ModelConfig;
use crate::cpu::{CpuError, Packer, WeightFormat};
use crate::quant::{QuantKind, QuantMatrix, Weights};
use crate::weights::{TensorFiles, WeightType};

/// A network's weights. Matrices stay where they are mapped; vectors are small and become f32.
pub struct Network {
    /// (vocabulary, hidden)
    pub embedding: Weights,
    /// One behind the other.
    pub layers: Vec<Layer>,
    /// (hidden)
    pub final_norm: Vec<f32>,
    /// (vocabulary, hidden)
    pub head: Weights,
}

/// A product and its bias.
pub struct Linear {
    /// (out, in)
    pub weight: Weights,
    /// (out)
    pub bias: Option<Vec<f32>>,
}

/// One layer.
pub struct Layer {
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

/// Takes tensors out of the files and makes of them what the options want.
struct Loader<'a, 'b> {
    files: TensorFiles,
    config: &'a ModelConfig,
    format: WeightFormat,
    packer: &'a mut Packer<'b>,
}

impl Network {
    pub(crate) fn load(
        files: TensorFiles,
        config: &ModelConfig,
        format: WeightFormat,
        packer: &mut Packer<'_>,
    ) -> Result<Self, CpuError> {
        let mut loader = Loader {
            files,
            config,
            format,
            packer,
        };
        let table = [config.vocab_size, config.hidden_size];
        let embedding = loader.matrix("model.embed_tokens.weight", &table)?;
        let layers = (0..config.layer_count)
            .map(|layer| loader.layer(layer))
            .collect::<Result<_, _>>()?;
        let final_norm = loader.vector("model.norm.weight", config.hidden_size)?;
        let head = if config.tied_embeddings {
            embedding.clone()
        } else {
            loader.matrix("lm_head.weight", &table)?
        };
        // Old files carry the frequencies, which follow from the configuration; tied ones may carry the head a second time.
        let tied = config.tied_embeddings;
        let ignored = |name: &str| {
            name.ends_with(".rotary_emb.inv_freq") || (tied && name.starts_with("lm_head.weight"))
        };
        loader.files.finish(ignored).map_err(CpuError::Weights)?;
        Ok(Self {
            embedding,
            layers,
            final_norm,
            head,
        })
    }
}

impl Loader<'_, '_> {
    fn matrix(&mut self, name: &str, shape: &[usize; 2]) -> Result<Weights, CpuError> {
        let quantized = self.files.take_quantized(name, *shape);
        if let Some(matrix) = quantized.map_err(CpuError::Weights)? {
            return Ok(Weights::Quantized(matrix));
        }
        let matrix = self.files.take(name, shape).map_err(CpuError::Weights)?;
        let kind = match (self.format, matrix.dtype) {
            (WeightFormat::Quantized(kind), _) => kind,
            // Eight bits lose least of what blocks of other formats hold.
            (WeightFormat::Stored, WeightType::Blocks(_)) => QuantKind::Int8,
            (WeightFormat::Stored, _) => return Ok(Weights::Stored(matrix)),
        };
        QuantMatrix::pack(&matrix, kind, self.packer)
            .map(Weights::Quantized)
            .map_err(CpuError::Memory)
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>, CpuError> {
        let vector = self.files.take(name, &[size]).map_err(CpuError::Weights)?;
        Ok(vector.to_vec())
    }

    fn linear(
        &mut self,
        name: &str,
        (out, input): (usize, usize),
        bias: bool,
    ) -> Result<Linear, CpuError> {
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"), &[out, input])?,
            bias: if bias {
                Some(self.vector(&format!("{name}.bias"), out)?)
            } else {
                None
            },
        })
    }

    fn layer(&mut self, layer: usize) -> Result<Layer, CpuError> {
        let config = self.config;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (heads, kv) = (config.head_count * config.head_dim, config.kv_width());
        let bias = config.bias;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let qk_norm = if config.qk_norm {
            let queries = self.vector(&name("self_attn.q_norm.weight"), config.head_dim)?;
            let keys = self.vector(&name("self_attn.k_norm.weight"), config.head_dim)?;
            Some((queries, keys))
        } else {
            None
        };
        Ok(Layer {
            attention_norm: self.vector(&name("input_layernorm.weight"), hidden)?,
            mlp_norm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            qk_norm,
            q: self.linear(&name("self_attn.q_proj"), (heads, hidden), bias.qkv)?,
            k: self.linear(&name("self_attn.k_proj"), (kv, hidden), bias.qkv)?,
            v: self.linear(&name("self_attn.v_proj"), (kv, hidden), bias.qkv)?,
            o: self.linear(&name("self_attn.o_proj"), (hidden, heads), bias.output)?,
            gate: self.linear(&name("mlp.gate_proj"), (inner, hidden), bias.mlp)?,
            up: self.linear(&name("mlp.up_proj"), (inner, hidden), bias.mlp)?,
            down: self.linear(&name("mlp.down_proj"), (hidden, inner), bias.mlp)?,
        })
    }
}
