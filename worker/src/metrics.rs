//! The engine's snapshot as metrics: `weir_*`, and vLLM's names beside them, so that dashboards and autoscalers made for vLLM work.

mod labels;
mod table;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use weir_model::backend::DeviceName;
use weir_telemetry::vllm;

use crate::doors::Doors;
use crate::engine::snapshot::{FINISH_NAMES, Snapshot};
use table::{Table, Value};

pub(crate) use labels::Labels;

/// What does not change of an engine while it lives.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) labels: Labels,
    /// Positions of a KV block.
    pub(crate) block_tokens: u32,
    pub(crate) device: DeviceName,
}

/// Reads the newest snapshot of each engine at each scrape; the engines' threads do nothing for it.
#[derive(Debug)]
pub(crate) struct SnapshotCollector(pub(crate) Doors);

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let engines = self.0.all();
        let snapshots: Vec<Snapshot> = engines
            .iter()
            .map(|door| door.snapshot.borrow().clone())
            .collect();
        let mut table = Table::default();
        for (door, now) in engines.iter().zip(&snapshots) {
            let mut family = Family {
                table: &mut table,
                labels: &door.about.labels,
            };
            family.vllm(now);
            family.vllm_ends(now);
            family.vllm_cache(now, door.about.block_tokens);
            family.device(&door.about.device);
            family.weir_gauges(now);
            family.weir_counters(now);
            family.finished(now);
        }
        table.encode(&mut encoder)
    }
}

struct Family<'a> {
    table: &'a mut Table,
    labels: &'a Labels,
}

impl Family<'_> {
    fn vllm(&mut self, now: &Snapshot) {
        let used = now
            .blocks_total
            .saturating_sub(now.blocks_free)
            .saturating_sub(now.blocks_cached);
        let share = f64::from(used) / f64::from(now.blocks_total.max(1));
        let labels = [
            ("model_name", self.labels.model.as_str()),
            ("engine", self.labels.engine.as_str()),
        ];
        let gauges = [
            (
                "vllm:num_requests_running",
                "Sequences with a slot",
                f64::from(now.running),
            ),
            (
                "vllm:num_requests_waiting",
                "Sequences without a slot",
                f64::from(now.waiting),
            ),
            (
                "vllm:kv_cache_usage_perc",
                "Share of KV blocks in use, 1 is all",
                share,
            ),
        ];
        for (name, help, value) in gauges {
            self.table.put((name, help), &labels, Value::Share(value));
        }
        let counters = [
            (
                "vllm:prompt_tokens",
                "Prompt tokens of admitted sequences",
                now.prompt_tokens,
            ),
            (
                "vllm:generation_tokens",
                "Tokens sampled",
                now.output_tokens,
            ),
            (
                "vllm:spec_decode_num_draft_tokens",
                "Tokens guessed and computed ahead",
                now.drafted_tokens,
            ),
            (
                "vllm:spec_decode_num_accepted_tokens",
                "Guessed tokens that came true",
                now.accepted_tokens,
            ),
            (
                "vllm:num_preemptions",
                "Sequences that lost their slot to others",
                now.preemptions,
            ),
            (
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache",
                now.prompt_tokens,
            ),
            (
                "vllm:prefix_cache_hits",
                "Prompt tokens found in the prefix cache",
                now.cached_tokens,
            ),
        ];
        for (name, help, value) in counters {
            self.table.put((name, help), &labels, Value::Counter(value));
        }
    }

    fn vllm_ends(&mut self, now: &Snapshot) {
        for (reason, count) in vllm::FINISHED_REASONS.iter().zip(now.finished) {
            let labels = [
                ("model_name", self.labels.model.as_str()),
                ("engine", self.labels.engine.as_str()),
                ("finished_reason", reason),
            ];
            let what = ("vllm:request_success", "Choices that ended, by how");
            self.table.put(what, &labels, Value::Counter(count));
        }
    }

    /// Says how large the cache is, in labels, as endpoint pickers read it.
    fn vllm_cache(&mut self, now: &Snapshot, block_tokens: u32) {
        let (size, blocks) = (block_tokens.to_string(), now.blocks_total.to_string());
        let labels = [
            ("model_name", self.labels.model.as_str()),
            ("engine", self.labels.engine.as_str()),
            ("block_size", &size),
            ("num_gpu_blocks", &blocks),
        ];
        let help = "How large the KV cache is, in labels";
        let name = "vllm:cache_config_info";
        self.table.put((name, help), &labels, Value::Share(1.0));
    }

    fn device(&mut self, device: &DeviceName) {
        let labels = [
            ("model", self.labels.model.as_str()),
            ("version", self.labels.version.as_str()),
            ("kind", device.kind),
            ("name", &device.name),
        ];
        let help = "What the model runs on, in labels";
        let name = "weir_engine_device_info";
        self.table.put((name, help), &labels, Value::Share(1.0));
    }

    fn weir_gauges(&mut self, now: &Snapshot) {
        let gauges = [
            ("weir_kv_blocks", "KV blocks", u64::from(now.blocks_total)),
            (
                "weir_kv_blocks_free",
                "KV blocks that hold nothing",
                u64::from(now.blocks_free),
            ),
            (
                "weir_kv_blocks_cached",
                "KV blocks of the prefix cache that can be taken",
                u64::from(now.blocks_cached),
            ),
            (
                "weir_kv_tokens",
                "Positions held by running sequences",
                now.kv_tokens,
            ),
            (
                "weir_prefill_tokens_waiting",
                "Prompt tokens not computed yet",
                now.prefill_tokens_waiting,
            ),
            (
                "weir_runs_live",
                "Runs that are not finished",
                now.runs_live,
            ),
            (
                "weir_runs_held",
                "Runs with rows that are not acknowledged, or not finished",
                now.runs_held,
            ),
            (
                "weir_window_bytes",
                "Memory of rows that are not acknowledged",
                now.window_bytes,
            ),
            (
                "weir_adapters",
                "Adapters that runs may name",
                now.models.len().saturating_sub(1) as u64,
            ),
            ("weir_sessions", "Open sessions of gateways", now.sessions),
            (
                "weir_sessions_stalled",
                "Sessions whose gateway does not read",
                now.sessions_stalled,
            ),
            (
                "weir_engine_draining",
                "Whether new runs are refused",
                u64::from(now.draining),
            ),
        ];
        for (name, help, value) in gauges {
            self.put_versioned((name, help), Value::Gauge(value));
        }
    }

    fn weir_counters(&mut self, now: &Snapshot) {
        let counters = [
            ("weir_engine_steps", "Engine steps", now.steps),
            (
                "weir_prompt_tokens",
                "Prompt tokens of admitted sequences",
                now.prompt_tokens,
            ),
            (
                "weir_cached_tokens",
                "Prompt tokens whose KV was reused",
                now.cached_tokens,
            ),
            ("weir_output_tokens", "Tokens sampled", now.output_tokens),
            (
                "weir_drafted_tokens",
                "Tokens guessed and computed ahead",
                now.drafted_tokens,
            ),
            (
                "weir_accepted_tokens",
                "Guessed tokens that came true",
                now.accepted_tokens,
            ),
            (
                "weir_preemptions",
                "Sequences that lost their slot to others",
                now.preemptions,
            ),
        ];
        for (name, help, value) in counters {
            self.put_versioned((name, help), Value::Counter(value));
        }
    }

    fn finished(&mut self, now: &Snapshot) {
        for (reason, count) in FINISH_NAMES.iter().zip(now.finished) {
            let labels = [
                ("model", self.labels.model.as_str()),
                ("version", self.labels.version.as_str()),
                ("reason", reason),
            ];
            let what = ("weir_choices_finished", "Choices by how they ended");
            self.table.put(what, &labels, Value::Counter(count));
        }
    }

    fn put_versioned(&mut self, what: (&'static str, &'static str), value: Value) {
        let labels = [
            ("model", self.labels.model.as_str()),
            ("version", self.labels.version.as_str()),
        ];
        self.table.put(what, &labels, value);
    }
}

#[cfg(test)]
mod tests {
    use weir_telemetry::Metrics;

    use super::*;
    use crate::doors::Door;

    #[test]
    fn both_vocabularies_show_the_same_engine() {
        let snapshot = Snapshot {
            steps: 9,
            running: 3,
            waiting: 2,
            blocks_total: 100,
            blocks_free: 40,
            blocks_cached: 10,
            output_tokens: 77,
            finished: [5, 4, 3, 2],
            ..Snapshot::default()
        };
        let metrics = Metrics::new();
        let doors = Doors::default();
        for (engine, model) in ["tiny", "small"].into_iter().enumerate() {
            let about = About {
                labels: Labels {
                    model: model.to_owned(),
                    version: "2".to_owned(),
                    engine: engine.to_string(),
                },
                block_tokens: 16,
                device: DeviceName {
                    kind: "cpu",
                    name: "avx2".to_owned(),
                },
            };
            doors.open(model.to_owned(), Door::to_nobody(snapshot.clone(), about));
        }
        let collector = SnapshotCollector(doors);
        metrics.with(|registry| registry.register_collector(Box::new(collector)));
        let shown = metrics.prometheus_text();
        for want in [
            "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 3.0\n",
            "vllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} 2.0\n",
            "vllm:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} 0.5\n",
            "vllm:generation_tokens_total{model_name=\"tiny\",engine=\"0\"} 77\n",
            "vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"abort\"} 3\n",
            "block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n",
            "weir_output_tokens_total{model=\"tiny\",version=\"2\"} 77\n",
            "weir_engine_device_info{model=\"tiny\",version=\"2\",kind=\"cpu\",name=\"avx2\"} 1.0\n",
            "weir_engine_steps_total{model=\"tiny\",version=\"2\"} 9\n",
            "weir_choices_finished_total{model=\"tiny\",version=\"2\",reason=\"cancelled\"} 3\n",
            "vllm:num_requests_running{model_name=\"small\",engine=\"1\"} 3.0\n",
            "weir_output_tokens_total{model=\"small\",version=\"2\"} 77\n",
        ] {
            assert!(shown.contains(want), "no {want:?} in\n{shown}");
        }
        let heading = "# TYPE weir_output_tokens_total counter\n";
        assert_eq!(shown.matches(heading).count(), 1, "one heading:\n{shown}");
    }
}
