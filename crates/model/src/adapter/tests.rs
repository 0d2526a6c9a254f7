use serde_json::{Value, json};

use super::*;

fn base() -> ModelConfig {
    let text = include_bytes!("../../tests/golden/llama-f32/config.json");
    ModelConfig::parse(text).unwrap()
}

fn text() -> Value {
    serde_json::from_slice(include_bytes!(
        "../../tests/golden/adapters/all/adapter_config.json"
    ))
    .unwrap()
}

const WEIGHTS: &[u8] = include_bytes!("../../tests/golden/adapters/all/adapter_model.safetensors");

/// The whole chain of causes.
fn cause(result: Result<Adapter, AdapterError>) -> String {
    let error = result.expect_err("refused");
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn load(text: &Value, weights: &[u8]) -> Result<Adapter, AdapterError> {
    Adapter::from_bytes(text.to_string().as_bytes(), weights, &base())
}

/// The weights with another header.
fn with_header(change: impl Fn(&mut Value)) -> Vec<u8> {
    let size = u64::from_le_bytes(WEIGHTS[..8].try_into().unwrap());
    let size = usize::try_from(size).unwrap();
    let mut header: Value = serde_json::from_slice(&WEIGHTS[8..8 + size]).unwrap();
    change(&mut header);
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(&WEIGHTS[8 + size..]);
    bytes
}

fn renamed(from: &'static str, to: &'static str) -> Vec<u8> {
    with_header(|header| {
        let fields = header.as_object_mut().unwrap();
        let tensor = fields.remove(from).unwrap();
        fields.insert(to.to_owned(), tensor);
    })
}

#[test]
fn what_peft_writes_is_read() {
    let adapter = load(&text(), WEIGHTS).unwrap();
    assert_eq!(
        (adapter.rank(), adapter.scale().to_bits()),
        (4, 2f32.to_bits())
    );
    let pair = adapter.part(1, Part::Down).unwrap();
    assert_eq!((pair.down.rows, pair.down.cols), (4, 28));
    assert_eq!((pair.up.rows, pair.up.cols), (20, 4));
    let mut rslora = text();
    rslora["use_rslora"] = true.into();
    let scale = load(&rslora, WEIGHTS).unwrap().scale();
    assert_eq!(scale.to_bits(), 4f32.to_bits());
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table, one row a case")]
fn fields_that_would_change_what_is_computed_are_refused_by_name() {
    let cases: [(&str, Value, &str); 19] = [
        ("peft_type", json!("IA3"), "peft_type is IA3"),
        (
            "task_type",
            json!("SEQ_CLS"),
            "task_type is \"SEQ_CLS\", and must be CAUSAL_LM",
        ),
        ("r", json!(0), "r must be a whole number from 1 to 1024"),
        ("r", json!(2.5), "r must be a whole number"),
        ("r", json!(1_u64 << 40), "r must be a whole number"),
        (
            "r",
            json!(3),
            "lora_A.weight\" in \"adapter_model.safetensors\" has shape [4, ",
        ),
        ("lora_alpha", json!("8"), "lora_alpha must be a number"),
        ("lora_alpha", json!(1e300), "lora_alpha must be a number"),
        (
            "use_rslora",
            json!("yes"),
            "use_rslora must be true or false",
        ),
        (
            "use_dora",
            json!(true),
            "use_dora is true, which cannot be applied",
        ),
        ("bias", json!("all"), "bias is \"all\""),
        (
            "modules_to_save",
            json!(["lm_head"]),
            "modules_to_save is [\"lm_head\"]",
        ),
        (
            "rank_pattern",
            json!({"q_proj": 8}),
            "rank_pattern is {\"q_proj\":8}",
        ),
        ("fan_in_fan_out", json!(true), "fan_in_fan_out is true"),
        (
            "something_new",
            json!(1),
            "something_new is 1, which cannot be applied",
        ),
        (
            "init_lora_weights",
            json!("pissa_niter_4"),
            "which also changes the base",
        ),
        (
            "target_modules",
            json!([]),
            "target_modules must be a list of names",
        ),
        (
            "target_modules",
            json!(["q_proj"]),
            "which target_modules does not name",
        ),
        (
            "layers_to_transform",
            json!("x"),
            "layers_to_transform must be",
        ),
    ];
    for (field, value, want) in cases {
        let mut text = text();
        text[field] = value.clone();
        let cause = cause(load(&text, WEIGHTS));
        assert!(cause.contains(want), "{field} {value}: {cause}");
    }
    let cause = cause(Adapter::from_bytes(b"[]", WEIGHTS, &base()));
    assert_eq!(cause, "\"adapter_config.json\": is no object");
}

#[test]
fn tensors_without_a_place_or_a_pair_are_refused_by_name() {
    const Q: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    let cases = [
        (
            renamed(Q, "base_model.model.lm_head.lora_A.weight"),
            "embeddings and the head cannot be adapted",
        ),
        (
            renamed(
                Q,
                "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight",
            ),
            "is neither a lora_A nor a lora_B weight",
        ),
        (
            renamed(
                Q,
                "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
            ),
            "is of a layer that the base, which has 2, has not",
        ),
        (
            renamed(
                Q,
                "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
            ),
            "is of a layer that the base, which has 2, has not",
        ),
        (
            renamed(
                Q,
                "base_model.model.model.layers.0.mlp.experts.lora_A.weight",
            ),
            "is of \"mlp.experts\", which no layer has",
        ),
        (
            renamed(
                Q,
                "base_model.model.model.layers.0.mlp.q_proj.lora_A.weight",
            ),
            "is of \"mlp.q_proj\", which no layer has",
        ),
        (
            with_header(|header| header[Q]["dtype"] = "I32".into()),
            "has type I32; supported are BF16, F16 and F32",
        ),
        (
            WEIGHTS[..WEIGHTS.len() - 1].to_vec(),
            "\"adapter_model.safetensors\" is not a whole safetensors file",
        ),
        (
            Vec::new(),
            "\"adapter_model.safetensors\" is not a whole safetensors file",
        ),
    ];
    for (weights, want) in cases {
        let cause = cause(load(&text(), &weights));
        assert!(cause.contains(want), "{want}: {cause}");
    }
    let mut infinite = WEIGHTS.to_vec();
    let end = infinite.len();
    infinite[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let cause = cause(load(&text(), &infinite));
    assert!(
        cause.contains("has a number that is not finite in row"),
        "{cause}"
    );
}

/// Tensors of a layer are gone with their bytes: the header is whole, and the adapter is not.
#[test]
fn a_module_that_is_named_and_has_no_weights_in_a_layer_is_refused() {
    let mut text = text();
    let more = text["target_modules"].as_array_mut().unwrap();
    more.push("gate_proj".into());
    assert!(load(&text, WEIGHTS).is_ok());
    let last = include_bytes!("../../tests/golden/adapters/last-layer/adapter_model.safetensors");
    let config: Value = serde_json::from_slice(include_bytes!(
        "../../tests/golden/adapters/last-layer/adapter_config.json"
    ))
    .unwrap();
    let all = |change: Value| {
        let mut text = config.clone();
        text["layers_to_transform"] = change;
        load(&text, last)
    };
    assert!(all(json!([1])).is_ok());
    assert!(all(json!(1)).is_ok());
    let cause = cause(all(Value::Null));
    assert!(
        cause.contains("and the weights have nothing for it in layer 0; the file is not whole"),
        "{cause}"
    );
}

#[test]
fn files_that_are_missing_are_named() {
    let config = text().to_string().into_bytes();
    let files = |list: &[(&str, &[u8])]| {
        crate::FileBytes::new(
            list.iter()
                .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())),
        )
    };
    let none = cause(Adapter::load(&files(&[]), &base()));
    assert!(
        none.contains("file \"adapter_config.json\" is missing"),
        "{none}"
    );
    let old = files(&[(ADAPTER_CONFIG_FILE, &config), ("adapter_model.bin", b"x")]);
    let old = cause(Adapter::load(&old, &base()));
    assert!(
        old.contains("has no \"adapter_model.safetensors\"; where it has an \"adapter_model.bin\""),
        "{old}"
    );
}
