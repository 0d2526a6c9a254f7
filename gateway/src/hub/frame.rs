//! One event in its final form: encoded once, stored, shared and sent as the same bytes.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use weir_run::{EventKind, Sequence};
use weir_store::EventRecord;
use weir_store::fault::broken;

/// An event as SSE, with the place of its data in it.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) sequence: u64,
    pub(crate) kind: &'static str,
    /// `id: …\nevent: …\ndata: …\n\n`
    pub(crate) sse: Bytes,
    data_start: u32,
}

#[derive(Serialize)]
struct Data<'a> {
    sequence: u64,
    #[serde(flatten)]
    kind: &'a EventKind,
}

/// Encodes an event.
pub(crate) fn encode(sequence: u64, kind: &EventKind) -> Frame {
    let name = kind.name();
    let mut out = head(sequence, name, 160);
    let data_start = out.len() as u32;
    if !plain_delta(&mut out, sequence, kind) {
        let data = Data { sequence, kind };
        serde_json::to_writer((&mut out).writer(), &data).expect("events serialize");
    }
    finish(sequence, name, out, data_start)
}

/// Nearly every event is a delta of text and nothing else: the same bytes as the serializer makes, for a fraction of the time.
fn plain_delta(out: &mut BytesMut, sequence: u64, kind: &EventKind) -> bool {
    let EventKind::Delta {
        text,
        tokens,
        choice: 0,
        logprobs: None,
        prompt_logprobs,
        tool_calls,
        choice_finish_reason: None,
    } = kind
    else {
        return false;
    };
    if !tool_calls.is_empty() || !prompt_logprobs.is_empty() {
        return false;
    }
    let mut digits = [0_u8; 20];
    out.put_slice(b"{\"sequence\":");
    out.put_slice(decimal(sequence, &mut digits));
    out.put_slice(b",\"text\":");
    serde_json::to_writer(out.writer(), text).expect("text serializes");
    out.put_slice(b",\"tokens\":");
    out.put_slice(decimal(u64::from(*tokens), &mut digits));
    out.put_slice(b"}");
    true
}

fn head(sequence: u64, name: &str, data_bytes: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(48 + data_bytes);
    let mut digits = [0_u8; 20];
    out.put_slice(b"id: ");
    out.put_slice(decimal(sequence, &mut digits));
    out.put_slice(b"\nevent: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\ndata: ");
    out
}

fn finish(sequence: u64, kind: &'static str, mut out: BytesMut, data_start: u32) -> Frame {
    out.put_slice(b"\n\n");
    Frame {
        sequence,
        kind,
        sse: out.freeze(),
        data_start,
    }
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

impl Frame {
    /// The JSON of the event, sharing the frame's memory.
    pub(crate) fn data(&self) -> Bytes {
        self.sse.slice(self.data_start as usize..self.sse.len() - 2)
    }

    /// As [`Frame::data`], to look at.
    pub(crate) fn json(&self) -> &[u8] {
        &self.sse[self.data_start as usize..self.sse.len() - 2]
    }

    /// The JSON text, quotes and all, of an event that is text and nothing else.
    pub(crate) fn plain_text(&self) -> Option<&[u8]> {
        if self.kind != "delta" {
            return None;
        }
        let rest = self.json().strip_prefix(b"{\"sequence\":")?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = rest[digits..].strip_prefix(b",\"text\":")?;
        let mut end = 1;
        while text.get(end)? != &b'"' {
            end += 1 + usize::from(text[end] == b'\\');
        }
        let tokens = text[end + 1..].strip_prefix(b",\"tokens\":")?;
        let digits = tokens.iter().take_while(|byte| byte.is_ascii_digit());
        (&tokens[digits.count()..] == b"}").then(|| &text[..=end])
    }

    pub(crate) fn record(&self) -> EventRecord {
        EventRecord {
            sequence: Sequence(self.sequence),
            kind: self.kind,
            data: self.data(),
        }
    }

    pub(crate) fn from_record(record: &EventRecord) -> Self {
        let mut out = head(record.sequence.0, record.kind, record.data.len());
        let data_start = out.len() as u32;
        out.put_slice(&record.data);
        if broken("re-encode") {
            out.put_slice(b" ");
        }
        finish(record.sequence.0, record.kind, out, data_start)
    }

    pub(crate) fn is_terminal(&self) -> bool {
        !matches!(self.kind, "accepted" | "started" | "delta")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_run::{FinishReason, Usage};

    #[test]
    fn plain_deltas_are_what_the_serializer_makes_and_show_their_text() {
        for text in [
            "",
            "Red\n",
            "\"quoted\" \\ and \u{1}",
            "日本\u{1F600}",
            "\\",
        ] {
            for (choice, plain) in [(0, true), (1, false)] {
                let kind = EventKind::Delta {
                    text: text.to_owned(),
                    tokens: 12,
                    choice,
                    logprobs: None,
                    prompt_logprobs: Vec::new(),
                    tool_calls: Vec::new(),
                    choice_finish_reason: None,
                };
                let frame = encode(7, &kind);
                let data = Data {
                    sequence: 7,
                    kind: &kind,
                };
                assert_eq!(frame.json(), serde_json::to_vec(&data).unwrap(), "{text:?}");
                let quoted = serde_json::to_vec(text).unwrap();
                assert_eq!(frame.plain_text(), plain.then_some(quoted.as_slice()));
            }
        }
    }

    #[test]
    fn events_look_as_the_contract_shows_them_and_survive_the_store() {
        let delta = EventKind::Delta {
            text: "Red\n".into(),
            tokens: 1,
            choice: 0,
            logprobs: None,
            prompt_logprobs: Vec::new(),
            choice_finish_reason: None,
            tool_calls: Vec::new(),
        };
        let usage = Usage {
            prompt_tokens: 11,
            cached_tokens: 0,
            output_tokens: 2,
            cost_micros: 19,
        };
        let completed = EventKind::completed(FinishReason::Stop, usage);
        let cases = [
            (
                encode(3, &delta),
                "id: 3\nevent: delta\ndata: {\"sequence\":3,\"text\":\"Red\\n\",\"tokens\":1}\n\n",
            ),
            (
                encode(5, &completed),
                "id: 5\nevent: completed\ndata: {\"sequence\":5,\"status\":\"completed\",\"finishReason\":\"stop\",\"usage\":\
                 {\"promptTokens\":11,\"cachedTokens\":0,\"outputTokens\":2,\"costMicros\":19}}\n\n",
            ),
            (
                encode(u64::MAX, &EventKind::Started { queue_ms: 3 }),
                "id: 18446744073709551615\nevent: started\ndata: {\"sequence\":18446744073709551615,\"queueMs\":3}\n\n",
            ),
        ];
        for (frame, want) in cases {
            assert_eq!(frame.sse, want);
            assert_eq!(Frame::from_record(&frame.record()).sse, want);
        }
    }
}
