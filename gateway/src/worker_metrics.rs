//! What the workers say of themselves, shown where the gateway's own figures are.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use weir_protocol::worker::WorkerStatus;

use crate::core::Core;

/// Reads the last status of every worker when someone asks. Workers are few and named by the operator: a bounded label.
pub(crate) struct WorkerCollector(pub(crate) Weak<Core>);

impl fmt::Debug for WorkerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerCollector")
    }
}

type Read = fn(&WorkerStatus) -> u64;

const COUNTERS: &[(&str, &str, Read)] = &[
    ("weir_worker_steps", "Engine steps", |s| s.steps),
    ("weir_worker_prompt_tokens", "Prompt tokens taken in", |s| {
        s.prompt_tokens
    }),
    (
        "weir_worker_cached_tokens",
        "Prompt tokens whose KV was reused",
        |s| s.cached_tokens,
    ),
    ("weir_worker_output_tokens", "Tokens sampled", |s| {
        s.output_tokens
    }),
    (
        "weir_worker_preemptions",
        "Runs that gave their memory up for others",
        |s| s.preemptions,
    ),
];

const GAUGES: &[(&str, &str, Read)] = &[
    ("weir_worker_running", "Runs being computed", |s| {
        u64::from(s.running)
    }),
    ("weir_worker_waiting", "Runs that wait in the worker", |s| {
        u64::from(s.waiting)
    }),
    ("weir_worker_blocks", "KV blocks", |s| {
        u64::from(s.blocks_total)
    }),
    (
        "weir_worker_blocks_free",
        "KV blocks never used or evicted",
        |s| u64::from(s.blocks_free),
    ),
    (
        "weir_worker_blocks_cached",
        "KV blocks that can be evicted",
        |s| u64::from(s.blocks_cached),
    ),
    (
        "weir_worker_kv_tokens",
        "KV positions held by running runs",
        |s| s.kv_tokens,
    ),
    (
        "weir_worker_step_microseconds",
        "Recent duration of an engine step",
        |s| s.step_us_ewma,
    ),
];

impl Collector for WorkerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(core) = self.0.upgrade() else {
            return Ok(());
        };
        let workers: Vec<_> = core
            .links
            .handles()
            .into_iter()
            .map(|link| {
                let labels = [
                    ("pool", link.endpoint.pool.clone()),
                    ("worker", link.endpoint.name.clone()),
                ];
                (labels, link.facts.lock().status.clone())
            })
            .collect();
        for (name, help, read) in COUNTERS {
            let counter = ConstCounter::new(0_u64);
            let mut family = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            for (labels, status) in &workers {
                ConstCounter::new(read(status)).encode(family.encode_family(labels)?)?;
            }
        }
        for (name, help, read) in GAUGES {
            let gauge = ConstGauge::new(0_i64);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (labels, status) in &workers {
                let value = i64::try_from(read(status)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}
