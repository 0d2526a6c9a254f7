//! `adapter_config.json`, as `peft` writes it.

use serde_json::{Map, Value};

use super::{AdapterError, own_name};

/// Largest rank: beyond it an adapter is as large as what it adapts.
const RANK_MAX: u64 = 1024;

/// Fields that say where an adapter comes from or how it was trained, and change nothing of what is computed.
const WITHOUT_EFFECT: [&str; 18] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "layers_pattern",
    "exclude_modules",
];

/// Fields that are read.
const READ: [&str; 8] = [
    "bias",
    "layers_to_transform",
    "lora_alpha",
    "peft_type",
    "r",
    "target_modules",
    "task_type",
    "use_rslora",
];

/// Ways to begin that take something out of the base: with the base as it was, the adapter is another one.
const CHANGES_THE_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// What is used of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdapterConfig {
    pub(super) rank: usize,
    /// What both products of a pair are multiplied by.
    pub(super) scale: f32,
    /// Names of modules, where they are listed and not described by an expression.
    modules: Option<Vec<String>>,
    /// The layers that have them; all where absent.
    layers: Option<Vec<usize>>,
    /// Whether some modules of those names are left out.
    has_exceptions: bool,
}

fn refuse<T>(what: impl Into<String>) -> Result<T, AdapterError> {
    Err(AdapterError::Config { what: what.into() })
}

impl AdapterConfig {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, AdapterError> {
        let fields: Map<String, Value> = match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return refuse("is no object"),
            Err(error) => return refuse(format!("is not JSON: {error}")),
        };
        check_kind(&fields)?;
        check_fields(&fields)?;
        let rank = match fields.get("r").map(Value::as_u64) {
            Some(Some(rank)) if (1..=RANK_MAX).contains(&rank) => rank,
            _ => return refuse(format!("r must be a whole number from 1 to {RANK_MAX}")),
        };
        let alpha = fields.get("lora_alpha").and_then(Value::as_f64);
        let divisor = match fields.get("use_rslora") {
            Some(Value::Bool(true)) => (rank as f64).sqrt(),
            None | Some(Value::Bool(false) | Value::Null) => rank as f64,
            Some(_) => return refuse("use_rslora must be true or false"),
        };
        #[expect(clippy::cast_possible_truncation, reason = "checked to be finite")]
        let scale = alpha.map(|alpha| (alpha / divisor) as f32);
        let Some(scale) = scale.filter(|scale| scale.is_finite()) else {
            return refuse("lora_alpha must be a number");
        };
        let rank = usize::try_from(rank).expect("bounded above");
        Ok(Self {
            rank,
            scale,
            modules: modules(fields.get("target_modules"))?,
            layers: layers(fields.get("layers_to_transform"))?,
            has_exceptions: fields.get("exclude_modules").is_some_and(is_on),
        })
    }

    /// Whether a module is one of those that are adapted, as far as they are listed.
    pub(super) fn names(&self, module: &str) -> bool {
        let is_it = |name: &String| {
            module == name || module.ends_with(&format!(".{name}")) || name.ends_with(module)
        };
        self.modules
            .as_ref()
            .is_none_or(|modules| modules.iter().any(is_it))
    }

    /// Every module that is listed must have its tensors in every layer that is listed: where some are missing, the file was cut.
    pub(super) fn check_coverage(
        &self,
        has: impl Fn(usize, &str) -> bool,
        layer_count: usize,
    ) -> Result<(), AdapterError> {
        let Some(modules) = self.modules.as_ref().filter(|_| !self.has_exceptions) else {
            return Ok(());
        };
        let layers = self.layers.clone().unwrap_or((0..layer_count).collect());
        for layer in layers {
            // A path names one layer's module; whether the others have it is not said.
            for module in modules.iter().filter(|module| !module.contains('.')) {
                if !has(layer, own_name(module)) {
                    return refuse(format!(
                        "target_modules names \"{module}\", and the weights have nothing for it in layer {layer}; the file is not whole"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn check_kind(fields: &Map<String, Value>) -> Result<(), AdapterError> {
    let kind = fields.get("peft_type").and_then(Value::as_str);
    if kind != Some("LORA") {
        return refuse(format!(
            "peft_type is {}, and LORA is what can be applied",
            kind.unwrap_or("absent")
        ));
    }
    match fields.get("task_type") {
        None | Some(Value::Null) => {}
        Some(Value::String(task)) if task == "CAUSAL_LM" => {}
        Some(task) => return refuse(format!("task_type is {task}, and must be CAUSAL_LM")),
    }
    match fields.get("bias") {
        None | Some(Value::Null) => {}
        Some(Value::String(bias)) if bias == "none" => {}
        Some(bias) => {
            return refuse(format!(
                "bias is {bias}; train the adapter with bias=\"none\""
            ));
        }
    }
    if let Some(Value::String(way)) = fields.get("init_lora_weights")
        && CHANGES_THE_BASE
            .iter()
            .any(|other| way.to_lowercase().starts_with(other))
    {
        return refuse(format!(
            "init_lora_weights is \"{way}\", which also changes the base; save the adapter with path_initial_model_for_weight_conversion"
        ));
    }
    Ok(())
}

/// What is not known and is on would be left out of the computation without a word.
fn check_fields(fields: &Map<String, Value>) -> Result<(), AdapterError> {
    let is_known = |name: &str| WITHOUT_EFFECT.contains(&name) || READ.contains(&name);
    match fields
        .iter()
        .find(|(name, value)| !is_known(name) && is_on(value))
    {
        Some((name, value)) => refuse(format!(
            "{name} is {value}, which cannot be applied; train the adapter without it"
        )),
        None => Ok(()),
    }
}

/// Whether a field says anything.
fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

fn modules(value: Option<&Value>) -> Result<Option<Vec<String>>, AdapterError> {
    let wrong = "target_modules must be a list of names, or an expression";
    match value {
        // An expression: the tensors say themselves what they belong to.
        Some(Value::String(_)) => Ok(None),
        Some(Value::Array(list)) if !list.is_empty() => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned));
            names
                .collect::<Option<_>>()
                .map_or_else(|| refuse(wrong), |names| Ok(Some(names)))
        }
        _ => refuse(wrong),
    }
}

fn layers(value: Option<&Value>) -> Result<Option<Vec<usize>>, AdapterError> {
    let number = |value: &Value| value.as_u64().and_then(|layer| usize::try_from(layer).ok());
    let layers = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(one) => number(one).map(|layer| vec![layer]),
    };
    match layers {
        Some(layers) => Ok(Some(layers)),
        None => refuse("layers_to_transform must be a number of a layer, or a list of them"),
    }
}
