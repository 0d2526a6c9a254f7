//! Text that comes in pieces, scanned byte by byte: what is decided comes out, what may be the beginning of a match stays.
//!
//! The result is a function of the bytes alone, never of how they were cut. A match is the longest one at the earliest place; what
//! follows a match is scanned as if it began a text behind `]`, the end of the marker that took the match's place.

use std::collections::VecDeque;
use std::sync::Arc;

use regex_automata::dfa::Automaton;
use regex_automata::util::primitives::StateID;
use weir_run::{PolicyAction, Verdict};

use super::patterns::{Tail, is_secret};
use super::rules::{Dfa, Rules, begin};

/// What became of the next bytes of the source, in order and without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// These many bytes are as they were.
    Pass(usize),
    /// These many bytes are gone, and this stands in their place; none for more of the same match.
    Gone(usize, Option<String>),
    /// Nothing from here on may be shown.
    Stop,
}

/// One text that is scanned.
pub(crate) struct Scanner {
    rules: Arc<[Arc<Rules>]>,
    /// Bytes that are not decided yet.
    held: Vec<u8>,
    starts: VecDeque<Start>,
    /// The last decided byte, as it is shown.
    behind: Option<u8>,
    inside: Option<Inside>,
    stopped: bool,
}

/// A place in `held` where a match may begin.
struct Start {
    at: usize,
    /// Automata that go on from there: which rules, in which state.
    threads: Vec<(usize, StateID)>,
    /// Ends seen so far, the longest last: where, which rules, which pattern.
    ends: Vec<(usize, usize, usize)>,
}

/// A match whose tail is being suppressed.
#[derive(Clone, Copy)]
enum Inside {
    Secret,
    Pem(usize),
}

impl Scanner {
    pub(crate) fn new(rules: Arc<[Arc<Rules>]>) -> Self {
        Self {
            rules,
            held: Vec::new(),
            starts: VecDeque::new(),
            behind: None,
            inside: None,
            stopped: false,
        }
    }

    /// Begins behind text that was shown before: nothing of it is scanned again.
    pub(crate) fn resume(rules: Arc<[Arc<Rules>]>, shown: &str) -> Self {
        let mut scanner = Self::new(rules);
        scanner.behind = shown.bytes().last();
        scanner.inside = scanner.open_marker(shown);
        scanner
    }

    /// A marker without its end: the match under it goes on.
    fn open_marker(&self, shown: &str) -> Option<Inside> {
        let (_, name) = shown.rsplit_once("[redacted:")?;
        let tails = || {
            let rules = self.rules.iter().enumerate();
            rules.flat_map(|(place, rules)| {
                let own = rules.patterns.iter().filter(|p| p.verdict.rule == name);
                own.map(move |pattern| (place, pattern.tail))
            })
        };
        // Of a rule that has both kinds the one that ends later is safe.
        let pem = tails().find(|(_, tail)| *tail == Tail::Pem);
        let class = tails().find_map(|(_, tail)| match tail {
            Tail::Secret => Some(Inside::Secret),
            _ => None,
        });
        pem.map(|(place, _)| Inside::Pem(place)).or(class)
    }

    /// Bytes that are held back.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes text in.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Segment>, verdicts: &mut Vec<Verdict>) {
        for byte in text.bytes() {
            self.byte(byte, out, verdicts);
        }
    }

    /// The text ends here: everything is decided.
    pub(crate) fn finish(&mut self, out: &mut Vec<Segment>, verdicts: &mut Vec<Verdict>) {
        while !self.stopped && (!self.held.is_empty() || self.inside.is_some()) {
            let end = self.held.len();
            for start in &mut self.starts {
                for (place, state) in std::mem::take(&mut start.threads) {
                    let dfa = self
                        .inside
                        .map_or(&self.rules[place].dfa, |inside| inside.dfa(&self.rules));
                    let last = dfa.next_eoi_state(state);
                    note_ends(dfa, last, place, end, &mut start.ends);
                }
            }
            self.settle(out, verdicts);
            if self.held.is_empty() {
                if self.inside.take().is_some() {
                    out.push(Segment::Gone(0, Some("]".to_owned())));
                    self.behind = Some(b']');
                }
                break;
            }
        }
    }

    /// The text breaks off here: what is not decided is not shown.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Segment>) {
        if !self.held.is_empty() {
            out.push(Segment::Gone(self.held.len(), None));
        }
        if self.inside.take().is_some() {
            out.push(Segment::Gone(0, Some("]".to_owned())));
        }
        self.held.clear();
        self.starts.clear();
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<Segment>, verdicts: &mut Vec<Verdict>) {
        if self.stopped {
            out.push(Segment::Gone(1, None));
            return;
        }
        if let Some(Inside::Secret) = self.inside {
            if is_secret(byte) {
                out.push(Segment::Gone(1, None));
                return;
            }
            self.leave(out);
        }
        let at = self.held.len();
        let behind = self.held.last().copied().or(self.behind);
        self.held.push(byte);
        for start in &mut self.starts {
            let ends = &mut start.ends;
            start.threads.retain_mut(|(place, state)| {
                let dfa = self
                    .inside
                    .map_or(&self.rules[*place].dfa, |inside| inside.dfa(&self.rules));
                *state = dfa.next_state(*state, byte);
                note_ends(dfa, *state, *place, at, ends);
                !dfa.is_dead_state(*state)
            });
        }
        self.begin_at(at, byte, behind);
        self.settle(out, verdicts);
    }

    fn begin_at(&mut self, at: usize, byte: u8, behind: Option<u8>) {
        let mut threads = Vec::new();
        match self.inside {
            Some(inside) if byte == b'-' => {
                let dfa = inside.dfa(&self.rules);
                threads.push((0, dfa.next_state(begin(dfa, behind), byte)));
            }
            // No match begins in the middle of a character.
            None if byte & 0xc0 != 0x80 => {
                for (place, rules) in self.rules.iter().enumerate() {
                    if rules.first[usize::from(byte)] {
                        let state = rules.dfa.next_state(begin(&rules.dfa, behind), byte);
                        if !rules.dfa.is_dead_state(state) {
                            threads.push((place, state));
                        }
                    }
                }
            }
            Some(_) | None => {}
        }
        if !threads.is_empty() {
            self.starts.push_back(Start {
                at,
                threads,
                ends: Vec::new(),
            });
        }
    }

    /// Takes out everything in front of the first place that is still open.
    fn settle(&mut self, out: &mut Vec<Segment>, verdicts: &mut Vec<Verdict>) {
        loop {
            let free = self
                .starts
                .front()
                .map_or(self.held.len(), |start| start.at);
            if free > 0 {
                self.drop_front(free);
                match (self.inside, out.last_mut()) {
                    (Some(_), _) => out.push(Segment::Gone(free, None)),
                    // One segment for as much as possible, so that none ends within a character.
                    (None, Some(Segment::Pass(known))) => *known += free,
                    (None, _) => out.push(Segment::Pass(free)),
                }
            }
            let Some(start) = self.starts.front() else {
                return;
            };
            if !start.threads.is_empty() {
                return;
            }
            let Some(start) = self.starts.pop_front() else {
                return;
            };
            if self.inside.is_some() {
                if let Some((end, ..)) = start.ends.last() {
                    out.push(Segment::Gone(*end, None));
                    self.leave(out);
                    self.again(*end, out, verdicts);
                }
                continue;
            }
            if let Some((end, place, pattern)) = self.best(&start.ends) {
                self.matched(end, place, pattern, out, verdicts);
                if self.stopped {
                    return;
                }
            }
        }
    }

    /// The longest end whose proof holds; among equals one that blocks, then the first rule.
    fn best(&self, ends: &[(usize, usize, usize)]) -> Option<(usize, usize, usize)> {
        let found = |place: usize, pattern: usize| &self.rules[place].patterns[pattern];
        let proven = ends.iter().filter(|(end, place, pattern)| {
            found(*place, *pattern).proof.holds(&self.held[..*end])
        });
        proven.copied().min_by_key(|(end, place, pattern)| {
            let blocks = found(*place, *pattern).verdict.action == PolicyAction::Block;
            (std::cmp::Reverse(*end), !blocks, *place, *pattern)
        })
    }

    /// `held[..end]` is a match.
    fn matched(
        &mut self,
        end: usize,
        place: usize,
        pattern: usize,
        out: &mut Vec<Segment>,
        verdicts: &mut Vec<Verdict>,
    ) {
        let rules = Arc::clone(&self.rules[place]);
        let found = &rules.patterns[pattern];
        found.verdict.add_to(verdicts);
        if found.verdict.action == PolicyAction::Block {
            self.stopped = true;
            out.push(Segment::Stop);
            out.push(Segment::Gone(self.held.len(), None));
            self.held.clear();
            self.starts.clear();
            return;
        }
        let name = &found.verdict.rule;
        let (inside, marker) = match found.tail {
            Tail::None => (None, format!("[redacted:{name}]")),
            Tail::Secret => (Some(Inside::Secret), format!("[redacted:{name}")),
            Tail::Pem => (Some(Inside::Pem(place)), format!("[redacted:{name}")),
        };
        self.inside = inside;
        out.push(Segment::Gone(end, Some(marker)));
        self.behind = Some(b']');
        self.again(end, out, verdicts);
    }

    fn leave(&mut self, out: &mut Vec<Segment>) {
        self.inside = None;
        self.behind = Some(b']');
        out.push(Segment::Gone(0, Some("]".to_owned())));
    }

    /// `held[..end]` is decided; the rest is scanned anew in the state that followed.
    fn again(&mut self, end: usize, out: &mut Vec<Segment>, verdicts: &mut Vec<Verdict>) {
        let rest = self.held.split_off(end);
        self.held.clear();
        self.starts.clear();
        for byte in rest {
            self.byte(byte, out, verdicts);
        }
    }

    fn drop_front(&mut self, count: usize) {
        self.behind = Some(self.held[count - 1]);
        self.held.drain(..count);
        for start in &mut self.starts {
            start.at -= count;
            for (end, ..) in &mut start.ends {
                *end -= count;
            }
        }
    }
}

impl Inside {
    fn dfa(self, rules: &[Arc<Rules>]) -> &Dfa {
        match self {
            Self::Pem(place) => &rules[place].pem_end,
            // Nothing is begun under a class of bytes.
            Self::Secret => &rules[0].pem_end,
        }
    }
}

/// An automaton tells one byte late that it matched: `at` is where the match ended.
fn note_ends(
    dfa: &Dfa,
    state: StateID,
    place: usize,
    at: usize,
    ends: &mut Vec<(usize, usize, usize)>,
) {
    if !dfa.is_match_state(state) {
        return;
    }
    for index in 0..dfa.match_len(state) {
        ends.push((at, place, dfa.match_pattern(state, index).as_usize()));
    }
}

#[cfg(test)]
mod tests;
