//! Adapters (`LoRA`, arXiv 2106.09685): pairs of thin matrices that change what a network says without changing the network.
//!
//! Read from the folder that `peft` writes: `adapter_config.json` and `adapter_model.safetensors`. A field or a tensor that would change
//! what is computed, and that this reader does not know, is refused: an adapter that is half applied answers, and answers wrongly.

mod config;
mod error;
#[cfg(test)]
mod tests;

use crate::config::ModelConfig;
use crate::files::FileSource;
use crate::weights::{Matrix, TensorFiles};
use config::AdapterConfig;

pub use error::AdapterError;

/// Name of an adapter's configuration.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
/// Name of an adapter's weights.
pub const ADAPTER_WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// A product of the network that an adapter may add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Queries,
    Keys,
    Values,
    Attended,
    Gate,
    Up,
    Down,
}

impl Part {
    pub(crate) const COUNT: usize = 7;
    const ALL: [Self; Self::COUNT] = [
        Self::Queries,
        Self::Keys,
        Self::Values,
        Self::Attended,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Its module's name within a layer.
    fn module(self) -> &'static str {
        match self {
            Self::Queries => "self_attn.q_proj",
            Self::Keys => "self_attn.k_proj",
            Self::Values => "self_attn.v_proj",
            Self::Attended => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// (outputs, inputs)
    fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let heads = config.head_count * config.head_dim;
        match self {
            Self::Queries => (heads, hidden),
            Self::Keys | Self::Values => (config.kv_width(), hidden),
            Self::Attended => (hidden, heads),
            Self::Gate | Self::Up => (inner, hidden),
            Self::Down => (hidden, inner),
        }
    }
}

/// What is added to a product: `scale · up · (down · x)`.
#[derive(Clone, Debug)]
pub(crate) struct LowRank {
    /// (rank, inputs)
    pub(crate) down: Matrix,
    /// (outputs, rank)
    pub(crate) up: Matrix,
}

/// An adapter of one network. Its matrices stay where they are mapped.
#[derive(Debug)]
pub struct Adapter {
    rank: usize,
    scale: f32,
    /// (layers, parts)
    layers: Vec<[Option<LowRank>; Part::COUNT]>,
    bytes: u64,
}

impl Adapter {
    /// Maps an adapter of the network that `config` describes, and checks all of it.
    ///
    /// # Errors
    /// A file is missing or broken, belongs to another network, or asks for what this reader does not do.
    pub fn load(files: &dyn FileSource, config: &ModelConfig) -> Result<Self, AdapterError> {
        let text = files
            .require(ADAPTER_CONFIG_FILE)
            .map_err(AdapterError::File)?;
        let own = AdapterConfig::parse(&text)?;
        if !files
            .names()
            .iter()
            .any(|name| name == ADAPTER_WEIGHTS_FILE)
        {
            return Err(AdapterError::NoWeights);
        }
        let tensors = TensorFiles::open_one(files, ADAPTER_WEIGHTS_FILE);
        Self::assemble(tensors.map_err(AdapterError::Weights)?, &own, config)
    }

    /// From the bytes of both files, for tests of hostile ones.
    pub(crate) fn from_bytes(
        text: &[u8],
        weights: &[u8],
        config: &ModelConfig,
    ) -> Result<Self, AdapterError> {
        let own = AdapterConfig::parse(text)?;
        let tensors = TensorFiles::from_bytes(ADAPTER_WEIGHTS_FILE, weights);
        Self::assemble(tensors.map_err(AdapterError::Weights)?, &own, config)
    }

    /// Columns between the two matrices of each pair.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Bytes of its tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What both products of a pair are multiplied by.
    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }

    /// What it adds to a product of a layer, if anything.
    pub(crate) fn part(&self, layer: usize, part: Part) -> Option<&LowRank> {
        self.layers[layer][part as usize].as_ref()
    }

    fn assemble(
        mut tensors: TensorFiles,
        own: &AdapterConfig,
        config: &ModelConfig,
    ) -> Result<Self, AdapterError> {
        let names: Vec<String> = tensors.shapes().map(|(name, _)| name.to_owned()).collect();
        let places = names.iter().map(|name| Place::of(name, config, own));
        let places: Vec<_> = places.collect::<Result<_, _>>()?;
        let mut layers = vec![[const { None }; Part::COUNT]; config.layer_count];
        for place in places {
            // Both matrices of a pair lead here; the first one takes both.
            let slot = &mut layers[place.layer][place.part as usize];
            if slot.is_none() {
                *slot = Some(place.take(&mut tensors, own.rank, config)?);
            }
        }
        own.check_coverage(
            |layer, module| {
                let part = Part::ALL
                    .iter()
                    .find(|part| own_name(part.module()) == module);
                part.is_none_or(|part| {
                    layers
                        .get(layer)
                        .is_some_and(|parts| parts[*part as usize].is_some())
                })
            },
            config.layer_count,
        )?;
        let bytes = tensors.bytes();
        tensors.finish(|_| false).map_err(AdapterError::Weights)?;
        if names.is_empty() {
            return Err(AdapterError::Empty);
        }
        Ok(Self {
            rank: own.rank,
            scale: own.scale,
            layers,
            bytes,
        })
    }
}

/// The last word of a module's name.
fn own_name(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// Where in the network a tensor belongs.
struct Place<'a> {
    /// Of the pair's tensors, up to `.lora_A.weight` and `.lora_B.weight`.
    stem: &'a str,
    layer: usize,
    part: Part,
}

impl<'a> Place<'a> {
    fn of(name: &'a str, config: &ModelConfig, own: &AdapterConfig) -> Result<Self, AdapterError> {
        let refuse = |why: String| AdapterError::Tensor {
            name: name.to_owned(),
            why,
        };
        let Some(stem) = name
            .strip_suffix(".lora_A.weight")
            .or_else(|| name.strip_suffix(".lora_B.weight"))
        else {
            return Err(refuse(
                "is neither a lora_A nor a lora_B weight; only those are applied".to_owned(),
            ));
        };
        let of_layer = stem
            .strip_prefix("base_model.model.model.layers.")
            .and_then(|rest| rest.split_once('.'));
        let Some((layer, module)) = of_layer else {
            return Err(refuse(
                "is of no layer; embeddings and the head cannot be adapted".to_owned(),
            ));
        };
        let part = Part::ALL.into_iter().find(|part| part.module() == module);
        let Some(part) = part else {
            return Err(refuse(format!("is of \"{module}\", which no layer has")));
        };
        // A number in one spelling only, so that no two names lead to one place.
        let layer = layer
            .parse()
            .ok()
            .filter(|number: &usize| number.to_string() == layer && *number < config.layer_count);
        let Some(layer) = layer else {
            let count = config.layer_count;
            return Err(refuse(format!(
                "is of a layer that the base, which has {count}, has not"
            )));
        };
        if !own.names(module) {
            return Err(refuse(format!(
                "is of \"{module}\", which target_modules does not name"
            )));
        }
        Ok(Self { stem, layer, part })
    }

    /// Takes both matrices of the pair.
    fn take(
        &self,
        tensors: &mut TensorFiles,
        rank: usize,
        config: &ModelConfig,
    ) -> Result<LowRank, AdapterError> {
        let (out, input) = self.part.shape(config);
        let mut matrix = |which: &str, shape: [usize; 2]| {
            let name = format!("{}.{which}.weight", self.stem);
            let matrix = tensors.take(&name, &shape).map_err(AdapterError::Weights)?;
            let mut row = vec![0.0; matrix.cols];
            for at in 0..matrix.rows {
                matrix.read_row(at, &mut row);
                if !row.iter().all(|x| x.is_finite()) {
                    let why = format!("has a number that is not finite in row {at}");
                    return Err(AdapterError::Tensor { name, why });
                }
            }
            Ok(matrix)
        };
        Ok(LowRank {
            down: matrix("lora_A", [rank, input])?,
            up: matrix("lora_B", [out, rank])?,
        })
    }
}
