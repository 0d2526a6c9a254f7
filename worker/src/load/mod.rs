//! From a load plan to a model in memory: verify, map what was verified, and nothing else.

mod adapter;
mod fetch;
mod plan;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_manifest::{
    PolicyError, TrustPolicy, VerifiedArtifact, VerifyError, VerifyRequest, open_verified,
};
use weir_model::backend::Backend;
use weir_model::tokenizer::Tokenizer;
use weir_model::{AdapterError, CpuThreads, ModelText, OpenFiles, TextError};

pub(crate) use adapter::load_adapter;
pub(crate) use fetch::{Files, bring, mend};
pub use plan::{LoadPlan, PlanFetch, PlanPlacement, PlanSignature};

use crate::announce::Announcer;
use crate::config::{DeviceSettings, EngineSettings};

/// A model version that is ready to run. The worker's own tests put other backends in.
pub struct Loaded {
    /// Manifest digest, `sha256:…`.
    pub version_digest: String,
    /// The model's name.
    pub model: String,
    /// Its version.
    pub version: u32,
    /// Rows of the embedding table: every token id is below.
    pub vocab: u32,
    /// Every token that ends a text.
    pub end_tokens: Vec<u32>,
    /// Token ids to text.
    pub tokenizer: Arc<Tokenizer>,
    /// The device with the weights.
    pub backend: Box<dyn Backend>,
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan cannot be read.
    #[error("cannot read the load plan {path:?}")]
    PlanUnreadable {
        /// Which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The plan is not one.
    #[error("the load plan {path:?} is malformed")]
    PlanMalformed {
        /// Which file.
        path: PathBuf,
        /// The cause, with its place.
        #[source]
        source: serde_json::Error,
    },
    /// The signature in the plan is not base64.
    #[error("the signature bundle in the load plan is not base64")]
    BundleMalformed(#[source] base64::DecodeError),
    /// The trust policy cannot be used.
    #[error("the trust policy in the load plan cannot be used")]
    Policy(#[source] PolicyError),
    /// The artifact is not what a trusted signer signed.
    #[error("{}", .0.condition_message())]
    Refused(VerifyError),
    /// The artifact is another version than the plan says.
    #[error("the artifact is the version {found}, and the load plan says {planned}")]
    OtherVersion {
        /// Manifest digest of the plan.
        planned: String,
        /// Manifest digest of the artifact.
        found: String,
    },
    /// The system refuses a verified file.
    #[error("cannot use the verified file \"{name}\"")]
    File {
        /// Path in the artifact.
        name: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Configuration, tokenizer or template cannot be used.
    #[error("the model's files cannot be used")]
    Text(#[source] TextError),
    /// Weights cannot be used, or the device cannot hold them.
    #[error("the model's weights cannot be used")]
    Weights(#[source] weir_model::LoadError),
    /// The plan is of no adapter of what is served.
    #[error("the load plan is of an adapter of {found}, and this worker serves {served}")]
    OtherBase {
        /// What the plan says: a digest, or that it is of no adapter.
        found: String,
        /// Manifest digest of the version that is served.
        served: String,
    },
    /// The adapter's files cannot be used with the base.
    #[error("the adapter cannot be used")]
    Adapter(#[source] weir_model::AdapterError),
    /// A panic while loading; its message is in the log.
    #[error("loading ended unexpectedly; see the log")]
    Crashed,
    /// Every place for a version is taken.
    #[error(
        "the worker holds {most} versions, which is the most it holds: it waits until one leaves; retire one, or give workers more places"
    )]
    Full {
        /// The bound.
        most: u32,
    },
    /// The version is held, by another plan or until its last run ends.
    #[error(
        "the worker holds this version already: for another plan, or until the last of its runs ends"
    )]
    Held,
    /// A worker of several versions fetches none.
    #[error(
        "the version's files are elsewhere, and a worker that holds several versions fetches none: fetch them before, and name their folder"
    )]
    Elsewhere,
    /// The version's engine cannot be started.
    #[error("{0}")]
    Engine(String),
    /// A GPU was asked for and there is none.
    #[error("--device cuda: no GPU can be used: {why}; --device cpu runs the model without one")]
    NoDevice {
        /// Why not.
        why: String,
    },
    /// There is a GPU, and it cannot run the model.
    #[error("the GPU cannot run the model (--device cpu runs it on the CPU): {cause}")]
    Device {
        /// What it says.
        cause: String,
    },
}

impl LoadError {
    /// One word: the verifier's own where it refused.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::PlanUnreadable { .. } | Self::PlanMalformed { .. } | Self::BundleMalformed(_) => {
                "PlanInvalid"
            }
            Self::Policy(_) => "TrustPolicyInvalid",
            Self::Refused(error) => error.reason(),
            Self::OtherVersion { .. } => "ManifestMismatch",
            Self::File { .. } => "FileUnreadable",
            Self::Text(_) => "UnsupportedModel",
            Self::Weights(error) => error.category(),
            Self::OtherBase { .. } => "BaseMismatch",
            Self::Crashed => "LoadCrashed",
            Self::Full { .. } => "PoolFull",
            Self::Held => "StillHeld",
            Self::Elsewhere => "FilesElsewhere",
            Self::Engine(_) => "EngineFailed",
            Self::Adapter(error) => error.category(),
            Self::NoDevice { .. } | Self::Device { .. } => "DeviceUnavailable",
        }
    }

    /// Whether it passes as soon as another version leaves, and costs nothing to ask again.
    pub(crate) fn waits_for_room(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Held)
    }

    /// Whether it takes a change of plan or artifact, rather than another try.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Refused(error) => !error.is_transient(),
            Self::File { .. }
            | Self::Device { .. }
            | Self::Crashed
            | Self::Engine(_)
            | Self::Full { .. }
            | Self::Held
            | Self::Adapter(AdapterError::TooMany { .. }) => false,
            _ => true,
        }
    }
}

/// Loads what a plan says.
///
/// # Errors
/// See [`LoadError`]; nothing was mapped for serving that is not verified.
pub fn load(
    plan: &LoadPlan,
    settings: (&EngineSettings, &DeviceSettings),
    announcer: &Announcer,
) -> Result<Loaded, LoadError> {
    load_on(plan, settings, None, announcer)
}

/// Loads what a plan says, onto threads that other versions share where there are any.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_on(
    plan: &LoadPlan,
    (settings, device): (&EngineSettings, &DeviceSettings),
    threads: Option<CpuThreads>,
    announcer: &Announcer,
) -> Result<Loaded, LoadError> {
    let chosen = crate::device::choose(device.choice)?;
    let artifact = verify(plan, announcer)?;
    announcer.loading("reading the model");
    let files = open_files(&artifact)?;
    let text = ModelText::from_files(&files).map_err(LoadError::Text)?;
    let end_tokens = text.eos_tokens().to_vec();
    let vocab = u32::try_from(text.config.vocab_size).unwrap_or(u32::MAX);
    announcer.loading("loading weights");
    let context_tokens = plan.claim.context_tokens;
    let backend = crate::device::open(&files, context_tokens, settings, (chosen, device, threads))?;
    Ok(Loaded {
        version_digest: artifact.manifest_digest.to_string(),
        model: plan.claim.model.clone(),
        version: plan.claim.version,
        vocab,
        end_tokens,
        tokenizer: Arc::new(text.tokenizer),
        backend,
    })
}

fn verify(plan: &LoadPlan, announcer: &Announcer) -> Result<VerifiedArtifact, LoadError> {
    let policy = TrustPolicy::new(plan.trust.clone()).map_err(LoadError::Policy)?;
    let bundle = plan
        .signature
        .decode()
        .map_err(LoadError::BundleMalformed)?;
    let total: u64 = plan.claim.files.iter().map(|file| file.size).sum();
    let done = AtomicU64::new(0);
    announcer.verifying(0, total);
    let progress = |bytes: u64| {
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        announcer.verifying(before + bytes, total);
    };
    let request = VerifyRequest {
        dir: &plan.dir,
        signature: plan.signature.source(&bundle),
        policy: &policy,
        now: jiff::Timestamp::now(),
        placement: plan.placement.into(),
        progress: Some(&progress),
    };
    let artifact = open_verified(&request, &plan.claim).map_err(LoadError::Refused)?;
    if artifact.manifest_digest != plan.digest {
        return Err(LoadError::OtherVersion {
            planned: plan.digest.to_string(),
            found: artifact.manifest_digest.to_string(),
        });
    }
    tracing::info!(model = plan.claim.model, version = plan.claim.version, digest = %plan.digest, "artifact verified");
    Ok(artifact)
}

/// The open files that were hashed: names are not opened again.
///
/// # Errors
/// [`LoadError::File`]: the system refuses another descriptor of one.
pub fn open_files(artifact: &VerifiedArtifact) -> Result<OpenFiles, LoadError> {
    let mut files = Vec::new();
    for (path, verified) in artifact.files() {
        let name = path.as_str().to_owned();
        match verified.file().try_clone() {
            Ok(file) => files.push((name, file)),
            Err(source) => return Err(LoadError::File { name, source }),
        }
    }
    Ok(OpenFiles::new(files))
}
