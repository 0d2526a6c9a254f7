//! The same runs under others' names: OpenTelemetry's conventions for generative models, and vLLM's.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use weir_run::{RunStatus, Usage};
use weir_telemetry::{Bounds, Histograms, Label, Metrics as Registry, vllm};

/// Bounds that the conventions advise.
const DURATION_S: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const FIRST_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
const TOKEN_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
];
const TOKENS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
];

/// Histograms by OpenTelemetry's conventions.
pub(super) struct Semantic {
    duration: Histograms,
    first_token: Histograms,
    per_token: Histograms,
    usage: Histograms,
}

pub(super) struct SemanticMeters {
    duration: Histograms,
    labels: Label,
    pub(super) first_token: Histogram,
    per_token: Histogram,
    input: Histogram,
    output: Histogram,
}

impl Semantic {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            duration: registry.histograms(
                "gen_ai_server_request_duration_seconds",
                "From acceptance to the durable end of a run",
                DURATION_S,
            ),
            first_token: registry.histograms(
                "gen_ai_server_time_to_first_token_seconds",
                "From acceptance to the first durable token",
                FIRST_S,
            ),
            per_token: registry.histograms(
                "gen_ai_server_time_per_output_token_seconds",
                "Mean time of a run's output tokens after acceptance",
                TOKEN_S,
            ),
            usage: registry.histograms(
                "gen_ai_client_token_usage",
                "Tokens of a run, by type: input or output",
                TOKENS,
            ),
        }
    }

    pub(super) fn of(&self, model: &str) -> SemanticMeters {
        // Every call of the contract comes to a generation; which of its dialects it came in is a matter of the request counters.
        let labels = vec![
            ("gen_ai_operation_name", "generate_content".to_owned()),
            ("gen_ai_provider_name", "weir".to_owned()),
            ("gen_ai_request_model", model.to_owned()),
        ];
        let usage = |kind: &str| {
            let mut labels = labels.clone();
            labels.push(("gen_ai_token_type", kind.to_owned()));
            self.usage.get_or_create(&labels).clone()
        };
        SemanticMeters {
            duration: self.duration.clone(),
            first_token: self.first_token.get_or_create(&labels).clone(),
            per_token: self.per_token.get_or_create(&labels).clone(),
            input: usage("input"),
            output: usage("output"),
            labels,
        }
    }
}

impl SemanticMeters {
    pub(super) fn ended(&self, whole_s: f64, usage: &Usage, status: RunStatus) {
        let mut labels = self.labels.clone();
        if status != RunStatus::Completed {
            labels.push(("error_type", status.as_str().to_owned()));
        }
        self.duration.get_or_create(&labels).observe(whole_s);
        self.input.observe(usage.prompt_tokens as f64);
        self.output.observe(usage.output_tokens as f64);
        if usage.output_tokens > 0 {
            self.per_token.observe(whole_s / usage.output_tokens as f64);
        }
    }
}

/// Histograms by vLLM's names. Kept in any case, and shown only where no worker is scraped that shows its own.
pub(super) struct Vllm {
    kinds: [(&'static vllm::Kind, Histograms); 6],
    success: Family<Label, Counter>,
}

pub(super) struct VllmMeters {
    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) queue: Histogram,
    whole: Histogram,
    prompt: Histogram,
    generation: Histogram,
    ends: [Counter; 3],
}

impl Vllm {
    pub(super) fn new() -> Self {
        let kinds = [
            &vllm::FIRST_TOKEN,
            &vllm::INTER_TOKEN,
            &vllm::QUEUE,
            &vllm::WHOLE_RUN,
            &vllm::PROMPT_TOKENS,
            &vllm::GENERATION_TOKENS,
        ];
        Self {
            kinds: kinds.map(|kind| (kind, Family::new_with_constructor(Bounds(kind.bounds)))),
            success: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &Registry) {
        registry.with(|registry| {
            for (kind, family) in &self.kinds {
                registry.register(kind.name, kind.help, family.clone());
            }
            // The older name shows the same family.
            let (older, between) = (&vllm::OUTPUT_TOKEN, &self.kinds[1].1);
            registry.register(older.name, older.help, between.clone());
            registry.register(
                "vllm:request_success",
                "Runs that ended, by how",
                self.success.clone(),
            );
        });
    }

    pub(super) fn of(&self, model: &str) -> VllmMeters {
        let labels = vec![("model_name", model.to_owned())];
        let [first_token, inter_token, queue, whole, prompt, generation] = self
            .kinds
            .each_ref()
            .map(|(_, family)| family.get_or_create(&labels).clone());
        let ends = ["stop", "abort", "error"].map(|reason| {
            let mut labels = labels.clone();
            labels.push(("finished_reason", reason.to_owned()));
            self.success.get_or_create(&labels).clone()
        });
        VllmMeters {
            first_token,
            inter_token,
            queue,
            whole,
            prompt,
            generation,
            ends,
        }
    }
}

impl VllmMeters {
    fn ended_as(&self, status: RunStatus) -> &Counter {
        match status {
            RunStatus::Completed => &self.ends[0],
            RunStatus::Failed => &self.ends[2],
            _ => &self.ends[1],
        }
    }

    pub(super) fn ended(&self, whole_s: f64, usage: &Usage, status: RunStatus) {
        self.ended_as(status).inc();
        self.whole.observe(whole_s);
        self.prompt.observe(usage.prompt_tokens as f64);
        self.generation.observe(usage.output_tokens as f64);
    }
}
