//! The independent checker: what clients saw and what the store holds afterwards, against the invariants of the design.
//!
//! It shares no code with what it checks. Its input is a [`History`] (every request, every answer, every event, as bytes and by
//! connection), a [`Dump`] (the store's records, one JSON object a line), and the [`Rules`] of the site. Each invariant has a letter:
//!
//! | | |
//! |---|---|
//! | B | limit = available + reserved + used, at every moment anybody looked, and nothing beyond the limit |
//! | U | one run for each tenant and request key; another payload is refused |
//! | S | sequences from 1 without gap, the same bytes in every replay, nothing after the end, no token twice |
//! | T | one terminal event and one settlement; the reservation is released with it, and once |
//! | L | the ledger's sums = the account = the tokens in the log |
//! | D | what was acknowledged is there |
//! | I | no tenant learns of another's runs |
//! | F | every run ends, every answer too |
//! | M | memory stays below its bound |

mod budget;
mod dump;
mod history;
mod runs;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use dump::{Account, Dump, Entry, Reservation, Row, Stored, Window};
pub use history::{Call, History, Recording, What};

use crate::Event;

/// One invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Its letter.
    pub invariant: char,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// What the site promises beyond the invariants themselves.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Tokens that a tenant may use in one window, by tenant and period in seconds.
    pub limits: BTreeMap<(String, u64), u64>,
    /// Micro-units for a prompt token, a cached one, and an output token.
    pub price: (u64, u64, u64),
    /// Equal payloads have equal texts: sampling is greedy. A run that ended early has the beginning of it.
    pub deterministic: bool,
    /// No run may be live any more.
    pub quiet: bool,
    /// Longest time from a request to the end of its answer.
    pub answer_within_ms: Option<u64>,
    /// Resident memory in bytes that no sample may pass.
    pub memory_bytes: Option<u64>,
    /// Runs known to have begun on a worker that was killed for good, and so must not have completed.
    pub lost: Vec<String>,
}

/// How much happened: a quiet run proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intensity {
    /// Calls that were made.
    pub calls: u64,
    /// Calls that got no whole answer.
    pub cut: u64,
    /// Runs in the store.
    pub runs: u64,
    /// Of these, ended as interrupted.
    pub interrupted: u64,
    /// Of these, ended as cancelled.
    pub cancelled: u64,
    /// Output tokens in their logs.
    pub tokens: u64,
    /// Events that clients saw.
    pub events_seen: u64,
    /// Calls that found their request key known.
    pub joined: u64,
    /// Calls that continued a stream after its first event.
    pub resumed: u64,
}

/// All that does not hold, in order; empty is what everybody hopes for.
pub fn check(history: &[Call], dump: &Dump, memory: &[u64], rules: &Rules) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut tell = |invariant: char, what: String| found.push(Violation { invariant, what });
    budget::check(history, dump, rules, &mut tell);
    runs::check(history, dump, rules, &mut tell);
    streams::check(history, dump, rules, &mut tell);
    if let Some(bound) = rules.memory_bytes
        && let Some(most) = memory.iter().max()
        && *most > bound
    {
        tell(
            'M',
            format!("{most} bytes of resident memory, at most {bound} allowed"),
        );
    }
    found.sort();
    found.dedup();
    found
}

/// Counts what happened.
pub fn intensity(history: &[Call], dump: &Dump) -> Intensity {
    let ended = |status: &str| {
        dump.runs
            .values()
            .filter(|row| row.status == status)
            .count() as u64
    };
    let count = |is: fn(&Call) -> bool| history.iter().filter(|call| is(call)).count() as u64;
    Intensity {
        calls: history.len() as u64,
        cut: count(|call| !call.complete),
        runs: dump.runs.len() as u64,
        interrupted: ended("interrupted"),
        cancelled: ended("cancelled"),
        tokens: dump.runs.values().map(|row| row.output_tokens).sum(),
        events_seen: history.iter().map(|call| call.events.len() as u64).sum(),
        joined: count(|call| {
            call.body
                .as_ref()
                .is_some_and(|body| body["replayed"] == true)
        }),
        resumed: count(|call| matches!(&call.what, What::Read { after, .. } if *after > 0)),
    }
}

/// Told of each violation.
type Tell<'a> = &'a mut dyn FnMut(char, String);

/// Tokens that an event bills.
fn tokens_of(event: &Event) -> u64 {
    if event.kind == "delta" {
        event.json()["tokens"].as_u64().unwrap_or(0)
    } else {
        0
    }
}
