//! `config.json` and `generation_config.json` from a GGUF file's metadata: the same checks then hold for both.

use serde_json::{Map, Value as Json, json};

use super::{BlockType, Gguf, GgufError, Value};

/// Architectures that are read, and their classes.
const ARCHITECTURES: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];
/// Factors of the frequencies of rotary positions.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// End tokens a file may name, besides the one of the whole text.
const END_KEYS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];

impl Gguf {
    /// `general.architecture`.
    ///
    /// # Errors
    /// It is none that is read.
    pub fn architecture(&self) -> Result<&'static str, GgufError> {
        Ok(self.class()?.0)
    }

    fn class(&self) -> Result<(&'static str, &'static str), GgufError> {
        let key = "general.architecture";
        let name = self.get(key).and_then(Value::text).unwrap_or_default();
        let found = ARCHITECTURES.iter().find(|(known, _)| *known == name);
        found.copied().ok_or_else(|| {
            let why = format!(
                "= \"{name}\" is not supported; supported are {}",
                ARCHITECTURES.map(|(known, _)| known).join(", ")
            );
            self.key_error(key, why)
        })
    }

    /// Width of a head.
    ///
    /// # Errors
    /// A key is absent or makes no sense.
    pub(crate) fn head_dim(&self) -> Result<usize, GgufError> {
        let size = self.size("attention.key_length");
        if self.of_model("attention.key_length").is_some() {
            return size;
        }
        let (hidden, heads) = (
            self.size("embedding_length")?,
            self.size("attention.head_count")?,
        );
        Ok(hidden / heads)
    }

    /// The text of `config.json`. `bytes` is the whole file.
    ///
    /// # Errors
    /// A key is absent, or asks for something unsupported.
    pub(crate) fn config_json(&self, bytes: &[u8]) -> Result<Vec<u8>, GgufError> {
        let (_, class) = self.class()?;
        self.refuse_unsupported()?;
        let heads = self.size("attention.head_count")?;
        let kv_heads = match self.of_model("attention.head_count_kv") {
            None => heads,
            Some(_) => self.size("attention.head_count_kv")?,
        };
        let embedding = self.tensors().get("token_embd.weight").ok_or_else(|| {
            let why = "is missing; the file is no whole model".to_owned();
            self.tensor_error("token_embd.weight", why)
        })?;
        let has = |name: &str| self.tensors().contains_key(name);
        let mut config = Map::new();
        let mut set = |key: &str, value: Json| config.insert(key.to_owned(), value);
        set("architectures", json!([class]));
        set("hidden_size", json!(self.size("embedding_length")?));
        set(
            "intermediate_size",
            json!(self.size("feed_forward_length")?),
        );
        set("num_hidden_layers", json!(self.size("block_count")?));
        set("num_attention_heads", json!(heads));
        set("num_key_value_heads", json!(kv_heads));
        set("head_dim", json!(self.head_dim()?));
        set("vocab_size", json!(embedding.shape[0]));
        set(
            "max_position_embeddings",
            json!(self.size("context_length")?),
        );
        set(
            "rms_norm_eps",
            json!(self.number("attention.layer_norm_rms_epsilon", 1e-5)),
        );
        set("tie_word_embeddings", json!(!has("output.weight")));
        set("hidden_act", json!("silu"));
        set("dtype", json!(self.dtype()));
        if class == "LlamaForCausalLM" {
            set("attention_bias", json!(has("blk.0.attn_q.bias")));
            set("mlp_bias", json!(has("blk.0.ffn_gate.bias")));
        }
        set("bos_token_id", self.token("tokenizer.ggml.bos_token_id"));
        set("eos_token_id", json!(self.end_tokens()));
        let mut rope = json!({
            "rope_type": "default",
            "rope_theta": self.number("rope.freq_base", 10_000.0),
        });
        if let Some(factors) = self.rope_factors(bytes)? {
            rope["rope_type"] = json!("weir_factors");
            rope["factors"] = json!(factors);
        }
        set("rope_parameters", rope);
        Ok(Json::Object(config).to_string().into_bytes())
    }

    /// Keys that would change the network's result and that nothing here implements.
    fn refuse_unsupported(&self) -> Result<(), GgufError> {
        let refuse = |key: &str, why: &str| Err(self.key_error(&self.key(key), why.to_owned()));
        if self
            .of_model("expert_count")
            .and_then(Value::unsigned)
            .is_some_and(|count| count > 0)
        {
            return refuse("expert_count", "is not supported (mixture of experts)");
        }
        let scaling = self.of_model("rope.scaling.type").and_then(Value::text);
        if scaling.is_some_and(|kind| kind != "none") {
            return refuse("rope.scaling.type", "is not supported; only \"none\" is");
        }
        if self.of_model("attention.sliding_window").is_some() {
            return refuse(
                "attention.sliding_window",
                "is not supported; use the model's safetensors files",
            );
        }
        let head_dim = self.head_dim()?;
        if self.of_model("rope.dimension_count").is_some()
            && self.size("rope.dimension_count")? != head_dim
        {
            return refuse(
                "rope.dimension_count",
                "must be the width of a head: partly rotated heads are not supported",
            );
        }
        if self.of_model("attention.value_length").is_some()
            && self.size("attention.value_length")? != head_dim
        {
            return refuse("attention.value_length", "must be attention.key_length");
        }
        Ok(())
    }

    /// The type that most of the file's bytes have, in the words of `config.json` where it has one.
    fn dtype(&self) -> String {
        let mut bytes: Vec<(BlockType, usize)> = Vec::new();
        for place in self.tensors().values() {
            match bytes.iter_mut().find(|(block, _)| *block == place.block) {
                Some((_, sum)) => *sum += place.bytes.len(),
                None => bytes.push((place.block, place.bytes.len())),
            }
        }
        match bytes.into_iter().max_by_key(|(_, sum)| *sum) {
            Some((BlockType::F16, _)) => "float16".to_owned(),
            Some((BlockType::Bf16, _)) => "bfloat16".to_owned(),
            None | Some((BlockType::F32, _)) => "float32".to_owned(),
            Some((block, _)) => block.name().to_lowercase(),
        }
    }

    fn end_tokens(&self) -> Vec<u64> {
        let mut tokens: Vec<u64> = END_KEYS
            .iter()
            .filter_map(|key| self.get(key)?.unsigned())
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    fn rope_factors(&self, bytes: &[u8]) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(place) = self.tensors().get(ROPE_FACTORS) else {
            return Ok(None);
        };
        let want = self.head_dim()? / 2;
        if place.shape != [want] {
            let why = format!("has shape {:?} and must have [{want}]", place.shape);
            return Err(self.tensor_error(ROPE_FACTORS, why));
        }
        let mut factors = vec![0.0; want];
        place.block.read(&bytes[place.bytes.clone()], &mut factors);
        Ok(Some(factors))
    }

    fn key(&self, part: &str) -> String {
        let architecture = self
            .get("general.architecture")
            .and_then(Value::text)
            .unwrap_or_default();
        format!("{architecture}.{part}")
    }

    fn of_model(&self, part: &str) -> Option<&Value> {
        self.get(&self.key(part))
    }

    fn size(&self, part: &str) -> Result<usize, GgufError> {
        let size = self.of_model(part).and_then(Value::unsigned);
        size.filter(|size| (1..=1 << 30).contains(size))
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(|| {
                self.key_error(&self.key(part), "must be an integer from 1 on".to_owned())
            })
    }

    fn number(&self, part: &str, default: f64) -> f64 {
        let number = self.of_model(part).and_then(Value::number);
        number.unwrap_or(default)
    }

    fn token(&self, key: &str) -> Json {
        match self.get(key).and_then(Value::unsigned) {
            Some(token) => json!(token),
            None => Json::Null,
        }
    }
}
