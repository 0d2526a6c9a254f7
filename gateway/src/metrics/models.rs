//! What runs of each version are like.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;
use weir_run::{RunId, RunStatus};
use weir_telemetry::{Exemplified, Histograms, Label, Metrics as Registry};

use super::LATENCY_S;
use super::semantic::{Semantic, SemanticMeters, Vllm, VllmMeters};
use crate::clock::now_ms;
use crate::hub::Frame;
use crate::link::Writer;
use crate::trace::RunTrace;

/// Versions that have series of their own. Old ones leave only with the process.
const MOST_VERSIONS: usize = 500;

const WHOLE_S: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0,
];

/// Series by model and version.
pub(super) struct Models {
    known: RwLock<HashMap<(String, u32), Arc<Meters>>>,
    runs: Family<Label, Counter>,
    tokens: Family<Label, Counter>,
    cost: Family<Label, Counter>,
    queue: Histograms,
    first_token: Exemplified,
    inter_token: Histograms,
    whole: Exemplified,
    semantic: Semantic,
    vllm: Vllm,
}

/// The series of one version.
pub(crate) struct Meters {
    queue: Histogram,
    first_token: HistogramWithExemplars<Label>,
    inter_token: Histogram,
    whole: HistogramWithExemplars<Label>,
    semantic: SemanticMeters,
    vllm: VllmMeters,
}

impl Models {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            known: RwLock::default(),
            runs: registry.counters("weir_gateway_runs", "Runs by terminal status"),
            tokens: registry.counters(
                "weir_gateway_tokens",
                "Tokens billed: prompt (cached ones included), cached, output",
            ),
            cost: registry.counters(
                "weir_gateway_cost_micros",
                "Cost billed, in millionths of the unit of prices",
            ),
            queue: registry.histograms(
                "weir_gateway_queue_seconds",
                "From acceptance to the worker's first step",
                LATENCY_S,
            ),
            first_token: registry.exemplified(
                "weir_gateway_time_to_first_token_seconds",
                "From acceptance to the first durable token",
                LATENCY_S,
            ),
            inter_token: registry.histograms(
                "weir_gateway_inter_token_seconds",
                "Between two durable tokens of a run",
                LATENCY_S,
            ),
            whole: registry.exemplified(
                "weir_gateway_run_seconds",
                "From acceptance to the durable end of a run",
                WHOLE_S,
            ),
            semantic: Semantic::new(registry),
            vllm: Vllm::new(),
        }
    }

    pub(super) fn show_as_vllm(&self, registry: &Registry) {
        self.vllm.register(registry);
    }

    /// The series of a version; those of all others where there are too many.
    pub(super) fn of(&self, model: &str, version: u32) -> Arc<Meters> {
        let key = (model.to_owned(), version);
        if let Some(known) = self.known.read().get(&key) {
            return Arc::clone(known);
        }
        let mut known = self.known.write();
        let is_full = known.len() >= MOST_VERSIONS;
        let key = if is_full && !known.contains_key(&key) {
            (weir_telemetry::OTHER.to_owned(), 0)
        } else {
            key
        };
        let made = known.entry(key.clone());
        Arc::clone(made.or_insert_with(|| Arc::new(self.meters(&key))))
    }

    fn meters(&self, (model, version): &(String, u32)) -> Meters {
        let labels = vec![("model", model.clone()), ("version", version.to_string())];
        Meters {
            queue: self.queue.get_or_create(&labels).clone(),
            first_token: self.first_token.get_or_create(&labels).clone(),
            inter_token: self.inter_token.get_or_create(&labels).clone(),
            whole: self.whole.get_or_create(&labels).clone(),
            semantic: self.semantic.of(model),
            vllm: self.vllm.of(model),
        }
    }

    /// What is counted by tenant, once a run has ended.
    pub(super) fn settled(&self, tenant: &str, writer: &Writer, status: RunStatus) {
        let is_known = |known: &HashMap<(String, u32), _>| {
            known.contains_key(&(writer.model.clone(), writer.version))
        };
        let (model, version) = if is_known(&self.known.read()) {
            (writer.model.clone(), writer.version)
        } else {
            (weir_telemetry::OTHER.to_owned(), 0)
        };
        let labels = |more: Option<(&'static str, &str)>| {
            let mut labels = vec![
                ("tenant", tenant.to_owned()),
                ("model", model.clone()),
                ("version", version.to_string()),
            ];
            labels.extend(more.map(|(name, value)| (name, value.to_owned())));
            labels
        };
        let runs = labels(Some(("status", status.as_str())));
        self.runs.get_or_create(&runs).inc();
        let usage = writer.usage();
        for (kind, tokens) in [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("output", usage.output_tokens),
        ] {
            let labels = labels(Some(("type", kind)));
            self.tokens.get_or_create(&labels).inc_by(tokens);
        }
        self.cost
            .get_or_create(&labels(None))
            .inc_by(usage.cost_micros);
    }
}

/// Leads from a bucket to one run: by its trace, whose id is the run's own where the client brought none.
pub(super) fn exemplar(run: RunId, trace: Option<&RunTrace>) -> Label {
    let mut label = vec![("run_id", run.to_string())];
    label.extend(trace.map(|trace| ("trace_id", trace.id())));
    label
}

impl Meters {
    /// Events of a run became durable.
    pub(super) fn saw(
        &self,
        (created_at_ms, exemplar): (u64, &dyn Fn() -> Label),
        last: &mut Option<Instant>,
        frames: &[Frame],
    ) {
        let since_accepted = || now_ms().saturating_sub(created_at_ms) as f64 / 1000.0;
        if frames.iter().any(|frame| frame.kind == "started") {
            let waited = since_accepted();
            self.queue.observe(waited);
            self.vllm.queue.observe(waited);
        }
        let deltas = frames.iter().filter(|frame| frame.kind == "delta").count();
        if deltas == 0 {
            return;
        }
        let now = Instant::now();
        match last.replace(now) {
            None => {
                let first = since_accepted();
                self.first_token.observe(first, Some(exemplar()), None);
                self.semantic.first_token.observe(first);
                self.vllm.first_token.observe(first);
            }
            // Deltas that became visible together share the time since those before them.
            Some(before) => {
                let each = (now - before).as_secs_f64() / deltas as f64;
                for _ in 0..deltas {
                    self.inter_token.observe(each);
                    self.vllm.inter_token.observe(each);
                }
            }
        }
    }

    /// A run's end is durable.
    pub(super) fn ended(&self, writer: &Writer, status: RunStatus) {
        let whole = now_ms().saturating_sub(writer.created_at_ms) as f64 / 1000.0;
        self.whole.observe(
            whole,
            Some(exemplar(writer.live.id, writer.trace.as_deref())),
            None,
        );
        let usage = writer.usage();
        self.semantic.ended(whole, &usage, status);
        self.vllm.ended(whole, &usage, status);
    }
}
