//! Where a trace comes from: the W3C header `traceparent`.

use std::fmt;
use std::str::FromStr;

use super::{SpanId, TraceId};

/// A trace that a client brought, and its own span in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// What our spans are a part of.
    pub parent: SpanId,
    /// Whether the client records it: if not, neither do we.
    pub is_sampled: bool,
}

/// The header is malformed, and is as good as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no traceparent of the form 00-TRACE-SPAN-FLAGS")]
pub struct ParseTraceError;

impl FromStr for TraceContext {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, ParseTraceError> {
        let mut parts = text.trim().split('-');
        let mut part = || parts.next().ok_or(ParseTraceError);
        let (version, trace, parent, flags) = (part()?, part()?, part()?, part()?);
        let [version] = hex::<1>(version).ok_or(ParseTraceError)?;
        // Later versions may say more; what this one says stays where it is.
        let is_more = parts.next().is_some();
        if version == 0xff || (version == 0 && is_more) {
            return Err(ParseTraceError);
        }
        let trace = hex(trace).filter(|id| *id != [0; 16]);
        let parent = hex(parent).filter(|id| *id != [0; 8]);
        let [flags] = hex(flags).ok_or(ParseTraceError)?;
        Ok(Self {
            trace: trace.ok_or(ParseTraceError)?,
            parent: parent.ok_or(ParseTraceError)?,
            is_sampled: flags & 1 == 1,
        })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            u128::from_be_bytes(self.trace),
            u64::from_be_bytes(self.parent),
            u8::from(self.is_sampled)
        )
    }
}

/// Lower-case hex of exactly so many bytes.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_specification_are_read_and_others_are_not() {
        const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read: TraceContext = GOOD.parse().unwrap();
        assert_eq!(read.to_string(), GOOD);
        assert!(read.is_sampled);
        let later = GOOD.replacen("00", "cc", 1) + "-what-comes";
        assert_eq!(later.parse(), Ok(read));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(bad.parse::<TraceContext>(), Err(ParseTraceError), "{bad}");
        }
    }
}
