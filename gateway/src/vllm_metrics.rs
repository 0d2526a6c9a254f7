//! The workers' figures under vLLM's names, for a machine where nobody scrapes the workers themselves.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use weir_protocol::worker::WorkerStatus;

use crate::core::Core;

/// Reads the last status of every worker when someone asks. `engine` is the worker's name.
pub(crate) struct VllmCollector(pub(crate) Weak<Core>);

impl fmt::Debug for VllmCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VllmCollector")
    }
}

type Read<T> = fn(&WorkerStatus) -> T;

const GAUGES: &[(&str, &str, Read<f64>)] = &[
    ("vllm:num_requests_running", "Sequences with a slot", |s| {
        f64::from(s.running)
    }),
    (
        "vllm:num_requests_waiting",
        "Sequences without a slot",
        |s| f64::from(s.waiting),
    ),
    (
        "vllm:kv_cache_usage_perc",
        "Share of KV blocks in use, 1 is all",
        |s| {
            let unused = s.blocks_free.saturating_add(s.blocks_cached);
            let used = s.blocks_total.saturating_sub(unused);
            f64::from(used) / f64::from(s.blocks_total.max(1))
        },
    ),
];

const COUNTERS: &[(&str, &str, Read<u64>)] = &[
    (
        "vllm:prompt_tokens",
        "Prompt tokens of admitted sequences",
        |s| s.prompt_tokens,
    ),
    ("vllm:generation_tokens", "Tokens sampled", |s| {
        s.output_tokens
    }),
    (
        "vllm:num_preemptions",
        "Sequences that lost their slot to others",
        |s| s.preemptions,
    ),
    (
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        |s| s.prompt_tokens,
    ),
    (
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the prefix cache",
        |s| s.cached_tokens,
    ),
];

impl Collector for VllmCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(core) = self.0.upgrade() else {
            return Ok(());
        };
        let directory = core.directory.load();
        let mut workers = Vec::new();
        for link in core.links.handles() {
            let facts = link.facts.lock().clone();
            let serves = |route: &&crate::snapshot::ModelRoute| {
                let has = |digest: &String| route.by_digest(digest).is_some();
                facts.digests.iter().any(has)
            };
            if let Some(route) = directory.models.values().find(serves) {
                let labels = [
                    ("model_name", route.name.clone()),
                    ("engine", link.endpoint.name.clone()),
                ];
                workers.push((labels, facts.status));
            }
        }
        for (name, help, read) in GAUGES {
            let kind = ConstGauge::new(0_f64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, status) in &workers {
                ConstGauge::new(read(status)).encode(family.encode_family(labels)?)?;
            }
        }
        for (name, help, read) in COUNTERS {
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, status) in &workers {
                ConstCounter::new(read(status)).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}
