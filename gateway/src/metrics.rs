//! What the gateway counts. Labels come from bounded sets: codes, statuses, and models of the snapshot; never from a client's text.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;
use weir_run::RunStatus;
use weir_telemetry::{Label, Metrics as Registry};

use crate::clock::now_ms;
use crate::hub::Frame;

const LATENCY_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

pub(crate) struct Metrics {
    requests: Family<Label, Counter>,
    runs: Family<Label, Counter>,
    pub(crate) open_streams: Gauge,
    pub(crate) connections: Gauge,
    queue_seconds: Histogram,
    first_token_seconds: Histogram,
    inter_token_seconds: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) admission_seconds: Histogram,
    output_tokens: Counter,
    events: Counter,
    tls_reloads: Family<Label, Counter>,
    policy_decisions: Family<Label, Counter>,
    mirrored_first_token_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let seconds = |name, help| registry.histogram(name, help, LATENCY_S);
        Self {
            requests: registry.counters("weir_gateway_requests", "HTTP requests by route and code"),
            runs: registry.counters("weir_gateway_runs", "Runs by terminal status"),
            open_streams: registry.gauge("weir_gateway_open_streams", "Event streams being read"),
            connections: registry.gauge("weir_gateway_connections", "Open client connections"),
            queue_seconds: seconds(
                "weir_gateway_queue_seconds",
                "From acceptance to the worker's first step",
            ),
            first_token_seconds: seconds(
                "weir_gateway_time_to_first_token_seconds",
                "From acceptance to the first durable token",
            ),
            inter_token_seconds: seconds(
                "weir_gateway_inter_token_seconds",
                "Between two durable tokens of a run",
            ),
            commit_seconds: seconds(
                "weir_gateway_event_commit_seconds",
                "Time to make a batch of events durable",
            ),
            admission_seconds: seconds(
                "weir_gateway_admission_seconds",
                "From the parsed request to its durable acceptance",
            ),
            output_tokens: registry.counter("weir_gateway_output_tokens", "Output tokens billed"),
            events: registry.counter("weir_gateway_events", "Durable events"),
            tls_reloads: registry.counters(
                "weir_gateway_tls_reloads",
                "New content of the certificate's files by what became of it",
            ),
            policy_decisions: registry.counters(
                "weir_gateway_policy_decisions",
                "Decisions of policies by policy and action",
            ),
            mirrored_first_token_seconds: seconds(
                "weir_gateway_mirrored_time_to_first_token_seconds",
                "From a mirrored run's dispatch to its first token",
            ),
        }
    }

    pub(crate) fn request(&self, route: &'static str, code: u16) {
        self.requests
            .get_or_create(&vec![
                ("route", route.to_owned()),
                ("code", code.to_string()),
            ])
            .inc();
    }

    pub(crate) fn tls_reload(&self, outcome: &'static str) {
        let label = vec![("outcome", outcome.to_owned())];
        self.tls_reloads.get_or_create(&label).inc();
    }

    /// A policy's name comes from the settings, never from a client.
    pub(crate) fn policy(&self, verdict: &weir_run::Verdict) {
        let action = match verdict.action {
            weir_run::PolicyAction::Block => "block",
            weir_run::PolicyAction::Redact => "redact",
            weir_run::PolicyAction::Unchecked => "unchecked",
        };
        let label = vec![
            ("policy", verdict.policy.clone()),
            ("action", action.to_owned()),
        ];
        let counter = self.policy_decisions.get_or_create(&label);
        counter.inc_by(u64::from(verdict.count));
    }

    /// A version in the shadow answered.
    pub(crate) fn mirrored(&self, first_token: std::time::Duration) {
        let seconds = first_token.as_secs_f64();
        self.mirrored_first_token_seconds.observe(seconds);
    }

    pub(crate) fn ended(&self, status: RunStatus) {
        self.runs
            .get_or_create(&vec![("status", status.as_str().to_owned())])
            .inc();
    }

    /// Events became durable.
    pub(crate) fn saw(&self, created_at_ms: u64, last: &mut Option<Instant>, frames: &[Frame]) {
        self.events.inc_by(frames.len() as u64);
        let since_accepted = || now_ms().saturating_sub(created_at_ms) as f64 / 1000.0;
        if frames.iter().any(|frame| frame.kind == "started") {
            self.queue_seconds.observe(since_accepted());
        }
        let deltas = frames.iter().filter(|frame| frame.kind == "delta").count();
        if deltas == 0 {
            return;
        }
        let now = Instant::now();
        match last.replace(now) {
            None => self.first_token_seconds.observe(since_accepted()),
            // Deltas that became visible together share the time since those before them.
            Some(before) => {
                let each = (now - before).as_secs_f64() / deltas as f64;
                for _ in 0..deltas {
                    self.inter_token_seconds.observe(each);
                }
            }
        }
    }

    pub(crate) fn output_tokens(&self, tokens: u64) {
        self.output_tokens.inc_by(tokens);
    }
}
