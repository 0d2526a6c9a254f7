//! What hostile files are given to, for fuzzing: one function for each parser. None may panic, loop or take memory out of proportion,
//! whatever the bytes; whether they are refused is not asked here.

use serde_json::json;

use crate::adapter::Adapter;
use crate::config::{GenerationConfig, ModelConfig};
use crate::gguf::Gguf;
use crate::template::{ChatInput, ChatTemplate};
use crate::tokenizer::{SpecialTokens, Tokenizer};
use crate::weights::{Matrix, TensorFiles};

/// Elements of tensors that are read; a file may name far more.
const ELEMENTS_MAX: usize = 1 << 16;

/// The header of a safetensors file, and the tensors it names.
pub fn safetensors(bytes: &[u8]) {
    read_tensors("model.safetensors", bytes);
}

/// A GGUF file: header, tensors, and what is made of its metadata.
pub fn gguf(bytes: &[u8]) {
    read_tensors("model.gguf", bytes);
    let Ok(gguf) = Gguf::parse("model.gguf", bytes) else {
        return;
    };
    if let Ok(text) = gguf.config_json(bytes) {
        config(&text);
    }
    if let Ok(text) = gguf.tokenizer_json() {
        tokenizer(&text);
    }
    chat_template(&gguf.tokenizer_config_json());
}

/// `tokenizer.json`, and a text in it.
pub fn tokenizer(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(bytes) else {
        return;
    };
    let Ok(tokens) = tokenizer.encode("Hello w\u{f6}rld, 123\n", SpecialTokens::Parse) else {
        return;
    };
    tokenizer.decode(&tokens);
    let unknown = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    tokenizer.decode(&[0, unknown, u32::MAX]);
}

/// `tokenizer_config.json` with a template in it, or, where it is no JSON, the template alone.
pub fn chat_template(bytes: &[u8]) {
    let template = ChatTemplate::load(None, Some(bytes))
        .or_else(|_| ChatTemplate::load(Some(bytes), Some(b"{}")));
    let Ok(template) = template else { return };
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [],
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    });
    let Ok(tokenizer) = Tokenizer::from_bytes(tokenizer.to_string().as_bytes()) else {
        return;
    };
    let messages = [json!({"role": "user", "content": "Hello"})];
    // Refused or not: it must come to an end.
    let _ = template.apply(
        &ChatInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            variables: None,
            now_unix_s: 0,
        },
        &tokenizer,
    );
}

/// `config.json`, and the same bytes as `generation_config.json`.
pub fn config(bytes: &[u8]) {
    let Ok(config) = ModelConfig::parse(bytes) else {
        return;
    };
    let _ = GenerationConfig::parse(Some(bytes), &config);
    // Sizes are bounded one by one, so this is too.
    config.rope.inverse_frequencies(config.head_dim);
}

/// Both files of an adapter, one behind the other, after the length of the first in four bytes; of a base of two layers.
pub fn adapter(bytes: &[u8]) {
    let base = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "model_type": "llama", "hidden_act": "silu",
    });
    let Ok(base) = ModelConfig::parse(base.to_string().as_bytes()) else {
        return;
    };
    let Some((size, rest)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let size = u32::from_le_bytes(*size) as usize;
    let (text, weights) = rest.split_at(size.min(rest.len()));
    let _ = Adapter::from_bytes(text, weights, &base);
}

fn read_tensors(file: &str, bytes: &[u8]) {
    let Ok(mut tensors) = TensorFiles::from_bytes(file, bytes) else {
        return;
    };
    let shapes: Vec<(String, Vec<usize>)> = tensors
        .shapes()
        .map(|(name, shape)| (name.to_owned(), shape.to_vec()))
        .collect();
    for (name, shape) in shapes {
        let elements = shape
            .iter()
            .try_fold(1_usize, |all, size| all.checked_mul(*size));
        let is_small = elements.is_some_and(|count| (1..=ELEMENTS_MAX).contains(&count));
        if shape.is_empty() || !is_small {
            continue;
        }
        let _ = tensors
            .take(&name, &shape)
            .map(|matrix: Matrix| matrix.to_vec());
        if let [rows, cols] = *shape {
            let _ = tensors.take_quantized(&name, [rows, cols]);
        }
    }
    let _ = tensors.finish(|_| false);
}
