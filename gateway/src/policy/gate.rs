//! Output on its way past services that judge text: rows wait, in order, until those that were asked have answered.
//!
//! What waits is with the worker too, as in [`super::filter`]: after a gateway's death the next one gets it again and asks again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use weir_protocol::worker::Row;
use weir_run::{Phase, Verdict};

use super::RuleSets;
use super::check::{Checked, Question};

/// How much of what was shown before goes with what is judged, so that nothing hides in a cut.
pub(super) const CONTEXT_BYTES: usize = 2048;

/// The output of one run that checkers hold for.
pub(crate) struct CheckGate {
    sets: Arc<RuleSets>,
    held: VecDeque<Row>,
    /// Rows at the front that are being judged.
    asked: usize,
    /// Counts what was asked, so that a late answer is known as one.
    number: u64,
    /// The end of what went through, of each choice.
    shown: BTreeMap<u32, String>,
}

/// What checkers are asked about a part of a run's output.
pub(crate) struct OutputQuestion {
    sets: Arc<RuleSets>,
    pub(crate) number: u64,
    tenant: String,
    model: String,
    messages: Vec<(String, String)>,
}

/// What they said.
pub(crate) struct OutputAnswer {
    pub(crate) number: u64,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) blocked: bool,
}

impl OutputQuestion {
    /// Asks all of them, one after the other; the first that blocks decides.
    pub(crate) async fn ask(self) -> OutputAnswer {
        let mut answer = OutputAnswer {
            number: self.number,
            verdicts: Vec::new(),
            blocked: false,
        };
        let question = Question {
            phase: Phase::After,
            tenant: &self.tenant,
            model: &self.model,
            messages: &self.messages,
        };
        for checker in self.sets.judges() {
            match checker.ask(&question).await {
                Checked::Allowed => {}
                Checked::Unchecked(verdict) => verdict.add_to(&mut answer.verdicts),
                Checked::Blocked(verdict) => {
                    verdict.add_to(&mut answer.verdicts);
                    answer.blocked = true;
                    break;
                }
            }
        }
        answer
    }
}

impl CheckGate {
    /// None where no checker looks at outputs.
    pub(crate) fn new(sets: &Arc<RuleSets>) -> Option<Self> {
        sets.judges().next().is_some().then(|| Self {
            sets: Arc::clone(sets),
            held: VecDeque::new(),
            asked: 0,
            number: 0,
            shown: BTreeMap::new(),
        })
    }

    /// What was shown of a choice before: for a run that is taken over.
    pub(crate) fn remember(&mut self, choice: u32, shown: &str) {
        self.shown.insert(choice, tail_of(shown).to_owned());
    }

    /// Rows that wait.
    pub(crate) fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// Takes a row in.
    pub(crate) fn push(&mut self, row: Row) {
        self.held.push_back(row);
    }

    /// What to ask now: nothing while an answer is due, and not for a few tokens unless a choice has ended.
    pub(crate) fn question(&mut self, tenant: &str, model: &str) -> Option<OutputQuestion> {
        let ends = |row: &Row| row.finish.is_some();
        let is_due = self.held.len() >= self.sets.judged_every() || self.held.iter().any(ends);
        if self.asked > 0 || !is_due {
            return None;
        }
        self.asked = self.held.len();
        self.number += 1;
        Some(OutputQuestion {
            sets: Arc::clone(&self.sets),
            number: self.number,
            tenant: tenant.to_owned(),
            model: model.to_owned(),
            messages: self.messages(),
        })
    }

    /// What waits, with what was shown before it, a message a choice; and calls of tools.
    fn messages(&self) -> Vec<(String, String)> {
        let mut texts: BTreeMap<u32, String> = BTreeMap::new();
        let mut calls: BTreeMap<(u32, u32), String> = BTreeMap::new();
        for row in &self.held {
            let before = || self.shown.get(&row.choice).cloned().unwrap_or_default();
            let text = texts.entry(row.choice).or_insert_with(before);
            text.push_str(&row.text);
            for call in &row.tool_calls {
                let text = calls.entry((row.choice, call.index)).or_default();
                text.push_str(&call.name);
                text.push_str(&call.arguments);
            }
        }
        let texts = texts
            .into_values()
            .map(|text| ("assistant".to_owned(), text));
        let calls = calls
            .into_values()
            .map(|call| ("tool_call".to_owned(), call));
        texts.chain(calls).collect()
    }

    /// The rows that an answer lets through; `None` for an answer to what is not asked any more.
    pub(crate) fn pass(&mut self, number: u64) -> Option<Vec<Row>> {
        if number != self.number || self.asked == 0 {
            return None;
        }
        let passed: Vec<Row> = self.held.drain(..std::mem::take(&mut self.asked)).collect();
        for row in &passed {
            let shown = self.shown.entry(row.choice).or_default();
            shown.push_str(&row.text);
            if shown.len() > 2 * CONTEXT_BYTES {
                *shown = tail_of(shown).to_owned();
            }
        }
        Some(passed)
    }

    /// All rows that wait, without what they say: they were computed and are billed.
    pub(crate) fn hide(&mut self) -> Vec<Row> {
        self.asked = 0;
        self.held.drain(..).map(hidden).collect()
    }

    /// Forgets what waits: the worker sends it again.
    pub(crate) fn rewind(&mut self) {
        self.held.clear();
        self.asked = 0;
    }
}

/// A row without what it says.
pub(crate) fn hidden(row: Row) -> Row {
    Row {
        text: String::new(),
        tool_calls: Vec::new(),
        logprob: None,
        finish: None,
        run_finished: false,
        ..row
    }
}

fn tail_of(text: &str) -> &str {
    let from = text.len().saturating_sub(CONTEXT_BYTES);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[from.unwrap_or(text.len())..]
}
