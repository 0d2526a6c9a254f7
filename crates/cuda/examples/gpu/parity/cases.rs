//! What is compared: models, how weights, keys and values are kept, and how far apart logits may be.

use std::fs::File;
use std::path::{Path, PathBuf};

use weir_cuda::kernels::CacheType;
use weir_model::quant::QuantKind;
use weir_model::{OpenFiles, WeightFormat};

use super::random::{Architecture, RandomShape};
use super::{Failure, Plan};

/// Weights and activations with 8 bits of mantissa.
const BF16_TOLERANCE: f32 = 0.04;
/// With 11 bits.
const F16_TOLERANCE: f32 = 0.004;
/// Where the CPU rounds activations to eight bits for each group, too.
const QUANTIZED_TOLERANCE: f32 = 0.12;
/// With 3 bits of mantissa in keys and values, which the CPU has in 16 bits.
const FP8_TOLERANCE: f32 = 0.16;

/// A model and how it is kept.
pub(crate) struct Case {
    pub(crate) name: String,
    files: Files,
    pub(crate) weights: WeightFormat,
    pub(crate) cache: CacheType,
    pub(crate) plan: Plan,
    pub(crate) kv_bytes: u64,
    /// How far logits may be apart, as a part of the largest one.
    pub(crate) tolerance: f32,
}

enum Files {
    Folder(PathBuf),
    Gguf(PathBuf),
    Random(tempfile::TempDir),
}

impl Case {
    /// The model's files.
    pub(crate) fn open(&self) -> Result<OpenFiles, Failure> {
        Ok(match &self.files {
            Files::Folder(path) => OpenFiles::from_dir(path)?,
            Files::Random(folder) => OpenFiles::from_dir(folder.path())?,
            Files::Gguf(path) => OpenFiles::new([(self.name.clone(), File::open(path)?)]),
        })
    }

    /// A model of the repository, in a folder of golden files, by its name.
    pub(crate) fn golden(
        folder: &Path,
        name: &str,
        weights: WeightFormat,
        cache: CacheType,
    ) -> Self {
        let gguf = folder.join("gguf").join(name);
        let files = if gguf.is_file() {
            Files::Gguf(gguf)
        } else {
            Files::Folder(folder.join(name))
        };
        let tolerance = match (weights, cache, name) {
            (_, CacheType::Fp8, _) => FP8_TOLERANCE,
            (WeightFormat::Quantized(_), ..) | (.., "q8_0.gguf" | "q4_k.gguf") => {
                QUANTIZED_TOLERANCE
            }
            (.., "llama-f16-sharded" | "f16.gguf") => F16_TOLERANCE,
            _ => BF16_TOLERANCE,
        };
        Self {
            name: name.to_owned(),
            files,
            weights,
            cache,
            plan: Plan {
                count: 12,
                starts: 3,
                longest: 1,
                piece: 19,
                steps: 9,
                vocab: 33,
            },
            kv_bytes: 1 << 20,
            tolerance,
        }
    }

    /// A model with random weights: fifteen sequences at last, of which the first has a long prompt.
    pub(crate) fn random(
        shape: RandomShape,
        weights: WeightFormat,
        cache: CacheType,
        longest: usize,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let is_sharp = (weights, cache) == (WeightFormat::Stored, CacheType::Act);
        RandomShape { is_sharp, ..shape }.write(folder.path())?;
        let RandomShape {
            architecture,
            head_dim,
            ..
        } = shape;
        let quantized = weights != WeightFormat::Stored;
        Ok(Self {
            name: format!("{architecture:?}, heads of {head_dim}, {weights:?}, {cache:?}"),
            files: Files::Random(folder),
            weights,
            cache,
            plan: Plan {
                count: 15,
                starts: 3,
                longest,
                piece: 256,
                steps: 9,
                vocab: u32::try_from(shape.vocab)?,
            },
            kv_bytes: 128 << 20,
            tolerance: match (cache, quantized) {
                (CacheType::Fp8, _) => FP8_TOLERANCE,
                (CacheType::Act, true) => QUANTIZED_TOLERANCE,
                (CacheType::Act, false) => BF16_TOLERANCE,
            },
        })
    }
}

/// Every model in a folder of golden files, as it is stored, and some of them kept otherwise.
pub(crate) fn golden(folder: &Path) -> Result<Vec<Case>, Failure> {
    let stored = |name: &str| Case::golden(folder, name, WeightFormat::Stored, CacheType::Act);
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join("config.json").exists() {
            cases.push(stored(&entry.file_name().to_string_lossy()));
        }
    }
    if cases.is_empty() {
        return Err(format!("{} has no models", folder.display()).into());
    }
    cases.extend(["f16.gguf", "q8_0.gguf", "q4_k.gguf"].map(stored));
    for kind in [QuantKind::Int8, QuantKind::Int4] {
        let weights = WeightFormat::Quantized(kind);
        cases.push(Case::golden(folder, "qwen2", weights, CacheType::Act));
    }
    Ok(cases)
}

/// Heads as large models have them, with every form of weights, keys and values, at contexts of several hundred tokens.
pub(crate) fn wide() -> Result<Vec<Case>, Failure> {
    let (int8, int4) = (QuantKind::Int8, QuantKind::Int4);
    let [int8, int4] = [int8, int4].map(WeightFormat::Quantized);
    let stored = WeightFormat::Stored;
    let (act, fp8) = (CacheType::Act, CacheType::Fp8);
    let (llama, qwen2, qwen3) = (
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    );
    let mut cases = Vec::new();
    for (architecture, head_dim, kv_heads, weights, cache) in [
        (qwen2, 64, 2, stored, act),
        (qwen2, 64, 1, int8, fp8),
        (qwen2, 64, 2, int4, act),
        (llama, 96, 4, stored, act),
        (llama, 96, 2, int4, fp8),
        (qwen3, 128, 2, stored, act),
        (qwen3, 128, 1, stored, fp8),
        (llama, 128, 1, int8, act),
        (llama, 256, 2, stored, act),
    ] {
        let shape = RandomShape {
            architecture,
            hidden: 320,
            inner: 704,
            layers: 3,
            heads: 4,
            kv_heads,
            head_dim,
            vocab: 1000,
            is_sharp: false,
            seed: 7,
        };
        cases.push(Case::random(shape, weights, cache, 610)?);
    }
    Ok(cases)
}
