//! A proven `GpuPool`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Problems, Validate, identity, unsigned};
use crate::gpu_pool::{
    self as raw, AcceleratorType, Engine, Fetch, GpuPool, KvDtype, Priority, Queue, Scaling,
    Sharing, WeightFormat,
};
use crate::text::QuantityText;

/// A proven `GpuPool`.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidGpuPool {
    /// The object's name.
    pub name: String,
    /// The object's namespace, if it has one.
    pub namespace: Option<String>,
    /// The object's generation, 0 where nobody counts.
    pub generation: i64,
    /// What the workers compute on.
    pub accelerator: Accelerator,
    /// Labels a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Fewest workers.
    pub min_replicas: u32,
    /// Most workers, at least 1 and `min_replicas`.
    pub max_replicas: u32,
    /// Workers of a model beside those it needs, while a version replaces another one; as many again where absent.
    pub max_surge: Option<u32>,
    /// What autoscaling aims at.
    pub scaling: AutoscaleTargets,
    /// Whether a worker holds one version or several.
    pub sharing: Sharing,
    /// Most versions that a worker of a shared pool holds.
    pub max_versions: u32,
    /// What each worker's engine may use.
    pub engine: EngineLimits,
    /// How many runs may wait, and for how long.
    pub queue: QueueBounds,
    /// Classes of prompts in strictly rising order, at least one; where the last has a bound the pool takes nothing longer.
    pub prompt_classes: Vec<PromptClass>,
    /// How workers fetch artifacts that are elsewhere.
    pub fetch: FetchLimits,
    /// Where the pool is.
    pub region: Option<String>,
    /// Fields merged over the operator's pod template.
    pub pod_template: Option<serde_json::Map<String, serde_json::Value>>,
}

impl ValidGpuPool {
    /// Longest prompt that it takes; any where none.
    pub fn largest_prompt(&self) -> Option<u32> {
        let last = self.prompt_classes.last()?.max_prompt_tokens;
        (last != u32::MAX).then_some(last)
    }
}

/// What the workers compute on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The node's processor.
    Cpu,
    /// An extended resource of the node.
    Gpu {
        /// Such as `nvidia.com/gpu`.
        resource_name: String,
        /// How many a worker gets.
        count: u32,
    },
    /// A ResourceClaimTemplate.
    Claim {
        /// Its name.
        template: String,
    },
}

/// What autoscaling aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoscaleTargets {
    /// KV memory in use.
    pub kv_occupancy_percent: u32,
    /// Time in the queue.
    pub queue: Duration,
    /// Tokens computed in a second, by one worker; `None` where it does not matter.
    pub tokens_per_second: Option<u32>,
    /// How long demand must be low before workers are removed.
    pub scale_down_stabilization: Duration,
}

/// What each worker's engine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Tokens computed in one engine step.
    pub max_batch_tokens: u32,
    /// Sequences that run at once.
    pub max_running: u32,
    /// KV memory per worker; `None` is what its device has left.
    pub kv_bytes: Option<u64>,
    /// Tokens in a KV block.
    pub block_tokens: u32,
    /// Number format of the KV cache.
    pub kv_dtype: KvDtype,
    /// What becomes of the weights when they are loaded.
    pub weights: WeightFormat,
    /// Tokens guessed ahead per sequence and step; the worker's default where absent.
    pub draft_tokens: Option<u32>,
}

/// How workers fetch artifacts that are elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchLimits {
    /// The claim that is their cache.
    pub cache_claim: Option<String>,
    /// Most bytes that the cache may hold.
    pub cache_bytes: Option<u64>,
    /// Most bytes a second that a worker fetches.
    pub bytes_per_second: Option<u64>,
    /// Files at the same time; the fetcher's default where absent.
    pub parallel: Option<u32>,
}

/// How many runs may wait, and for how long, by priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Somebody waits for each token.
    pub interactive: QueueBound,
    /// Somebody waits for the end.
    pub standard: QueueBound,
    /// Nobody waits.
    pub batch: QueueBound,
}

impl QueueBounds {
    /// The bound of one priority.
    pub fn of(&self, priority: Priority) -> QueueBound {
        match priority {
            Priority::Interactive => self.interactive,
            Priority::Standard => self.standard,
            Priority::Batch => self.batch,
        }
    }
}

/// How many runs of one priority may wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// Runs that may wait.
    pub max_depth: u32,
    /// Longest wait that is admitted.
    pub max_wait: Duration,
}

/// A class of prompts by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptClass {
    /// Its name.
    pub name: String,
    /// Longest prompt of the class; `u32::MAX` without bound.
    pub max_prompt_tokens: u32,
}

impl Validate for GpuPool {
    type Valid = ValidGpuPool;

    fn resolve(&self, problems: &mut Problems) -> ValidGpuPool {
        let (name, namespace, generation) = identity(self);
        let spec = &self.spec;
        ValidGpuPool {
            name,
            namespace,
            generation,
            accelerator: accelerator(&spec.accelerator),
            node_selector: spec.accelerator.node_selector.clone().unwrap_or_default(),
            min_replicas: unsigned(spec.replicas.min),
            max_surge: spec.replicas.max_surge.map(unsigned),
            max_replicas: unsigned(spec.replicas.max),
            scaling: scaling(&spec.scaling.clone().unwrap_or_default(), problems),
            sharing: spec.sharing.unwrap_or(Sharing::Dedicated),
            max_versions: unsigned(spec.max_versions.unwrap_or(MAX_VERSIONS)),
            engine: engine(
                &spec.engine.clone().unwrap_or_default(),
                spec.accelerator.type_,
                problems,
            ),
            queue: queue(&spec.queue.clone().unwrap_or_default(), problems),
            prompt_classes: prompt_classes(spec.prompt_classes.as_deref().unwrap_or_default()),
            fetch: fetch(&spec.fetch.clone().unwrap_or_default(), problems),
            region: spec.region.clone(),
            pod_template: spec.pod_template.clone(),
        }
    }
}

fn accelerator(given: &raw::Accelerator) -> Accelerator {
    let text = |text: &Option<String>| text.clone().expect("a schema rule demands it");
    match given.type_ {
        AcceleratorType::Cpu => Accelerator::Cpu,
        AcceleratorType::Gpu => Accelerator::Gpu {
            resource_name: text(&given.resource_name),
            count: unsigned(given.count.unwrap_or(1)),
        },
        AcceleratorType::Claim => Accelerator::Claim {
            template: text(&given.claim_template),
        },
    }
}

fn scaling(given: &Scaling, problems: &mut Problems) -> AutoscaleTargets {
    let queue_ms = unsigned(given.target_queue_ms.unwrap_or(200));
    AutoscaleTargets {
        kv_occupancy_percent: unsigned(given.target_kv_occupancy_percent.unwrap_or(80)),
        queue: Duration::from_millis(u64::from(queue_ms)),
        tokens_per_second: given.target_tokens_per_second.map(unsigned),
        scale_down_stabilization: problems.duration(
            "spec.scaling.scaleDownStabilization",
            given.scale_down_stabilization.as_ref(),
            Duration::from_mins(5),
        ),
    }
}

/// Versions that a worker of a shared pool holds where nothing is said: two for each of two models.
const MAX_VERSIONS: i32 = 4;
/// Below this no model fits even one block of a short context.
const LEAST_KV_BYTES: u64 = 1 << 20;

fn engine(given: &Engine, accelerator: AcceleratorType, problems: &mut Problems) -> EngineLimits {
    // The worker's own defaults, told so that everybody sees the same.
    let (batch_tokens, running, kv_bytes) = match accelerator {
        AcceleratorType::Cpu => (2048, 64, Some(1 << 30)),
        AcceleratorType::Gpu | AcceleratorType::Claim => (8192, 256, None),
    };
    let kv_bytes = match &given.kv_memory {
        None => kv_bytes,
        memory => Some(problems.bytes("spec.engine.kvMemory", memory.as_ref(), LEAST_KV_BYTES)),
    };
    if let Some(bytes) = kv_bytes.filter(|&bytes| bytes < LEAST_KV_BYTES) {
        problems.push(
            "spec.engine.kvMemory",
            format!("is {bytes} bytes, must be at least 1Mi"),
        );
    }
    EngineLimits {
        max_batch_tokens: given.max_batch_tokens.map_or(batch_tokens, unsigned),
        max_running: given.max_running.map_or(running, unsigned),
        kv_bytes,
        block_tokens: unsigned(given.block_tokens.unwrap_or(16)),
        kv_dtype: given.kv_dtype.unwrap_or(KvDtype::Bf16),
        weights: given.weights.unwrap_or(WeightFormat::Stored),
        draft_tokens: given.draft_tokens.map(unsigned),
    }
}

fn fetch(given: &Fetch, problems: &mut Problems) -> FetchLimits {
    let mut above_zero = |path: &str, text: Option<&QuantityText>| {
        let bytes = text.map(|text| problems.bytes(path, Some(text), 1))?;
        if bytes == 0 {
            problems.push(
                path,
                "must be above 0: nothing would ever come; leave it out for no limit",
            );
        }
        Some(bytes)
    };
    FetchLimits {
        cache_claim: given.cache_claim.clone(),
        cache_bytes: above_zero("spec.fetch.cacheSize", given.cache_size.as_ref()),
        bytes_per_second: above_zero("spec.fetch.bytesPerSecond", given.bytes_per_second.as_ref()),
        parallel: given.parallel.map(unsigned),
    }
}

fn queue(given: &Queue, problems: &mut Problems) -> QueueBounds {
    let whole = QueueBound {
        max_depth: unsigned(given.max_depth.unwrap_or(256)),
        max_wait: problems.period(
            "spec.queue.maxWait",
            given.max_wait.as_ref(),
            Duration::from_secs(10),
        ),
    };
    let mut bound = |priority: Priority| {
        let own = given.priorities.iter().flatten().enumerate();
        let own = own.into_iter().find(|(_, own)| own.priority == priority);
        own.map_or(whole, |(index, own)| QueueBound {
            max_depth: own.max_depth.map_or(whole.max_depth, unsigned),
            max_wait: problems.period(
                &format!("spec.queue.priorities[{index}].maxWait"),
                own.max_wait.as_ref(),
                whole.max_wait,
            ),
        })
    };
    QueueBounds {
        interactive: bound(Priority::Interactive),
        standard: bound(Priority::Standard),
        batch: bound(Priority::Batch),
    }
}

/// A pool without classes takes every prompt in one; one whose last class has a bound takes nothing longer.
fn prompt_classes(given: &[raw::PromptClass]) -> Vec<PromptClass> {
    if given.is_empty() {
        return vec![PromptClass {
            name: "all".to_owned(),
            max_prompt_tokens: u32::MAX,
        }];
    }
    let class = |class: &raw::PromptClass| PromptClass {
        name: class.name.clone(),
        max_prompt_tokens: class.max_prompt_tokens.map_or(u32::MAX, unsigned),
    };
    given.iter().map(class).collect()
}
