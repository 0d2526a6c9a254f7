//! Traces, sent to an OpenTelemetry collector by OTLP over HTTP.
//!
//! A span is made when it is over, from times that whoever makes it has noted anyway: nothing on the way of a token waits for it, and a process
//! that sends none does nothing at all. Ids come from callers, so that two processes that know the same run agree on them without asking.
//!
//! OTLP's messages for traces are seven and have not changed since version 1.0: they are declared in `otlp`, which is less than the SDK that
//! would bring them.

mod context;
mod export;
mod otlp;

pub use context::{ParseTraceError, TraceContext};
pub use export::{TraceError, Tracer};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 16 bytes, never all zero.
pub type TraceId = [u8; 16];
/// 8 bytes, never all zero.
pub type SpanId = [u8; 8];

/// Which side of a call a span is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanKind {
    /// Within a process.
    #[default]
    Internal,
    /// Answers somebody.
    Server,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// An integer.
    Integer(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// Something that took time, and is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its own id within it.
    pub id: SpanId,
    /// What it is a part of.
    pub parent: Option<SpanId>,
    /// What it is, in few words of a bounded set.
    pub name: String,
    /// Which side of a call.
    pub kind: SpanKind,
    /// Nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub end_ns: u64,
    /// What else is known. Never text of a tenant.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// The span of a run, by the run's id: the last half of it, which is random.
pub fn root_of(run: &[u8; 16]) -> SpanId {
    let (_, last) = run.split_last_chunk().expect("16 bytes have 8 last ones");
    *last
}

/// A span below it, by a number that is its own and, where it can be there several times, by which time.
pub fn child_of(root: SpanId, place: u8, time: u64) -> SpanId {
    let mix = (time << 8 | u64::from(place)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let id = u64::from_be_bytes(root) ^ mix;
    // All zero means none.
    id.max(1).to_be_bytes()
}

/// Nanoseconds since the Unix epoch.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn spans_of_a_run_are_told_apart() {
        let root = root_of(&[7; 16]);
        let mut ids = BTreeSet::from([root]);
        for place in 1..32 {
            for time in 0..32 {
                assert!(ids.insert(child_of(root, place, time)), "{place} {time}");
            }
        }
    }
}
