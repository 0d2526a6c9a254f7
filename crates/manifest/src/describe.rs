//! Derives `weir-manifest.json` from a model directory in the Hugging Face layout.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::Value;

use crate::artifact::{ArtifactManifest, FileEntry, MANIFEST_FILE};
use crate::content::Content;
use crate::path::FilePath;
use crate::{Digest, SignError};

/// Largest JSON file that is read: tokenizers of 250,000 words have about 20 MiB, and only small files are read here.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// What the directory cannot say about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionIdentity {
    /// The name clients will use.
    pub model: String,
    /// At least 1.
    pub version: u32,
    /// Longest prompt and output together; the model's own limit if absent.
    pub context_tokens: Option<u32>,
    /// Version of the request schema, 1 today.
    pub request_schema: u32,
    /// The base version, for an adapter.
    pub adapter_of: Option<BaseVersion>,
}

/// A signed version that an adapter was made for, as far as an adapter takes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseVersion {
    /// Its manifest digest.
    pub digest: Digest,
    /// Of its network.
    pub architecture: String,
    /// Longest prompt and output together.
    pub context_tokens: u32,
    /// Digest of its `tokenizer.json`.
    pub tokenizer: Option<Digest>,
}

impl BaseVersion {
    /// Reads the manifest of a signed model directory. Who signed it is not asked here: whoever serves both verifies both.
    ///
    /// # Errors
    /// The directory is not signed, or is an adapter itself.
    pub fn read(dir: &Path) -> Result<Self, SignError> {
        let path = dir.join(MANIFEST_FILE);
        let fault = |fault: String| SignError::Model {
            file: path.display().to_string(),
            fault,
        };
        let bytes = std::fs::read(&path).map_err(|error| {
            fault(format!(
                "cannot be read: {error}; an adapter is of a version that is signed already: sign that first"
            ))
        })?;
        let manifest = ArtifactManifest::from_bytes(&bytes)
            .map_err(|error| fault(format!("is no signed manifest: {error}")))?;
        if let Some(base) = manifest.adapter_of {
            return Err(fault(format!(
                "is of an adapter itself; name the directory of its base, {base}"
            )));
        }
        Ok(Self {
            digest: Digest::of(&bytes),
            architecture: manifest.architecture,
            context_tokens: manifest.context_tokens,
            tokenizer: manifest.tokenizer,
        })
    }
}

/// What is found in an adapter's directory instead of a model's configuration.
const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";

type Files = BTreeMap<FilePath, Content>;

pub(crate) fn describe(
    files: &Files,
    identity: &VersionIdentity,
) -> Result<ArtifactManifest, SignError> {
    let (config, architecture, context_tokens) = match &identity.adapter_of {
        Some(base) => of_base(files, base, identity.context_tokens)?,
        None => of_model(files, identity.context_tokens)?,
    };
    Ok(ArtifactManifest {
        model: identity.model.clone(),
        version: identity.version,
        architecture,
        precision: precision(files, &config)?,
        context_tokens,
        request_schema: identity.request_schema,
        tokenizer: digest_of(files, "tokenizer.json"),
        template: template(files)?.map(|text| Digest::of(text.as_bytes())),
        adapter_of: identity.adapter_of.as_ref().map(|base| base.digest),
        references: digest_of(files, "references.jsonl"),
        files: files
            .iter()
            .map(|(path, c)| FileEntry {
                path: path.clone(),
                sha256: c.digest,
                size: c.size,
            })
            .collect(),
    })
}

/// Configuration, architecture and context of a model of its own.
fn of_model(files: &Files, wanted: Option<u32>) -> Result<(Value, String, u32), SignError> {
    let missing = if find(files, ADAPTER_CONFIG_FILE).is_some() {
        "is missing; the directory is of an adapter: name its base with --adapter-of"
    } else {
        "is missing; a model directory has one"
    };
    let config = read_json(files, "config.json")?.ok_or_else(|| fault("config.json", missing))?;
    let architecture = config
        .pointer("/architectures/0")
        .and_then(Value::as_str)
        .ok_or_else(|| fault("config.json", "has no text at architectures[0]"))?
        .to_owned();
    let context_tokens = context_tokens(&config, wanted)?;
    Ok((config, architecture, context_tokens))
}

/// The same of an adapter: what its base has.
fn of_base(
    files: &Files,
    base: &BaseVersion,
    wanted: Option<u32>,
) -> Result<(Value, String, u32), SignError> {
    if find(files, ADAPTER_CONFIG_FILE).is_none() {
        return Err(fault(
            ADAPTER_CONFIG_FILE,
            "is missing; the directory of an adapter is what peft saves",
        ));
    }
    let tokenizer = digest_of(files, "tokenizer.json");
    if tokenizer.is_some() && tokenizer != base.tokenizer {
        return Err(fault(
            "tokenizer.json",
            "is another one than the base's, which has no rows for other tokens; remove it, or train the adapter with the base's",
        ));
    }
    let most = base.context_tokens;
    if let Some(wanted) = wanted.filter(|wanted| *wanted > most) {
        return Err(fault(
            ADAPTER_CONFIG_FILE,
            format!("is of a base with {most} tokens of context, {wanted} were asked for"),
        ));
    }
    let context_tokens = wanted.unwrap_or(most);
    Ok((Value::Null, base.architecture.clone(), context_tokens))
}

fn fault(file: &str, fault: impl Into<String>) -> SignError {
    SignError::Model {
        file: file.to_owned(),
        fault: fault.into(),
    }
}

fn find<'a>(files: &'a Files, name: &str) -> Option<&'a Content> {
    name.parse::<FilePath>()
        .ok()
        .and_then(|path| files.get(&path))
}

fn digest_of(files: &Files, name: &str) -> Option<Digest> {
    find(files, name).map(|content| content.digest)
}

fn read_bytes(files: &Files, name: &str) -> Result<Option<Vec<u8>>, SignError> {
    let Some(content) = find(files, name) else {
        return Ok(None);
    };
    if content.size > MAX_JSON_BYTES {
        return Err(fault(
            name,
            format!("is larger than {MAX_JSON_BYTES} bytes"),
        ));
    }
    let mut bytes = vec![0; usize::try_from(content.size).unwrap_or(0)];
    content
        .file
        .read_exact_at(&mut bytes, 0)
        .map_err(|e| fault(name, format!("cannot be read: {e}")))?;
    Ok(Some(bytes))
}

fn read_json(files: &Files, name: &str) -> Result<Option<Value>, SignError> {
    let Some(bytes) = read_bytes(files, name)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| fault(name, format!("is not JSON: {e}")))
}

fn context_tokens(config: &Value, wanted: Option<u32>) -> Result<u32, SignError> {
    let own = config
        .get("max_position_embeddings")
        .and_then(Value::as_u64)
        .and_then(|n| u32::try_from(n).ok());
    let (Some(own), Some(wanted)) = (own, wanted) else {
        return own.or(wanted).ok_or_else(|| {
            fault(
                "config.json",
                "has no max_position_embeddings; give --context-tokens",
            )
        });
    };
    // Scaled rotary embeddings reach further than the number in the file.
    let factor = ["rope_scaling", "rope_parameters"]
        .iter()
        .find_map(|key| config.get(key)?.get("factor")?.as_f64())
        .unwrap_or(1.0)
        .max(1.0);
    if f64::from(wanted) > f64::from(own) * factor {
        return Err(fault(
            "config.json",
            format!(
                "allows {own} tokens of context (max_position_embeddings), {wanted} were asked for"
            ),
        ));
    }
    Ok(wanted)
}

/// The type that most bytes of the weights have; without safetensors files, what the configuration says.
fn precision(files: &Files, config: &Value) -> Result<String, SignError> {
    let mut bytes_by_type: BTreeMap<String, u64> = BTreeMap::new();
    for (path, content) in files
        .iter()
        .filter(|(path, _)| path.as_str().ends_with(".safetensors"))
    {
        for (name, tensor) in &weights_header(path, content)? {
            let (Some(dtype), Some(begin), Some(end)) = (
                tensor.get("dtype").and_then(Value::as_str),
                tensor.pointer("/data_offsets/0").and_then(Value::as_u64),
                tensor.pointer("/data_offsets/1").and_then(Value::as_u64),
            ) else {
                continue;
            };
            // Quantized matrices are integers to the file's format; what they are is in their names.
            let kind = match name.rsplit_once('.') {
                Some((_, kind @ ("int8" | "int4"))) => kind.to_owned(),
                _ => dtype.to_lowercase(),
            };
            *bytes_by_type.entry(kind).or_default() += end.saturating_sub(begin);
        }
    }
    if let Some((dtype, _)) = bytes_by_type.into_iter().max_by_key(|(_, bytes)| *bytes) {
        return Ok(dtype);
    }
    let stated = ["dtype", "torch_dtype"]
        .iter()
        .find_map(|key| config.get(key)?.as_str());
    match stated {
        Some("bfloat16") => Ok("bf16".to_owned()),
        Some("float16") => Ok("f16".to_owned()),
        Some("float32") => Ok("f32".to_owned()),
        // What `weir sign` writes from a GGUF file: the type that most of its bytes have.
        Some(word) if word.len() <= 8 && word.starts_with('q') => Ok(word.to_owned()),
        _ => Err(fault(
            "model.safetensors",
            "is missing, and config.json has no known dtype",
        )),
    }
}

/// The header of a safetensors file: 8 bytes of length, then JSON.
fn weights_header(
    path: &FilePath,
    content: &Content,
) -> Result<serde_json::Map<String, Value>, SignError> {
    let broken = || fault(path.as_str(), "has no valid safetensors header");
    let mut length = [0; 8];
    content
        .file
        .read_exact_at(&mut length, 0)
        .map_err(|_| broken())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_JSON_BYTES || length > content.size {
        return Err(broken());
    }
    let mut header = vec![0; usize::try_from(length).map_err(|_| broken())?];
    content
        .file
        .read_exact_at(&mut header, 8)
        .map_err(|_| broken())?;
    let mut header: serde_json::Map<String, Value> =
        serde_json::from_slice(&header).map_err(|_| broken())?;
    header.remove("__metadata__");
    Ok(header)
}

/// The chat template's text: a file of its own, or a field of the tokenizer's configuration; of several templates, the default one.
fn template(files: &Files) -> Result<Option<String>, SignError> {
    if let Some(bytes) = read_bytes(files, "chat_template.jinja")? {
        return String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| fault("chat_template.jinja", "is not UTF-8"));
    }
    let Some(config) = read_json(files, "tokenizer_config.json")? else {
        return Ok(None);
    };
    let template = match config.get("chat_template") {
        Some(Value::Array(named)) => named
            .iter()
            .find(|t| t.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|t| t.get("template")),
        other => other,
    };
    Ok(template.and_then(Value::as_str).map(ToOwned::to_owned))
}
