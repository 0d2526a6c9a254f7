//! A proven `ModelVersion`.

use std::time::Duration;

use super::{Problems, Validate, identity, unsigned, unsigned_64};
use crate::model_version::{
    Manifest, ModelVersion, OnBreach, Permission, Policy, Precision, Price, Promote,
    RollbackReserve, Rollout, Shadow, ShadowMode, Signature, Stage, Step,
};

/// A proven `ModelVersion`.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidModelVersion {
    /// The object's name.
    pub name: String,
    /// The object's namespace, if it has one.
    pub namespace: Option<String>,
    /// The object's generation, 0 where nobody counts.
    pub generation: i64,
    /// The name clients use.
    pub model: String,
    /// The version's number, at least 1.
    pub version: u32,
    /// What is signed.
    pub manifest: ValidManifest,
    /// Where the signature is.
    pub signature: SignatureSource,
    /// How far it may go.
    pub stage: Stage,
    /// The pool that serves it.
    pub pool: String,
    /// The tier that tenants are permitted by.
    pub quality_tier: String,
    /// Price per token.
    pub price: TokenPrice,
    /// Smaller models that may answer instead, in order.
    pub fallback: Vec<String>,
    /// How traffic moves to it.
    pub rollout: RolloutPlan,
}

/// What is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidManifest {
    /// Where the files are fetched from; not signed.
    pub artifact_uri: String,
    /// The Secret that says how the place is spoken to.
    pub artifact_secret: Option<String>,
    /// Every file.
    pub files: Vec<ManifestFile>,
    /// The architecture as config.json names it.
    pub architecture: String,
    /// Precision of the weights.
    pub precision: Precision,
    /// The longest context in tokens.
    pub context_tokens: u32,
    /// The version of the request format.
    pub request_schema: u32,
    /// The base model's manifest digest, for an adapter.
    pub adapter_of: Option<String>,
    /// The file with reference prompts.
    pub references: Option<String>,
    /// The manifest digest of a version this one must not differ from.
    pub same_behaviour_as: Option<String>,
}

/// One file of the artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    /// Relative path with `/`, without `.` or `..` segments.
    pub path: String,
    /// SHA-256 of the content.
    pub sha256: [u8; 32],
    /// Size in bytes.
    pub size: u64,
}

impl ValidManifest {
    /// The path, if `artifact_uri` is a `file:` URI: relative to the YAML file that names it, or absolute.
    pub fn local_path(&self) -> Option<&str> {
        let path = self.artifact_uri.strip_prefix("file:")?;
        Some(path.strip_prefix("//").unwrap_or(path))
    }

    /// The directory that holds the artifact in a pod, where volumes are mounted under `root` by the names of their claims: for an
    /// absolute `file:` URI the path itself, for `pvc://CLAIM/PATH` the claim's folder. Other places are not mounted, and none are
    /// relative.
    pub fn mounted_path(&self, root: &str) -> Option<String> {
        if let Some(path) = self.local_path() {
            return path.starts_with('/').then(|| path.to_owned());
        }
        let (claim, path) = self.claim()?;
        let root = root.trim_end_matches('/');
        Some(format!("{root}/{claim}/{path}"))
    }

    /// Whether the files are fetched from elsewhere: neither a path nor a claim is where they are.
    pub fn is_remote(&self) -> bool {
        !self.artifact_uri.starts_with("file:") && !self.artifact_uri.starts_with("pvc://")
    }

    /// The PersistentVolumeClaim and the path in it, if `artifact_uri` is a `pvc:` URI without steps upwards.
    pub fn claim(&self) -> Option<(&str, &str)> {
        let rest = self.artifact_uri.strip_prefix("pvc://")?;
        let (claim, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = !path.split('/').any(|segment| segment == "..") && !claim.is_empty();
        is_plain.then_some((claim, path.trim_matches('/')))
    }
}

/// Where the signature is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureSource {
    /// A Sigstore bundle in base64, in the object itself.
    Bundle(String),
    /// A file beside the artifact.
    File(String),
}

/// Price per token in micro-units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenPrice {
    /// For a prompt token that was computed.
    pub prompt_micros: u64,
    /// For a prompt token whose KV was reused.
    pub cached_micros: u64,
    /// For an output token.
    pub output_micros: u64,
}

/// How traffic moves to a version. Shares are in parts per million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutPlan {
    /// Mirrored runs before the first step, if any.
    pub shadow: Option<ShadowPlan>,
    /// Steps below 100 percent, in strictly rising weight.
    pub steps: Vec<RolloutStep>,
    /// What the version must keep to.
    pub guardrails: Guardrails,
    /// Too few runs after a step's longest wait.
    pub on_no_data: Policy,
    /// Enough runs, no verdict.
    pub on_inconclusive: Policy,
    /// A guardrail was breached.
    pub on_breach: OnBreach,
    /// What replaces the stable version.
    pub promote: Promote,
    /// How long to observe at 100 percent.
    pub final_bake: Duration,
    /// What the version before keeps.
    pub rollback_reserve: RollbackReserve,
    /// Whether runs may wait while the only replica is exchanged.
    pub downtime: Permission,
    /// How long starting may take.
    pub progress_deadline: Duration,
}

/// Mirrored runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowPlan {
    /// Share of the stable version's runs.
    pub percent: u32,
    /// Mirrored runs needed.
    pub min_requests: u32,
    /// What the candidate computes.
    pub mode: ShadowMode,
    /// Bound on mirrored tokens per second.
    pub max_tokens_per_second: u32,
    /// Least share of greedy answers that agree, if judged.
    pub agreement_ppm: Option<u32>,
}

/// One canary step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutStep {
    /// Share of new runs, 1 to 99.
    pub weight_percent: u32,
    /// How long to observe at least.
    pub bake: Duration,
    /// How long to wait for enough runs.
    pub max_wait: Duration,
}

/// What a version must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guardrails {
    /// Largest share of failed runs.
    pub error_rate_ppm: u32,
    /// Time to the first token at the 95th percentile, if judged.
    pub ttft_p95_ms: Option<u32>,
    /// Time between tokens at the 95th percentile, if judged.
    pub inter_token_p95_ms: Option<u32>,
    /// Canary runs needed in each step.
    pub min_requests: u32,
    /// Bound on rolling back an identical version.
    pub false_alarm_ppm: u32,
    /// Bound on promoting a version that is worse by the limit.
    pub promote_risk_ppm: u32,
}

/// Weights of the steps where the spec is silent: one for catastrophes, one for proof, one for load.
const SILENT_STEPS: [i32; 3] = [5, 25, 50];
/// A minute: a default bake shorter than a metrics scrape and an operator's glance would prove nothing.
const SILENT_BAKE: Duration = Duration::from_mins(1);
/// Rollout statistics need about fifty runs before a share means anything.
const SILENT_MIN_REQUESTS: i32 = 50;

impl Validate for ModelVersion {
    type Valid = ValidModelVersion;

    fn resolve(&self, problems: &mut Problems) -> ValidModelVersion {
        let (name, namespace, generation) = identity(self);
        let spec = &self.spec;
        ValidModelVersion {
            name,
            namespace,
            generation,
            model: spec.model.clone(),
            version: unsigned(spec.version),
            manifest: manifest(&spec.manifest),
            signature: signature(&spec.signature),
            stage: spec.stage,
            pool: spec.pool.clone(),
            quality_tier: spec
                .quality_tier
                .clone()
                .unwrap_or_else(|| "standard".to_owned()),
            price: price(spec.price.as_ref()),
            fallback: spec.fallback.clone().unwrap_or_default(),
            rollout: plan(&spec.rollout.clone().unwrap_or_default(), problems),
        }
    }
}

fn manifest(manifest: &Manifest) -> ValidManifest {
    let file = |file: &crate::model_version::File| ManifestFile {
        path: file.path.clone(),
        sha256: sha256(&file.sha256),
        size: unsigned_64(file.size),
    };
    ValidManifest {
        artifact_uri: manifest.artifact.uri.clone(),
        artifact_secret: manifest.artifact.secret.clone(),
        files: manifest.files.iter().map(file).collect(),
        architecture: manifest.architecture.clone(),
        precision: manifest.precision,
        context_tokens: unsigned(manifest.context_tokens),
        request_schema: unsigned(manifest.request_schema),
        adapter_of: manifest.adapter_of.clone(),
        references: manifest.references.clone(),
        same_behaviour_as: manifest.same_behaviour_as.clone(),
    }
}

/// The schema's pattern has proven 64 hexadecimal digits.
fn sha256(text: &str) -> [u8; 32] {
    let mut digest = [0_u8; 32];
    for (index, byte) in digest.iter_mut().enumerate() {
        let pair = &text[2 * index..2 * index + 2];
        *byte = u8::from_str_radix(pair, 16).expect("the schema's pattern is checked before");
    }
    digest
}

fn signature(signature: &Signature) -> SignatureSource {
    match (&signature.bundle, &signature.file) {
        (Some(bundle), _) => SignatureSource::Bundle(bundle.split_whitespace().collect()),
        (None, Some(file)) => SignatureSource::File(file.clone()),
        (None, None) => unreachable!("a schema rule demands exactly one, checked before"),
    }
}

fn price(price: Option<&Price>) -> TokenPrice {
    let price = price.cloned().unwrap_or_default();
    let prompt = unsigned_64(price.prompt_micros_per_token.unwrap_or(0));
    TokenPrice {
        prompt_micros: prompt,
        cached_micros: price.cached_micros_per_token.map_or(prompt, unsigned_64),
        output_micros: unsigned_64(price.output_micros_per_token.unwrap_or(0)),
    }
}

fn plan(rollout: &Rollout, problems: &mut Problems) -> RolloutPlan {
    let steps = steps(rollout.steps.as_deref(), problems);
    let last_bake = steps.last().map_or(SILENT_BAKE, |step| step.bake);
    RolloutPlan {
        shadow: rollout.shadow.as_ref().map(|s| shadow(s, problems)),
        guardrails: guardrails(rollout, problems),
        on_no_data: rollout.on_no_data.unwrap_or(Policy::Hold),
        on_inconclusive: rollout.on_inconclusive.unwrap_or(Policy::Hold),
        on_breach: rollout.on_breach.unwrap_or(OnBreach::Rollback),
        promote: rollout.promote.unwrap_or(Promote::Fine),
        final_bake: problems.duration(
            "spec.rollout.finalBake",
            rollout.final_bake.as_ref(),
            last_bake,
        ),
        rollback_reserve: rollout
            .rollback_reserve
            .unwrap_or(RollbackReserve::FullThenOne),
        downtime: rollout.downtime.unwrap_or(Permission::Denied),
        progress_deadline: problems.period(
            "spec.rollout.progressDeadline",
            rollout.progress_deadline.as_ref(),
            Duration::from_mins(10),
        ),
        steps,
    }
}

fn steps(given: Option<&[Step]>, problems: &mut Problems) -> Vec<RolloutStep> {
    let silent = SILENT_STEPS.map(|weight_percent| Step {
        weight_percent,
        bake: None,
        max_wait: None,
    });
    let mut steps = Vec::new();
    for (index, step) in given.unwrap_or(&silent).iter().enumerate() {
        let path = format!("spec.rollout.steps[{index}]");
        let bake = problems.duration(&format!("{path}.bake"), step.bake.as_ref(), SILENT_BAKE);
        let patience = bake.saturating_mul(20).max(Duration::from_mins(30));
        let wait_path = format!("{path}.maxWait");
        let max_wait = problems.duration(&wait_path, step.max_wait.as_ref(), patience);
        if max_wait < bake {
            problems.push(wait_path, "must not be shorter than bake");
        }
        steps.push(RolloutStep {
            weight_percent: unsigned(step.weight_percent),
            bake,
            max_wait,
        });
    }
    steps
}

fn shadow(shadow: &Shadow, problems: &mut Problems) -> ShadowPlan {
    let agreement = shadow.agreement_percent.as_ref();
    let agreement_ppm = agreement
        .map(|percent| problems.share("spec.rollout.shadow.agreementPercent", Some(percent), 0));
    if agreement_ppm.is_some() && shadow.mode == Some(ShadowMode::Score) {
        problems.push(
            "spec.rollout.shadow.mode",
            "agreementPercent needs answers: write mode Generate or leave mode out",
        );
    }
    let silent_mode = if agreement_ppm.is_some() {
        ShadowMode::Generate
    } else {
        ShadowMode::Score
    };
    ShadowPlan {
        percent: unsigned(shadow.percent),
        min_requests: unsigned(shadow.min_requests.unwrap_or(SILENT_MIN_REQUESTS)),
        mode: shadow.mode.unwrap_or(silent_mode),
        max_tokens_per_second: unsigned(shadow.max_tokens_per_second.unwrap_or(2000)),
        agreement_ppm,
    }
}

fn guardrails(rollout: &Rollout, problems: &mut Problems) -> Guardrails {
    let given = rollout.guardrails.clone().unwrap_or_default();
    let path = |field: &str| format!("spec.rollout.guardrails.{field}");
    let error_rate_ppm = problems.share(
        &path("errorRatePercent"),
        given.error_rate_percent.as_ref(),
        10_000,
    );
    if error_rate_ppm == 0 {
        problems.push(
            path("errorRatePercent"),
            "must be above 0: no number of runs proves that none ever fails; write \"0.1\" for one in a thousand",
        );
    }
    Guardrails {
        error_rate_ppm,
        ttft_p95_ms: given.ttft_p95_ms.map(unsigned),
        inter_token_p95_ms: given.inter_token_p95_ms.map(unsigned),
        min_requests: unsigned(given.min_requests.unwrap_or(SILENT_MIN_REQUESTS)),
        false_alarm_ppm: problems.probability(
            &path("falseAlarmPercent"),
            given.false_alarm_percent.as_ref(),
            10_000,
        ),
        promote_risk_ppm: problems.probability(
            &path("promoteRiskPercent"),
            given.promote_risk_percent.as_ref(),
            50_000,
        ),
    }
}
