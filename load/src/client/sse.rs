//! One stream's events as a client judges them: how late each is, and that none is missing, repeated or out of order.

use std::collections::BTreeMap;

use memchr::memmem;
use serde_json::{Value, json};

use crate::histogram::Histogram;

/// What all streams saw together.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) events: u64,
    pub(crate) complete: u64,
    pub(crate) disordered: u64,
    pub(crate) delay: Histogram,
    pub(crate) first: Histogram,
    pub(crate) gap: Histogram,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// Events of each second since the first.
    pub(crate) per_second: Vec<u64>,
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Seen {
    pub(crate) fn error(&mut self, text: &str) {
        // A bound, so that a gateway that says something new each time does not fill memory.
        let known = self.errors.len() < 16 || self.errors.contains_key(text);
        let text = if known { text } else { "other" };
        *self.errors.entry(text.to_owned()).or_default() += 1;
    }

    fn event(&mut self, now_ns: u64) {
        if self.first_ns == 0 {
            self.first_ns = now_ns;
        }
        self.last_ns = self.last_ns.max(now_ns);
        self.events += 1;
        let second = (now_ns.saturating_sub(self.first_ns) / 1_000_000_000) as usize;
        if second >= self.per_second.len() {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += 1;
    }

    pub(crate) fn summary(&self) -> Value {
        let span = self.last_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        let rate = if span > 0.0 {
            self.events as f64 / span
        } else {
            0.0
        };
        // The middle of the time: ramp and tail are no plateau.
        let count = self.per_second.len();
        let mut middle: Vec<u64> = self.per_second[count / 4..count - count / 4].to_vec();
        middle.sort_unstable();
        json!({
            "complete": self.complete, "events": self.events, "disordered": self.disordered, "span_s": span, "events_per_s": rate,
            "plateau_events_per_s": middle.get(middle.len() / 2), "delay": self.delay.summary(), "first": self.first.summary(),
            "gap": self.gap.summary(), "errors": self.errors,
        })
    }
}

/// One stream.
#[derive(Default)]
pub(crate) struct Stream {
    /// A line that has not ended yet.
    rest: Vec<u8>,
    next_index: u64,
    last_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) open: bool,
    pub(crate) done: bool,
}

impl Stream {
    /// Takes in a piece of the body.
    pub(crate) fn feed(&mut self, piece: &[u8], now_ns: u64, seen: &mut Seen) {
        if self.rest.is_empty() && piece.ends_with(b"\n") {
            return self.lines(piece, now_ns, seen);
        }
        self.rest.extend_from_slice(piece);
        if let Some(end) = memchr::memrchr(b'\n', &self.rest) {
            let mut whole = std::mem::take(&mut self.rest);
            self.rest = whole.split_off(end + 1);
            self.lines(&whole, now_ns, seen);
        }
    }

    fn lines(&mut self, lines: &[u8], now_ns: u64, seen: &mut Seen) {
        for place in memmem::find_iter(lines, b" t1") {
            let Some((stamp, index)) = stamp(&lines[place + 2..]) else {
                continue;
            };
            seen.event(now_ns);
            seen.delay.add(now_ns.saturating_sub(stamp));
            if self.next_index == 0 {
                seen.first.add(now_ns.saturating_sub(self.sent_ns));
            } else {
                seen.gap.add(now_ns.saturating_sub(self.last_ns));
            }
            if index != self.next_index {
                seen.disordered += 1;
            }
            self.next_index = index + 1;
            self.last_ns = now_ns;
        }
        let ends = [&b"data: [DONE]"[..], b"event: completed"];
        if ends.iter().any(|end| memmem::find(lines, end).is_some()) {
            self.done = true;
        }
    }

    /// The stream is over; judges whether all of it came.
    pub(crate) fn finish(&mut self, tokens: u32, seen: &mut Seen) {
        self.open = false;
        if self.done && self.next_index == u64::from(tokens) {
            seen.complete += 1;
        } else if self.done {
            seen.error("events are missing");
        } else {
            seen.error("ended early");
        }
    }
}

/// `<nanoseconds>.<index>`
fn stamp(text: &[u8]) -> Option<(u64, u64)> {
    let number = |text: &[u8]| -> Option<(u64, usize)> {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
        Some((value, digits))
    };
    let (at, digits) = number(text)?;
    let rest = text.get(digits..)?.strip_prefix(b".")?;
    Some((at, number(rest)?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(index: u64) -> String {
        format!("data: {{\"text\":\" t1700000000000000000.{index}\"}}\n\n")
    }

    #[test]
    fn whole_streams_count_however_they_are_cut() {
        let text = line(0) + &line(1) + &line(2) + "data: [DONE]\n\n";
        for cut in 1..text.len() {
            let (mut stream, mut seen) = (Stream::default(), Seen::default());
            stream.feed(
                &text.as_bytes()[..cut],
                1_800_000_000_000_000_000,
                &mut seen,
            );
            stream.feed(
                &text.as_bytes()[cut..],
                1_800_000_000_000_000_000,
                &mut seen,
            );
            stream.finish(3, &mut seen);
            assert_eq!(
                (seen.events, seen.complete, seen.disordered),
                (3, 1, 0),
                "{cut}"
            );
        }
    }

    #[test]
    fn a_missing_or_repeated_event_is_seen() {
        for (lines, disordered) in [([0, 2], 1), ([0, 0], 1), ([1, 0], 2), ([0, 1], 0)] {
            let (mut stream, mut seen) = (Stream::default(), Seen::default());
            for index in lines {
                stream.feed(line(index).as_bytes(), 1_800_000_000_000_000_000, &mut seen);
            }
            assert_eq!(seen.disordered, disordered, "{lines:?}");
            stream.finish(2, &mut seen);
            assert_eq!(seen.complete, 0, "it never said that it was done");
        }
    }
}
