//! A run as spans: what it waited for in the gateway. The worker adds what it computed, under ids that both know from the run's own.

use http::HeaderMap;
use weir_run::{RunId, RunStatus};
use weir_telemetry::trace::{
    Span, SpanId, SpanKind, TraceContext, TraceId, Tracer, child_of, root_of, unix_ns,
};

use crate::hub::Frame;
use crate::link::Writer;

/// The trace that a run is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunTrace {
    trace: TraceId,
    /// The client's span, where it brought one.
    parent: Option<SpanId>,
    started_ns: Option<u64>,
    first_ns: Option<u64>,
}

/// Places of spans below a run's.
const ADMISSION: u8 = 1;
const QUEUE: u8 = 2;
const STREAM: u8 = 3;

/// The trace of a request, where it brings one.
pub(crate) fn context(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

impl RunTrace {
    /// The trace of a new run: the client's, or one of its own with the run's id. None where it is not sent.
    pub(crate) fn new(tracer: &Tracer, run: RunId, brought: Option<TraceContext>) -> Option<Self> {
        let (trace, parent) = match brought {
            Some(brought) if !brought.is_sampled => return None,
            Some(brought) => (brought.trace, Some(brought.parent)),
            None => (run.to_bytes(), None),
        };
        let is_sent = tracer.is_on() && (parent.is_some() || tracer.takes(&trace));
        is_sent.then_some(Self {
            trace,
            parent,
            started_ns: None,
            first_ns: None,
        })
    }

    /// As it goes to the worker and into the store.
    pub(crate) fn encode(&self) -> bytes::Bytes {
        let parent = self.parent.unwrap_or_default();
        bytes::Bytes::from([self.trace.as_slice(), parent.as_slice()].concat())
    }

    /// Back from there; what is none is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Box<Self>> {
        let (trace, parent) = bytes.split_first_chunk::<16>()?;
        let parent: SpanId = parent.try_into().ok()?;
        Some(Box::new(Self {
            trace: *trace,
            parent: (parent != [0; 8]).then_some(parent),
            started_ns: None,
            first_ns: None,
        }))
    }

    /// In hex, as collectors show it.
    pub(crate) fn id(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.trace))
    }

    /// Events became visible.
    pub(crate) fn saw(&mut self, frames: &[Frame]) {
        let has = |kind: &str| frames.iter().any(|frame| frame.kind == kind);
        if self.started_ns.is_none() && has("started") {
            self.started_ns = Some(unix_ns());
        }
        if self.first_ns.is_none() && has("delta") {
            self.first_ns = Some(unix_ns());
        }
    }

    fn child(&self, run: RunId, place: u8, name: &str, (from, to): (u64, u64)) -> Span {
        let root = root_of(&run.to_bytes());
        Span {
            trace: self.trace,
            id: child_of(root, place, 0),
            parent: Some(root),
            name: name.to_owned(),
            kind: SpanKind::Internal,
            start_ns: from,
            end_ns: to,
            attributes: Vec::new(),
            error: None,
        }
    }

    /// A request became durable: authentication is before, tokenizing and waiting for a place are in it.
    pub(crate) fn admitted(&self, tracer: &Tracer, run: RunId, begun_ns: u64) {
        tracer.send(self.child(run, ADMISSION, "admission", (begun_ns, unix_ns())));
    }
}

/// A run's end is durable: the run itself, its wait, and the time from its first token on.
pub(crate) fn ended(tracer: &Tracer, writer: &Writer, status: RunStatus) {
    let Some(trace) = &writer.trace else { return };
    let run = writer.live.id;
    let (begun, now) = (writer.created_at_ms * 1_000_000, unix_ns());
    if let Some(started) = trace.started_ns {
        tracer.send(trace.child(run, QUEUE, "queue", (begun, started)));
    }
    if let Some(first) = trace.first_ns {
        tracer.send(trace.child(run, STREAM, "stream", (first, now)));
    }
    let usage = writer.usage();
    let mut attributes = vec![
        ("gen_ai.operation.name", "generate_content".into()),
        ("gen_ai.provider.name", "weir".into()),
        ("gen_ai.request.model", writer.model.as_str().into()),
        ("gen_ai.response.id", run.to_string().into()),
        ("gen_ai.usage.input_tokens", usage.prompt_tokens.into()),
        ("gen_ai.usage.output_tokens", usage.output_tokens.into()),
        ("weir.model.version", u64::from(writer.version).into()),
        ("weir.tenant", writer.tenant.as_str().into()),
        ("weir.run.status", status.as_str().into()),
        ("weir.usage.cached_tokens", usage.cached_tokens.into()),
    ];
    let is_bad = matches!(status, RunStatus::Failed | RunStatus::Interrupted);
    if is_bad {
        attributes.push(("error.type", status.as_str().into()));
    }
    tracer.send(Span {
        trace: trace.trace,
        id: root_of(&run.to_bytes()),
        parent: trace.parent,
        name: format!("generate_content {}", writer.model),
        kind: SpanKind::Server,
        start_ns: begun,
        end_ns: now,
        attributes,
        error: is_bad.then(|| status.as_str().to_owned()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::new_run_id;

    #[test]
    fn a_trace_survives_the_way_through_the_store_and_the_worker() {
        let trace = |parent| RunTrace {
            trace: [7; 16],
            parent,
            started_ns: None,
            first_ns: None,
        };
        for given in [trace(None), trace(Some([9; 8]))] {
            assert_eq!(RunTrace::decode(&given.encode()), Some(Box::new(given)));
        }
        assert_eq!(RunTrace::decode(&[]), None);
        assert_eq!(RunTrace::decode(&[1; 23]), None);
    }

    #[test]
    fn nothing_is_traced_where_nobody_asked_for_it() {
        assert_eq!(RunTrace::new(&Tracer::off(), new_run_id(), None), None);
    }
}
