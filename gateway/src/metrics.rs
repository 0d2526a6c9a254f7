//! What the gateway counts. Labels come from bounded sets: codes, statuses, and names of objects up to a bound; never from a client's text.
//! docs/metrics.md has every name.

mod live;
mod models;
mod semantic;

use std::ops::Range;
use std::time::SystemTime;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;
use weir_protocol::error::ErrorCode;
use weir_run::RunStatus;
use weir_telemetry::{Cap, Label, Metrics as Registry};

use crate::hub::Frame;
use crate::link::Writer;

pub(crate) use live::LiveCollector;
pub(crate) use models::Meters;

use models::{Models, exemplar};

const LATENCY_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Tenants that have series of their own; as many as a database bears for each of a dozen gateways.
const MOST_TENANTS: usize = 1_000;

pub(crate) struct Metrics {
    requests: Family<Label, Counter>,
    refusals: Family<Label, Counter>,
    pub(crate) open_streams: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) commit_seconds: Histogram,
    pub(crate) admission_seconds: Histogram,
    events: Counter,
    tls_reloads: Family<Label, Counter>,
    identity_life: [Gauge; 2],
    policy_decisions: Family<Label, Counter>,
    mirrored_first_token_seconds: Histogram,
    tenants: Cap,
    models: Models,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let seconds = |name, help| registry.histogram(name, help, LATENCY_S);
        Self {
            requests: registry.counters("weir_gateway_requests", "HTTP requests by route and code"),
            refusals: registry.counters(
                "weir_gateway_refusals",
                "Requests of tenants that were refused, by code",
            ),
            open_streams: registry.gauge("weir_gateway_open_streams", "Event streams being read"),
            connections: registry.gauge("weir_gateway_connections", "Open client connections"),
            commit_seconds: seconds(
                "weir_gateway_event_commit_seconds",
                "Time to make a batch of events durable",
            ),
            admission_seconds: seconds(
                "weir_gateway_admission_seconds",
                "From the parsed request to its durable acceptance",
            ),
            events: registry.counter("weir_gateway_events", "Durable events"),
            tls_reloads: registry.counters(
                "weir_gateway_tls_reloads",
                "New content of the certificate's files by what became of it",
            ),
            identity_life: [
                registry.gauge(
                    "weir_gateway_identity_begin_seconds",
                    "From when workers and the operator take this gateway's certificate, in seconds since 1970",
                ),
                registry.gauge(
                    "weir_gateway_identity_end_seconds",
                    "Until when they take it; 0 where there is none",
                ),
            ],
            policy_decisions: registry.counters(
                "weir_gateway_policy_decisions",
                "Decisions of policies by policy and action",
            ),
            mirrored_first_token_seconds: seconds(
                "weir_gateway_mirrored_time_to_first_token_seconds",
                "From a mirrored run's dispatch to its first token",
            ),
            tenants: Cap::new(MOST_TENANTS),
            models: Models::new(registry),
        }
    }

    /// Shows what runs are like under vLLM's names too, where nothing else on this machine does.
    pub(crate) fn show_as_vllm(&self, registry: &Registry) {
        self.models.show_as_vllm(registry);
    }

    pub(crate) fn request(&self, route: &'static str, code: u16) {
        self.requests
            .get_or_create(&vec![
                ("route", route.to_owned()),
                ("code", code.to_string()),
            ])
            .inc();
    }

    /// A tenant's request was refused; codes are the contract's own.
    pub(crate) fn refused(&self, tenant: &str, code: ErrorCode) {
        let Ok(serde_json::Value::String(code)) = serde_json::to_value(code) else {
            return;
        };
        let tenant = self.tenants.of(tenant).to_owned();
        let label = vec![("tenant", tenant), ("code", code)];
        self.refusals.get_or_create(&label).inc();
    }

    pub(crate) fn tls_reload(&self, outcome: &'static str) {
        let label = vec![("outcome", outcome.to_owned())];
        self.tls_reloads.get_or_create(&label).inc();
    }

    pub(crate) fn identity(&self, life: &Range<SystemTime>) {
        for (gauge, time) in self.identity_life.iter().zip([life.start, life.end]) {
            let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
            let seconds = since_1970.map_or(0, |since| since.as_secs());
            gauge.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
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

    /// A run's end is durable.
    pub(crate) fn ended(&self, writer: &Writer, status: RunStatus) {
        let tenant = self.tenants.of(&writer.tenant);
        let meters = self.models.of(&writer.model, writer.version);
        self.models.settled(tenant, writer, status);
        meters.ended(writer, status);
    }

    /// Events of a run became durable.
    pub(crate) fn saw(&self, writer: &mut Writer, last: &mut Option<Instant>, frames: &[Frame]) {
        self.events.inc_by(frames.len() as u64);
        let meters = writer
            .meters
            .get_or_insert_with(|| self.models.of(&writer.model, writer.version));
        if let Some(trace) = &mut writer.trace {
            trace.saw(frames);
        }
        let exemplar = || exemplar(writer.live.id, writer.trace.as_deref());
        meters.saw((writer.created_at_ms, &exemplar), last, frames);
    }
}
