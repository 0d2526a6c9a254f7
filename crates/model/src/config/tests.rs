use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 3],
    })
}

fn with(changes: &Value) -> Value {
    let mut config = llama();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn parse(config: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::parse(config.to_string().as_bytes())
}

#[test]
fn a_whole_configuration_is_read() {
    let config = parse(&llama()).unwrap();
    assert_eq!(
        (config.architecture, config.head_dim, config.group_size()),
        (Architecture::Llama, 8, 2)
    );
    assert_eq!(
        (config.bos_token_id, config.eos_token_ids.as_slice()),
        (Some(1), &[2, 3][..])
    );
    assert_eq!(
        config.rope,
        Rope {
            theta: 10_000.0,
            llama3: None,
            factors: None
        }
    );
    assert!(
        config.tied_embeddings
            && !config.qk_norm
            && config.bias
                == Biases {
                    qkv: false,
                    output: false,
                    mlp: false
                }
    );
}

#[test]
fn absent_keys_mean_what_each_class_says() {
    let empty = |name: &str| parse(&json!({"architectures": [name]})).unwrap();
    let (llama, mistral, qwen3) = (
        empty("LlamaForCausalLM"),
        empty("MistralForCausalLM"),
        empty("Qwen3ForCausalLM"),
    );
    assert_eq!(
        (
            llama.kv_head_count,
            llama.context_tokens,
            llama.intermediate_size
        ),
        (32, 2048, 11_008)
    );
    assert_eq!(
        (
            mistral.kv_head_count,
            mistral.context_tokens,
            mistral.sliding_window[0]
        ),
        (8, 131_072, Some(4096))
    );
    assert_eq!(
        (qwen3.head_dim, qwen3.vocab_size, qwen3.sliding_window[0]),
        (128, 151_936, None)
    );
    assert!(qwen3.qk_norm && empty("Qwen2ForCausalLM").bias.qkv && qwen3.eos_token_ids.is_empty());
}

#[test]
fn both_spellings_of_position_scaling_are_read() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let old = parse(&with(&json!({"rope_theta": 5e5, "rope_scaling": scaling}))).unwrap();
    let mut new = scaling.clone();
    new["rope_theta"] = json!(5e5);
    assert_eq!(
        parse(&with(&json!({"rope_parameters": new}))).unwrap().rope,
        old.rope
    );
    let frequencies = old.rope.inverse_frequencies(8);
    assert!(
        (frequencies[0] - 1.0).abs() < 1e-6,
        "short wavelengths stay"
    );
    let plain = Rope {
        llama3: None,
        factors: None,
        ..old.rope
    }
    .inverse_frequencies(8);
    assert!(
        (frequencies[3] * 8.0 / plain[3] - 1.0).abs() < 1e-6,
        "long wavelengths are stretched"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn what_is_not_supported_is_refused_by_file_key_and_value() {
    let cases = [
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            r#""architectures" = ["GPT2LMHeadModel"] is not supported"#,
        ),
        (
            json!({"architectures": null}),
            r#""architectures" = null is not supported"#,
        ),
        (
            json!({"quantization_config": {"bits": 4}}),
            r#""quantization_config" = {"bits":4} is not supported"#,
        ),
        (
            json!({"auto_map": {"A": "b.C"}}),
            r#""auto_map" = {"A":"b.C"} asks for code"#,
        ),
        (
            json!({"num_experts": 8}),
            r#""num_experts" = 8 is not supported"#,
        ),
        (
            json!({"hidden_act": "gelu"}),
            r#""hidden_act" = "gelu" is not supported"#,
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            r#""partial_rotary_factor" = 0.5 is not supported"#,
        ),
        (
            json!({"rope_scaling": {"factor": 4, "type": "yarn"}}),
            r#""rope_scaling" = {"factor":4,"type":"yarn"} asks for a rope_type"#,
        ),
        (
            json!({"rope_parameters": {"rope_type": "linear"}}),
            r#""rope_parameters" = {"rope_type":"linear"} asks for a rope_type"#,
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3"}}),
            r#""rope_scaling.low_freq_factor" = absent is needed"#,
        ),
        (
            json!({"sliding_window": 4096}),
            r#""sliding_window" = 4096 is not part of LlamaForCausalLM"#,
        ),
        (
            json!({"hidden_size": 0}),
            r#""hidden_size" = 0 must be an integer from 1"#,
        ),
        (
            json!({"hidden_size": "32"}),
            r#""hidden_size" = "32" must be an integer from 1"#,
        ),
        (
            json!({"num_hidden_layers": 100_000}),
            r#""num_hidden_layers" = 100000 must be an integer from 1"#,
        ),
        (
            json!({"vocab_size": -5}),
            r#""vocab_size" = -5 must be an integer"#,
        ),
        (
            json!({"num_key_value_heads": 3}),
            r#""num_key_value_heads" = 3 does not divide"#,
        ),
        (json!({"head_dim": 7}), r#""head_dim" = 7 must be even"#),
        (
            json!({"rms_norm_eps": -1}),
            r#""rms_norm_eps" = -1 must be a number from 0 to 1"#,
        ),
        (
            json!({"eos_token_id": [2, 100]}),
            r#""eos_token_id" = [2,100] must hold token ids from 0 to 99"#,
        ),
        (
            json!({"tie_word_embeddings": "yes"}),
            r#""tie_word_embeddings" = "yes" must be true or false"#,
        ),
    ];
    for (changes, want) in cases {
        let error = parse(&with(&changes)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("\"config.json\": key {want}")),
            "{error}"
        );
    }
    assert!(matches!(
        ModelConfig::parse(b"[1]"),
        Err(ConfigError::Json { .. })
    ));
    assert!(matches!(
        ModelConfig::parse(b"{"),
        Err(ConfigError::Json { .. })
    ));
}

#[test]
fn layers_slide_where_the_configuration_says() {
    let qwen = |changes: Value| {
        let mut config = with(&changes);
        config["architectures"] = json!(["Qwen2ForCausalLM"]);
        parse(&config).map(|config| config.sliding_window)
    };
    assert_eq!(qwen(json!({"sliding_window": 9})).unwrap(), [None, None]);
    let on = json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 1});
    assert_eq!(qwen(on).unwrap(), [None, Some(9)]);
    let types = json!({"use_sliding_window": true, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(qwen(types).unwrap(), [Some(9), None]);
    assert!(qwen(json!({"use_sliding_window": true, "layer_types": ["full_attention"]})).is_err());
    assert!(
        qwen(json!({"use_sliding_window": true, "layer_types": ["linear", "linear"]})).is_err()
    );
}

#[test]
fn generation_defaults_are_read_and_bounded() {
    let config = parse(&llama()).unwrap();
    let read = |json: Value| GenerationConfig::parse(Some(json.to_string().as_bytes()), &config);
    let none = GenerationConfig::parse(None, &config).unwrap();
    assert_eq!(
        (none.eos_token_ids.as_slice(), none.temperature, none.top_k),
        (&[2, 3][..], 1.0, 0)
    );
    let some = read(json!({"eos_token_id": 7, "temperature": 0.3, "top_p": 0.9, "top_k": 40, "do_sample": true})).unwrap();
    assert_eq!(
        (
            some.eos_token_ids.as_slice(),
            some.temperature,
            some.top_p,
            some.top_k
        ),
        (&[7][..], 0.3, 0.9, 40)
    );
    assert_eq!(
        read(json!({"do_sample": false, "temperature": 0.3}))
            .unwrap()
            .temperature
            .to_bits(),
        0
    );
    for (bad, key) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"eos_token_id": 100}), "eos_token_id"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
    ] {
        let error = read(bad).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("\"generation_config.json\": key \"{key}\" = ")),
            "{error}"
        );
    }
}
