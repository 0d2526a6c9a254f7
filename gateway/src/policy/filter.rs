//! A run's rows on their way to its log: rows whose text may be the beginning of a match wait, in order, and none is lost.
//!
//! What waits is with the worker too, which is told of rows only when they are durable: after a gateway's death the next one gets them
//! again. Rows that a match covers become durable together, so that no restart can begin in the middle of one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use weir_protocol::worker::Row;
use weir_protocol::worker::finish::Reason;
use weir_run::Verdict;

use super::RuleSets;
use super::scan::{Scanner, Segment};

/// Most rows that wait. The worker may send a row window ahead, so there must be fewer; a longer wait is cut short by hiding what waits.
const MAX_HELD_ROWS: usize = 128;
/// How much of what was shown is remembered for a rewind: the longest marker.
const REMEMBERED: usize = 96;

/// One text of a run: a choice's, or the arguments of its calls of tools.
type Channel = (u32, bool);

/// The filter of one run.
pub(crate) struct OutputFilter {
    sets: Arc<RuleSets>,
    scanners: BTreeMap<Channel, Scanner>,
    /// The end of what was shown of each text.
    shown: BTreeMap<Channel, String>,
    held: VecDeque<HeldRow>,
    verdicts: Vec<Verdict>,
    stopped: bool,
}

struct HeldRow {
    row: Row,
    spans: Vec<Span>,
    /// A match covers this row's end and goes on in a later one.
    joined: bool,
    touched: bool,
}

/// How a choice ended.
#[derive(Clone, Copy)]
enum End {
    Whole,
    Broken,
}

/// A part of a row's text that is being decided.
struct Span {
    channel: Channel,
    text: String,
    decided: usize,
    out: String,
}

impl OutputFilter {
    pub(crate) fn new(sets: Arc<RuleSets>) -> Self {
        Self {
            sets,
            scanners: BTreeMap::new(),
            shown: BTreeMap::new(),
            held: VecDeque::new(),
            verdicts: Vec::new(),
            stopped: false,
        }
    }

    /// What was shown of a text before: for a run that is taken over.
    pub(crate) fn remember(&mut self, choice: u32, is_tool: bool, shown: &str) {
        let channel = (choice, is_tool);
        let rules = Arc::clone(&self.sets.after);
        self.scanners.insert(channel, Scanner::resume(rules, shown));
        self.shown.insert(channel, tail_of(shown).to_owned());
    }

    /// Rows that wait.
    pub(crate) fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// A rule ended the run.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Takes a row in. Its text is decided as far as it can be.
    pub(crate) fn push(&mut self, row: Row) {
        let choice = row.choice;
        let mut spans = vec![((choice, false), row.text.clone())];
        let calls = row.tool_calls.iter();
        spans.extend(calls.map(|call| ((choice, true), call.arguments.clone())));
        // A text that breaks off is no whole one: what may be half a secret stays hidden.
        let ends = row.finish.as_ref().map(|finish| {
            let whole = matches!(finish.reason(), Reason::Stop | Reason::Length);
            if whole { End::Whole } else { End::Broken }
        });
        let spans = spans.into_iter().map(|(channel, text)| Span {
            channel,
            text,
            decided: 0,
            out: String::new(),
        });
        self.held.push_back(HeldRow {
            spans: spans.collect(),
            row,
            joined: false,
            touched: false,
        });
        let place = self.held.len() - 1;
        for index in 0..self.held[place].spans.len() {
            let (channel, text) = {
                let span = &self.held[place].spans[index];
                (span.channel, span.text.clone())
            };
            if !text.is_empty() {
                self.scan(channel, |scanner, out, verdicts| {
                    scanner.push(&text, out, verdicts);
                });
            }
        }
        for channel in [(choice, false), (choice, true)] {
            match ends {
                Some(End::Whole) => self.scan(channel, Scanner::finish),
                Some(End::Broken) => self.scan(channel, |scanner, out, _| scanner.abandon(out)),
                None => {}
            }
        }
        if self.held.len() > MAX_HELD_ROWS {
            self.abandon();
        }
    }

    /// The run breaks off: rows that wait are billed, and what is undecided of them is not shown.
    pub(crate) fn abandon(&mut self) {
        let channels: Vec<Channel> = self.scanners.keys().copied().collect();
        for channel in channels {
            self.scan(channel, |scanner, out, _| scanner.abandon(out));
        }
    }

    /// Forgets the rows that wait: the worker sends them again.
    pub(crate) fn rewind(&mut self) {
        self.held.clear();
        self.scanners.clear();
        let shown = std::mem::take(&mut self.shown);
        for ((choice, is_tool), text) in shown {
            self.remember(choice, is_tool, &text);
        }
    }

    /// The rows that are decided, in order, up to the first one that is not.
    pub(crate) fn release(&mut self) -> Vec<Row> {
        let mut count = 0;
        for (place, row) in self.held.iter().enumerate() {
            if !self.stopped && row.spans.iter().any(|span| span.decided < span.text.len()) {
                break;
            }
            if !row.joined || self.stopped {
                count = place + 1;
            }
        }
        let released: Vec<HeldRow> = self.held.drain(..count).collect();
        released.into_iter().map(|row| self.show(row)).collect()
    }

    /// What rules decided since the last call.
    pub(crate) fn take_verdicts(&mut self) -> Vec<Verdict> {
        std::mem::take(&mut self.verdicts)
    }

    fn show(&mut self, held: HeldRow) -> Row {
        let HeldRow {
            mut row,
            spans,
            touched,
            ..
        } = held;
        let mut outs = spans.into_iter();
        if let Some(span) = outs.next() {
            self.note(&span);
            row.text = span.out;
        }
        for (call, span) in row.tool_calls.iter_mut().zip(outs) {
            self.note(&span);
            call.arguments = span.out;
        }
        if touched {
            // The tokens' own texts would tell what the marker hides.
            row.logprob = None;
        }
        row
    }

    fn note(&mut self, span: &Span) {
        if span.out.is_empty() {
            return;
        }
        let shown = self.shown.entry(span.channel).or_default();
        shown.push_str(&span.out);
        let kept = tail_of(shown).to_owned();
        *shown = kept;
    }

    fn scan(
        &mut self,
        channel: Channel,
        act: impl FnOnce(&mut Scanner, &mut Vec<Segment>, &mut Vec<Verdict>),
    ) {
        let rules = &self.sets.after;
        let scanner = self
            .scanners
            .entry(channel)
            .or_insert_with(|| Scanner::new(Arc::clone(rules)));
        let mut segments = Vec::new();
        act(scanner, &mut segments, &mut self.verdicts);
        for segment in segments {
            self.apply(channel, segment);
        }
    }

    /// Lays what was decided over the rows that it came from.
    fn apply(&mut self, channel: Channel, segment: Segment) {
        let (mut count, mut marker, gone) = match segment {
            Segment::Stop => {
                self.stopped = true;
                return;
            }
            Segment::Pass(count) => (count, None, false),
            Segment::Gone(count, marker) => (count, marker, true),
        };
        for row in &mut self.held {
            for span in row.spans.iter_mut().filter(|span| span.channel == channel) {
                let taken = (span.text.len() - span.decided).min(count);
                if taken == 0 {
                    continue;
                }
                if gone {
                    row.touched = true;
                    span.out.push_str(&marker.take().unwrap_or_default());
                } else {
                    let passed = &span.text[span.decided..span.decided + taken];
                    span.out.push_str(passed);
                }
                span.decided += taken;
                count -= taken;
            }
            if count == 0 {
                break;
            }
            row.joined |= gone && row.touched;
        }
        if let Some(marker) = marker {
            self.place(channel, &marker);
        }
    }

    /// Puts the end of a marker behind the last byte that was decided: its row must not become durable without it.
    fn place(&mut self, channel: Channel, marker: &str) {
        let rows = self.held.iter_mut();
        let spans = rows.flat_map(|row| &mut row.spans);
        let mut own: Vec<&mut Span> = spans.filter(|span| span.channel == channel).collect();
        let last = own.iter().rposition(|span| span.decided > 0);
        let open = own.iter().position(|span| !span.text.is_empty());
        let place = last.or(open).unwrap_or(own.len().saturating_sub(1));
        if let Some(span) = own.get_mut(place) {
            span.out.push_str(marker);
        }
    }
}

/// The end of a text, as far as it is needed to go on behind it.
fn tail_of(text: &str) -> &str {
    let from = text.len().saturating_sub(REMEMBERED);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[from.unwrap_or(text.len())..]
}
