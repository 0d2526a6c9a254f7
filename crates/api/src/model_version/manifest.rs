//! What is signed, and the signature.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Relative, without empty, `.` or `..` segments.
const FILE_PATH: &str =
    "^\\.?[A-Za-z0-9_+@=,-][A-Za-z0-9._+@=, -]*(/\\.?[A-Za-z0-9_+@=,-][A-Za-z0-9._+@=, -]*)*$";
const SHA256: &str = "^[0-9a-f]{64}$";
const DIGEST: &str = "^sha256:[0-9a-f]{64}$";

/// What is signed: the files and what the model can do.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.files == oldSelf.files").message("files cannot change: create another ModelVersion").field_path(".files"),
    validation = Rule::new("self.architecture == oldSelf.architecture && self.precision == oldSelf.precision").message("architecture and precision cannot change: create another ModelVersion").field_path(".architecture"),
    validation = Rule::new("self.contextTokens == oldSelf.contextTokens && self.requestSchema == oldSelf.requestSchema").message("contextTokens and requestSchema cannot change: create another ModelVersion").field_path(".contextTokens"),
    validation = Rule::new("has(self.adapterOf) == has(oldSelf.adapterOf) && (!has(self.adapterOf) || self.adapterOf == oldSelf.adapterOf)").message("adapterOf cannot change: create another ModelVersion").field_path(".adapterOf"),
    validation = Rule::new("has(self.references) == has(oldSelf.references) && (!has(self.references) || self.references == oldSelf.references)").message("references cannot change: create another ModelVersion").field_path(".references"),
    validation = Rule::new("has(self.sameBehaviourAs) == has(oldSelf.sameBehaviourAs) && (!has(self.sameBehaviourAs) || self.sameBehaviourAs == oldSelf.sameBehaviourAs)").message("sameBehaviourAs cannot change: create another ModelVersion").field_path(".sameBehaviourAs"),
    validation = Rule::new("self.files.exists(f, f.path == 'weir-manifest.json')").message("files must list weir-manifest.json: `weir sign` writes it").field_path(".files"),
    validation = Rule::new("!has(self.references) || self.files.exists(f, f.path == self.references)").message("references must name one of the files, so that it is signed").field_path(".references")
)]
pub struct Manifest {
    /// Where the files are fetched from; free to change, because the digests stay.
    pub artifact: Artifact,

    /// Every file of the artifact, `weir-manifest.json` included. Cannot change.
    #[schemars(length(min = 1, max = 512))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Vec<File>,

    /// The architecture as config.json names it, such as `LlamaForCausalLM`. Cannot change.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Za-z0-9_]+$"))]
    pub architecture: String,

    /// The precision of the weights: bf16, f16, f32, int8, int4, or the blocks of a GGUF file, such as q8_0. Cannot change.
    pub precision: Precision,

    /// The longest context, prompt and output together, in tokens. Cannot change.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_tokens: i32,

    /// The version of the request format (chat template, roles, tools) that the model understands. Cannot change.
    #[schemars(range(min = 1, max = 1000))]
    pub request_schema: i32,

    /// The manifest digest of the base model, for an adapter (LoRA). Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71), regex(pattern = DIGEST))]
    pub adapter_of: Option<String>,

    /// The signed file with reference prompts and accepted answers. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = FILE_PATH))]
    pub references: Option<String>,

    /// The manifest digest of a version this one must not differ from (new precision, new engine); any difference then holds the rollout. Cannot
    /// change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71), regex(pattern = DIGEST))]
    pub same_behaviour_as: Option<String>,
}

/// Where the files are.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.secret) || !self.uri.matches('^(file:|pvc://)')").message("secret belongs to places that files are fetched from: nothing is fetched from file: and pvc://").field_path(".secret"),
    validation = Rule::new("!has(self.secret) || !self.secret.startsWith('weir-')").message("secret must not begin with weir-: such Secrets are the install's own, and no pod that runs a model has them").field_path(".secret")
)]
pub struct Artifact {
    /// `file:` (relative to the manifest that names it, or absolute), `oci://`, `https://`, `s3://`, `gs://`, `az://` or `pvc://`.
    #[schemars(length(min = 6, max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^(file:|oci://|https://|s3://|gs://|az://|pvc://)[^ ]+$')").message("uri must start with file:, oci://, https://, s3://, gs://, az:// or pvc:// and have no spaces"))]
    pub uri: String,

    /// The Secret in the same namespace that says how the place is spoken to: credentials and settings under the names that the environment
    /// has for them, and `.dockerconfigjson` or `tokens`. Only for places that files are fetched from. Not used by `weir up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub secret: Option<String>,
}

/// One file of the artifact.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Path relative to the artifact, with `/`, without `.` or `..` segments.
    #[schemars(length(min = 1, max = 256), regex(pattern = FILE_PATH))]
    pub path: String,
    /// SHA-256 of the content: 64 lower-case hexadecimal digits.
    #[schemars(length(min = 64, max = 64), regex(pattern = SHA256))]
    pub sha256: String,
    /// Size in bytes.
    #[schemars(range(min = 0))]
    pub size: i64,
}

/// Precision of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Brain float, 16 bits.
    Bf16,
    /// IEEE half, 16 bits.
    F16,
    /// IEEE single, 32 bits.
    F32,
    /// Integers of 8 bits, as `weir quantize` writes them.
    Int8,
    /// Integers of 4 bits, as `weir quantize` writes them.
    Int4,
    /// Blocks of a GGUF file: 8 bits.
    Q8_0,
    /// Blocks of a GGUF file: 4 bits.
    Q4_0,
    /// Blocks of a GGUF file: 4 bits with a minimum.
    Q4_1,
    /// Blocks of a GGUF file: 5 bits.
    Q5_0,
    /// Blocks of a GGUF file: 5 bits with a minimum.
    Q5_1,
    /// Large blocks of a GGUF file: 4 bits.
    #[serde(rename = "q4_k")]
    Q4K,
    /// Large blocks of a GGUF file: 5 bits.
    #[serde(rename = "q5_k")]
    Q5K,
    /// Large blocks of a GGUF file: 6 bits.
    #[serde(rename = "q6_k")]
    Q6K,
}

impl Precision {
    /// The word used in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
        }
    }
}

/// The signature over every file.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.bundle) != has(self.file)").message("signature needs exactly one of bundle and file"))]
pub struct Signature {
    /// A Sigstore bundle (OpenSSF Model Signing v1.0) in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 4, max = 524_288),
        regex(pattern = "^[A-Za-z0-9+/\n]+={0,2}\n?$")
    )]
    pub bundle: Option<String>,
    /// A file with the bundle beside the artifact, such as `model.sig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = FILE_PATH))]
    pub file: Option<String>,
}
