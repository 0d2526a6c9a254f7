//! Models with random weights, as files: shapes that no small public model has.

use std::fmt::Write as _;
use std::path::Path;

use super::Failure;

/// Which parts a layer has besides the common ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// None.
    Llama,
    /// Biases of queries, keys and values.
    Qwen2,
    /// Norms of queries and of keys.
    Qwen3,
}

/// A model's sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomShape {
    pub(crate) architecture: Architecture,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab: usize,
    /// Whether attention looks at few positions, so that none is missed unseen. What is rounded to eight bits would look at others, so a
    /// case says it by how it is kept.
    pub(crate) is_sharp: bool,
    pub(crate) seed: u64,
}

impl RandomShape {
    fn config(&self) -> String {
        let Self {
            hidden,
            inner,
            layers,
            heads,
            kv_heads,
            head_dim,
            vocab,
            ..
        } = self;
        format!(
            r#"{{"architectures":["{:?}ForCausalLM"],"hidden_size":{hidden},"intermediate_size":{inner},"num_hidden_layers":{layers},
            "num_attention_heads":{heads},"num_key_value_heads":{kv_heads},"head_dim":{head_dim},"vocab_size":{vocab},
            "max_position_embeddings":1024,"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true,"eos_token_id":1,
            "hidden_act":"silu"}}"#,
            self.architecture
        )
    }

    /// Names and sizes of all tensors; those of one direction are norms and biases.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, inner) = (self.hidden, self.inner);
        let mut all = vec![("embed_tokens.weight".to_owned(), vec![self.vocab, hidden])];
        for layer in 0..self.layers {
            let mut add = |name: &str, sizes: Vec<usize>| {
                all.push((format!("layers.{layer}.{name}"), sizes));
            };
            for (name, sizes) in [
                ("input_layernorm.weight", vec![hidden]),
                ("self_attn.q_proj.weight", vec![queries, hidden]),
                ("self_attn.k_proj.weight", vec![keys, hidden]),
                ("self_attn.v_proj.weight", vec![keys, hidden]),
                ("self_attn.o_proj.weight", vec![hidden, queries]),
                ("post_attention_layernorm.weight", vec![hidden]),
                ("mlp.gate_proj.weight", vec![inner, hidden]),
                ("mlp.up_proj.weight", vec![inner, hidden]),
                ("mlp.down_proj.weight", vec![hidden, inner]),
            ] {
                add(name, sizes);
            }
            match self.architecture {
                Architecture::Llama => {}
                Architecture::Qwen2 => {
                    add("self_attn.q_proj.bias", vec![queries]);
                    add("self_attn.k_proj.bias", vec![keys]);
                    add("self_attn.v_proj.bias", vec![keys]);
                }
                Architecture::Qwen3 => {
                    add("self_attn.q_norm.weight", vec![self.head_dim]);
                    add("self_attn.k_norm.weight", vec![self.head_dim]);
                }
            }
        }
        all.push(("norm.weight".to_owned(), vec![hidden]));
        all
    }

    /// How large a matrix is beside the usual: queries, and what attention says.
    fn scale(&self, name: &str) -> f32 {
        match name.rsplit('.').nth(1) {
            Some("q_proj") if self.is_sharp => 4.0,
            Some("o_proj") if self.is_sharp => 2.0,
            _ => 1.0,
        }
    }

    /// Writes configuration and weights, in bf16, into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Failure> {
        let (mut header, mut data) = (String::new(), Vec::new());
        let mut state = self.seed | 1;
        for (name, sizes) in self.tensors() {
            let begin = data.len();
            // Weights of rows that keep what goes through them near its size; norms about one.
            let (middle, spread) = match (sizes.as_slice(), name.ends_with("bias")) {
                ([_, inputs], _) => (0.0, 3.0 * self.scale(&name) / (*inputs as f32).sqrt()),
                (_, true) => (0.0, 0.5),
                _ => (1.0, 0.4),
            };
            for _ in 0..sizes.iter().product() {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let uniform = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
                let value = half::bf16::from_f32(middle + spread * uniform);
                data.extend_from_slice(&value.to_le_bytes());
            }
            let comma = if header.is_empty() { "" } else { "," };
            let end = data.len();
            write!(
                header,
                r#"{comma}"model.{name}":{{"dtype":"BF16","shape":{sizes:?},"data_offsets":[{begin},{end}]}}"#
            )?;
        }
        let header = format!("{{{header}}}");
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(&data);
        std::fs::write(folder.join("config.json"), self.config())?;
        std::fs::write(folder.join("model.safetensors"), file)?;
        Ok(())
    }
}
