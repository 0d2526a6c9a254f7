//! A run in the engine as spans: its wait for a slot, its prompt, its tokens, with the engine's steps from the first to the last.

use std::time::{Duration, Instant};

use weir_telemetry::trace::{
    Span, SpanId, SpanKind, TraceId, Tracer, Value, child_of, root_of, unix_ns,
};

use super::observe::Times;
use super::request::RunKey;

/// Places of spans below a run's; the gateway's are below these.
const ENGINE: u8 = 16;
const SLOT: u8 = 17;
const PREFILL: u8 = 18;
const DECODE: u8 = 19;

/// The trace of a run, and what spans of it are told apart by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTrace {
    trace: TraceId,
    key: RunKey,
    epoch: u64,
}

impl RunTrace {
    /// As the gateway sent it; what is none is none.
    pub(crate) fn read(bytes: &[u8], key: RunKey, epoch: u64) -> Option<Self> {
        let (trace, rest) = bytes.split_first_chunk()?;
        (rest.len() == 8).then_some(Self {
            trace: *trace,
            key,
            epoch,
        })
    }
}

/// Sends what became of a run.
pub(super) fn ended(tracer: &Tracer, times: &Times, now: Instant) {
    let Some(run) = times.trace.filter(|_| tracer.is_on()) else {
        return;
    };
    let wall = unix_ns();
    let at = |instant: Instant| {
        let before = now.saturating_duration_since(instant);
        wall.saturating_sub(nanos(before))
    };
    let root = root_of(&run.key);
    let engine = child_of(root, ENGINE, run.epoch);
    let send = |place: u8, name: &str, parent: SpanId, span: (Instant, Instant), attributes| {
        tracer.send(Span {
            trace: run.trace,
            id: child_of(root, place, run.epoch),
            parent: Some(parent),
            name: name.to_owned(),
            kind: if place == ENGINE {
                SpanKind::Server
            } else {
                SpanKind::Internal
            },
            start_ns: at(span.0),
            end_ns: at(span.1),
            attributes,
            error: None,
        });
    };
    let number = |name, number: u64| (name, Value::from(number));
    let [first_step, last_step] = times.steps;
    let whole = vec![
        number("weir.epoch", run.epoch),
        number("weir.prompt_tokens", times.prompt_tokens as u64),
        number("weir.output_tokens", times.output_tokens),
        number("weir.engine.first_step", first_step),
        number("weir.engine.last_step", last_step),
    ];
    send(ENGINE, "engine", root, (times.submitted, now), whole);
    let started = times.started.unwrap_or(now);
    send(
        SLOT,
        "wait for a slot",
        engine,
        (times.submitted, started),
        Vec::new(),
    );
    if let (Some(started), Some((first, last))) = (times.started, times.tokens) {
        send(
            PREFILL,
            "prefill",
            engine,
            (started, first),
            vec![number("weir.engine.step", first_step)],
        );
        let steps = last_step.saturating_sub(first_step) + 1;
        send(
            DECODE,
            "decode",
            engine,
            (first, last.max(first)),
            vec![number("weir.engine.steps", steps)],
        );
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
