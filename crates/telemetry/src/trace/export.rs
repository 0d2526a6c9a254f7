//! The way of spans to a collector: a bounded queue, batches, a few tries.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prost::Message as _;
use tokio::sync::mpsc;

use super::otlp::{
    ExportRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, WireSpan, pair,
};
use super::{Span, TraceId};
use crate::{Label, Metrics};

/// Spans that wait; more are dropped and counted. Some seconds of a busy gateway.
const QUEUE: usize = 8_192;
/// Spans of one request.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const WAIT: Duration = Duration::from_millis(500);
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Traces cannot be sent as the environment says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The address is none.
    #[error(
        "cannot send traces to \"{0}\": write http://HOST:PORT, the address of a collector on this machine or in this cluster"
    )]
    Endpoint(String),
    /// The share is none.
    #[error(
        "cannot read the share of traces \"{0}\" in OTEL_TRACES_SAMPLER_ARG: write a number from 0 to 1"
    )]
    Share(String),
}

/// Sends spans, or does nothing. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Sender>>);

#[derive(Debug)]
struct Sender {
    queue: mpsc::Sender<Span>,
    counts: Family<Label, Counter>,
    /// Of 2^64.
    share: u64,
}

impl Tracer {
    /// One that does nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// As OpenTelemetry's environment variables say: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` (whole) or `OTEL_EXPORTER_OTLP_ENDPOINT` (without
    /// its path), `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER_ARG`. Without an address it does nothing. Must be called inside a runtime.
    ///
    /// # Errors
    /// A variable makes no sense.
    pub fn from_env(service: &str, metrics: &Metrics) -> Result<Self, TraceError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let of_all = || {
            let base = variable("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            Some(format!("{}/v1/traces", base.trim_end_matches('/')))
        };
        let Some(endpoint) = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(of_all) else {
            return Ok(Self::off());
        };
        let share = match variable("OTEL_TRACES_SAMPLER_ARG") {
            None => 1.0,
            Some(text) => {
                let share = text
                    .parse()
                    .ok()
                    .filter(|share| (0.0..=1.0).contains(share));
                share.ok_or(TraceError::Share(text))?
            }
        };
        let service = variable("OTEL_SERVICE_NAME").unwrap_or_else(|| service.to_owned());
        Self::to(&endpoint, &service, share, metrics)
    }

    /// The same; what makes no sense is said in the log, and nothing is sent: traces are not worth an outage.
    pub fn from_env_or_off(service: &str, metrics: &Metrics) -> Self {
        Self::from_env(service, metrics).unwrap_or_else(|error| {
            tracing::error!(%error, "no traces are sent");
            Self::off()
        })
    }

    /// Sends `share` (0 to 1) of the traces to the address of an OTLP receiver over HTTP. Must be called inside a runtime.
    ///
    /// # Errors
    /// The address is none.
    pub fn to(
        endpoint: &str,
        service: &str,
        share: f64,
        metrics: &Metrics,
    ) -> Result<Self, TraceError> {
        let wrong = || TraceError::Endpoint(endpoint.to_owned());
        let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            return Err(wrong());
        }
        let counts = metrics.counters("weir_trace_spans", "Spans by what became of them");
        let (queue, spans) = mpsc::channel(QUEUE);
        let exporter = Exporter {
            uri,
            client: Client::builder(TokioExecutor::new()).build_http(),
            service: service.to_owned(),
            counts: counts.clone(),
        };
        tokio::spawn(exporter.run(spans));
        // Saturates at the largest: everything.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 1, and the cast saturates"
        )]
        let share = (share * u64::MAX as f64) as u64;
        Ok(Self(Some(Arc::new(Sender {
            queue,
            counts,
            share,
        }))))
    }

    /// Whether spans go anywhere.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a trace that nobody else began is sent: the same for everyone who knows its id.
    pub fn takes(&self, trace: &TraceId) -> bool {
        let Some(sender) = &self.0 else { return false };
        let last = u64::from_be_bytes(trace[8..].try_into().expect("8 of 16 bytes"));
        // The first bits of an id's last half may be fixed; all others are random.
        last.rotate_left(8) <= sender.share
    }

    /// Sends a span, unless too many wait.
    pub fn send(&self, span: Span) {
        if let Some(sender) = &self.0
            && sender.queue.try_send(span).is_err()
        {
            count(&sender.counts, "dropped", 1);
        }
    }
}

fn count(counts: &Family<Label, Counter>, outcome: &str, spans: usize) {
    let label = vec![("outcome", outcome.to_owned())];
    counts.get_or_create(&label).inc_by(spans as u64);
}

struct Exporter {
    uri: Uri,
    client: Client<HttpConnector, Full<Bytes>>,
    service: String,
    counts: Family<Label, Counter>,
}

impl Exporter {
    async fn run(self, mut spans: mpsc::Receiver<Span>) {
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            if spans.recv_many(&mut batch, BATCH).await == 0 {
                return;
            }
            let until = tokio::time::Instant::now() + WAIT;
            while batch.len() < BATCH {
                let left = BATCH - batch.len();
                let more = spans.recv_many(&mut batch, left);
                match tokio::time::timeout_at(until, more).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            let many = batch.len();
            let body = Bytes::from(self.request(batch).encode_to_vec());
            let outcome = if self.deliver(&body).await {
                "sent"
            } else {
                "lost"
            };
            count(&self.counts, outcome, many);
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportRequest {
        let text = |key: &str, value: &str| -> KeyValue { pair(key, value.into()) };
        let version = env!("CARGO_PKG_VERSION");
        let attributes = vec![
            text("service.name", &self.service),
            text("service.namespace", "weir"),
            text("service.version", version),
        ];
        ExportRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource { attributes }),
                scope_spans: vec![ScopeSpans {
                    scope: Some(Scope {
                        name: "weir".to_owned(),
                        version: version.to_owned(),
                    }),
                    spans: spans.into_iter().map(WireSpan::from).collect(),
                }],
            }],
        }
    }

    /// Whether the collector took it, sooner or later.
    async fn deliver(&self, body: &Bytes) -> bool {
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=TRIES {
            match tokio::time::timeout(ANSWER_WITHIN, self.post(body.clone())).await {
                Ok(Ok(status)) if status.is_success() => return true,
                // What it refuses once it refuses again, unless it only has no time.
                Ok(Ok(status)) if status.is_client_error() && status.as_u16() != 429 => {
                    tracing::warn!(%status, "the collector refuses traces");
                    return false;
                }
                outcome => tracing::debug!(?outcome, attempt, "traces were not taken"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        tracing::warn!(collector = %self.uri, "the collector does not take traces; some are lost");
        false
    }

    async fn post(&self, body: Bytes) -> Result<http::StatusCode, String> {
        let request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status();
        // Read to its end, so that the connection can be used again.
        Limited::new(answer.into_body(), 1 << 16)
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        Ok(status)
    }
}

#[cfg(test)]
mod tests;
