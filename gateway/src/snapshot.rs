//! What the gateway serves, to whom, and where: one immutable value, swapped as a whole. Live runs never look at a new one.

use std::path::PathBuf;
use std::sync::Arc;

use weir_api::ValidGpuPool;
pub use weir_api::gpu_pool::Priority;
use weir_budget::{KeyLimits, Limits};
use weir_manifest::Reference;
use weir_model::config::GenerationConfig;
use weir_rollout::routing::Table;
use weir_run::Price;

use crate::alerts::Alerts;
use crate::settings::Settings;
use crate::text::PromptText;

/// Everything that can change while the gateway runs.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Who may call.
    pub tenants: Vec<Tenant>,
    /// What they may ask for.
    pub models: Vec<ModelRoute>,
    /// Where it runs.
    pub pools: Vec<Pool>,
    /// Which processes to keep a session with.
    pub workers: Vec<WorkerEndpoint>,
    /// What holds for all of it.
    pub settings: Settings,
}

/// A caller's identity, limits and permissions.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name; part of every lookup of a run.
    pub name: String,
    /// Its API keys.
    pub keys: Vec<ApiKey>,
    /// Which key or identity of it this is, once somebody has come with one.
    pub caller: Option<String>,
    /// Budgets, rates and concurrency. `pool_kv_tokens` is worked out from `kv_share_percent` at admission.
    pub limits: Limits,
    /// Share of a pool's KV tokens that its live runs may hold.
    pub kv_share_percent: Option<u8>,
    /// Longest prompt.
    pub max_prompt_tokens: Option<u32>,
    /// Largest output ceiling per choice.
    pub max_output_tokens: Option<u32>,
    /// The most urgent class it may ask for, and the one it gets when it asks for none.
    pub priority: Priority,
    /// What it may use.
    pub models: Vec<ModelPermission>,
    /// Runs of one scope may reuse each other's prefixes. Hashed before it leaves the gateway.
    pub trust_scope: String,
    /// How long events are kept after the run's end.
    pub retention_ms: u64,
    /// Whether its own keys may delete its content.
    pub content_deletion: bool,
    /// Whether its runs may be asked of a version in the shadow too.
    pub shadow: bool,
    /// When and where it is told that a budget is used up.
    pub alerts: Alerts,
}

impl Tenant {
    /// One that may do nothing.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            trust_scope: name.to_owned(),
            ..Self::default()
        }
    }
}

impl Default for Tenant {
    /// Nobody, who may do nothing.
    fn default() -> Self {
        Self {
            name: String::new(),
            keys: Vec::new(),
            caller: None,
            limits: Limits::default(),
            kv_share_percent: None,
            max_prompt_tokens: None,
            max_output_tokens: None,
            priority: Priority::Batch,
            models: Vec::new(),
            trust_scope: String::new(),
            retention_ms: 0,
            content_deletion: false,
            shadow: false,
            alerts: Alerts::default(),
        }
    }
}

impl Tenant {
    /// The tenant as one of its keys may be it: with no more than both allow.
    pub(crate) fn as_key(&self, key: &ApiKey) -> Self {
        let mut tenant = Self {
            caller: Some(key.name.clone()),
            keys: Vec::new(),
            ..self.clone()
        };
        let Some(rules) = &key.rules else {
            return tenant;
        };
        tenant.limits.key = (rules.limits != Limits::default()).then(|| {
            Box::new(KeyLimits {
                name: key.name.clone(),
                limits: rules.limits.clone(),
            })
        });
        if let Some(models) = &rules.models {
            tenant.models.retain(|model| models.contains(&model.name));
        }
        if let Some(priority) = rules.priority {
            // Larger is less urgent.
            tenant.priority = tenant.priority.max(priority);
        }
        tenant
    }
}

/// A key, known only by its hash.
#[derive(Clone, Debug, Default)]
pub struct ApiKey {
    /// Its name, for people.
    pub name: String,
    /// `weir1$…`, as `weir key` prints it.
    pub hash: String,
    /// Refused from then on, in milliseconds since the Unix epoch.
    pub not_after_ms: Option<u64>,
    /// Refused before then.
    pub not_before_ms: Option<u64>,
    /// What it may less than its tenant.
    pub rules: Option<KeyRules>,
}

/// What a key may less than its tenant.
#[derive(Clone, Debug, Default)]
pub struct KeyRules {
    /// Limits of its own, beside the tenant's.
    pub limits: Limits,
    /// Models it may use, of those that the tenant may; all of them where absent.
    pub models: Option<Vec<String>>,
    /// The most urgent class it may ask for.
    pub priority: Option<Priority>,
}

/// Permission to use a model.
#[derive(Clone, Debug)]
pub struct ModelPermission {
    /// The model.
    pub name: String,
    /// Permitted quality tiers; empty means all.
    pub tiers: Vec<String>,
    /// Whether its requests may be served by a permitted smaller model.
    pub fallback: bool,
    /// Whether its requests may name a version (`model@2`).
    pub pinning: bool,
}

/// A model and the versions that serve it.
#[derive(Clone)]
pub struct ModelRoute {
    /// The name clients use.
    pub name: String,
    /// Every version that can be asked for or that has live runs.
    pub versions: Vec<Arc<ServedVersion>>,
    /// Which version takes which share of new runs. The gateway takes only tables that are newer than the one it has.
    pub table: Arc<Table>,
    /// The version that is asked in the shadow, if one is.
    pub mirror: Option<Mirror>,
}

/// A version that is asked in the shadow what stable is asked.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// The attempt: another one is counted anew.
    pub attempt: String,
    /// Its digest.
    pub target: String,
    /// Share of stable's runs.
    pub percent: u32,
    /// Most tokens per second, prompts and outputs together.
    pub max_tokens_per_second: u32,
    /// Whether it is asked too how probable it finds what stable said: it claims to behave as another version does.
    pub is_scored: bool,
    /// Prompts with expected answers that its signer gave with it.
    pub references: Arc<[Reference]>,
}

impl ModelRoute {
    /// The version of a digest.
    pub fn by_digest(&self, digest: &str) -> Option<&Arc<ServedVersion>> {
        self.versions
            .iter()
            .find(|version| version.digest == digest)
    }

    /// The version of a number.
    pub fn by_number(&self, number: u32) -> Option<&Arc<ServedVersion>> {
        self.versions
            .iter()
            .find(|version| version.version == number)
    }
}

/// A model version that can serve.
#[derive(Clone)]
pub struct ServedVersion {
    /// The model.
    pub model: String,
    /// The version.
    pub version: u32,
    /// Its manifest's digest, `sha256:…`.
    pub digest: String,
    /// Where it runs.
    pub pool: String,
    /// Its quality tier.
    pub tier: String,
    /// What its tokens cost.
    pub price: Price,
    /// Most positions of a sequence.
    pub context_tokens: u32,
    /// Tokenizer and chat template.
    pub text: Arc<dyn PromptText>,
    /// Smaller models that may stand in, in order.
    pub fallback: Vec<String>,
    /// What absent sampling fields mean, from the model's `generation_config.json`.
    pub defaults: SamplingDefaults,
}

/// What absent sampling fields mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            repetition_penalty: 1.0,
        }
    }
}

impl From<&GenerationConfig> for SamplingDefaults {
    fn from(generation: &GenerationConfig) -> Self {
        Self {
            temperature: generation.temperature,
            top_p: generation.top_p,
            top_k: generation.top_k,
            repetition_penalty: generation.repetition_penalty,
        }
    }
}

/// A pool's bounds.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Bounds of each priority's queue, most urgent first. They hold for each version by itself.
    pub queues: [QueueBound; 3],
    /// Largest prompt of the short and of the medium class, in tokens: classes take turns, so that long prompts hold up no short ones.
    pub class_bounds: [u32; 2],
    /// Whether it may have no worker at all while nobody asks: then the first runs wait for one to start.
    pub sleeps: bool,
    /// Longest prompt that it takes; any where absent.
    pub largest_prompt: Option<u32>,
}

/// Bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// Most runs that wait.
    pub max_depth: u32,
    /// Longest wait.
    pub max_wait_ms: u64,
}

impl From<&ValidGpuPool> for Pool {
    fn from(valid: &ValidGpuPool) -> Self {
        let queue = &valid.queue;
        let bound = |bound: &weir_api::QueueBound| QueueBound {
            max_depth: bound.max_depth,
            max_wait_ms: u64::try_from(bound.max_wait.as_millis()).unwrap_or(u64::MAX),
        };
        let mut bounds = valid.prompt_classes.iter().map(|c| c.max_prompt_tokens);
        let mut class_bound = || bounds.next().unwrap_or(u32::MAX);
        Self {
            name: valid.name.clone(),
            queues: [
                bound(&queue.interactive),
                bound(&queue.standard),
                bound(&queue.batch),
            ],
            class_bounds: [class_bound(), class_bound()],
            sleeps: valid.min_replicas == 0,
            largest_prompt: valid.largest_prompt(),
        }
    }
}

/// A worker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEndpoint {
    /// Stable within the pool.
    pub name: String,
    /// Whose it is.
    pub pool: String,
    /// Where it listens.
    pub address: WorkerAddress,
    /// The version that is asked of it, where it holds several: each has a session, and so a name, of its own.
    pub version: Option<String>,
}

/// Where a worker listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerAddress {
    /// A socket in the file system.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}
