//! S, T, D: logs, and every reading of them.

use std::collections::BTreeMap;

use super::budget::is_terminal;
use super::{Call, Dump, Row, Rules, Stored, Tell, What, tokens_of};
use crate::Event;

pub(super) fn check(history: &[Call], dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    let nothing = Vec::new();
    for (run, row) in &dump.runs {
        let log = dump.events.get(run).unwrap_or(&nothing);
        if !(row.expired && log.is_empty()) {
            one_log(run, row, log, tell);
        }
    }
    for run in dump
        .events
        .keys()
        .filter(|run| !dump.runs.contains_key(*run))
    {
        tell('D', format!("events of {run}, which has no row"));
    }
    for call in history {
        reading(call, dump, tell);
    }
    if rules.deterministic {
        texts(history, dump, tell);
    }
}

/// Gap-free from 1, one end, and that at the end.
fn one_log(run: &str, row: &Row, log: &[Stored], tell: Tell<'_>) {
    for (event, wanted) in log.iter().zip(1..) {
        if event.id != wanted {
            tell(
                'S',
                format!("{run}: event {} where {wanted} is due", event.id),
            );
            return;
        }
        if event.json()["sequence"] != wanted {
            tell('S', format!("{run}: event {wanted} says {}", event.data));
        }
    }
    if log.len() as u64 != row.last_sequence {
        tell(
            'D',
            format!(
                "{run}: {} events, its row knows {}",
                log.len(),
                row.last_sequence
            ),
        );
    }
    let ends: Vec<u64> = log
        .iter()
        .filter(|e| e.is_terminal())
        .map(|e| e.id)
        .collect();
    let wanted: &[u64] = if is_terminal(&row.status) {
        &[log.len() as u64]
    } else {
        &[]
    };
    if ends != wanted {
        tell(
            'T',
            format!(
                "{run} is {} with ends at {ends:?} of {}",
                row.status,
                log.len()
            ),
        );
    }
    if let Some(last) = log.last()
        && last.is_terminal()
        && last.kind != row.status
    {
        tell(
            'T',
            format!("{run} ended as {} and is {}", last.kind, row.status),
        );
    }
    let made: u64 = log.iter().map(tokens_of).sum();
    if made != row.output_tokens {
        tell(
            'L',
            format!(
                "{run}: {made} tokens logged, its row has {}",
                row.output_tokens
            ),
        );
    }
}

/// What one client read at one time is a piece of the log, byte for byte.
fn reading(call: &Call, dump: &Dump, tell: Tell<'_>) {
    let Some(first) = call.events.first() else {
        return;
    };
    let after = match &call.what {
        What::Read { after, .. } => *after,
        _ => 0,
    };
    let Some(run) = &call.run else {
        tell('S', format!("a stream that names no run: {call:?}"));
        return;
    };
    if first.id != after + 1 {
        tell('S', format!("{run}: read from {} after {after}", first.id));
    }
    for pair in call.events.windows(2) {
        if pair[1].id != pair[0].id + 1 {
            tell('S', format!("{run}: {} follows {}", pair[1].id, pair[0].id));
        }
        if pair[0].is_terminal() {
            tell('S', format!("{run}: {} after the end", pair[1].id));
        }
    }
    let Some(row) = dump.runs.get(run) else {
        return;
    };
    let log = dump.events.get(run);
    for event in &call.events {
        let place = usize::try_from(event.id.saturating_sub(1)).unwrap_or(usize::MAX);
        match log.and_then(|log| log.get(place)) {
            None if row.expired => {}
            None => tell(
                'D',
                format!("{run}: event {} was seen and is not there", event.id),
            ),
            Some(stored) if stored != event => tell(
                'S',
                format!("{run}: {event:?} was seen, {stored:?} is kept"),
            ),
            Some(_) => {}
        }
    }
}

/// Equal payloads have equal texts, however often their gateways died.
fn texts(history: &[Call], dump: &Dump, tell: Tell<'_>) {
    let mut payloads: BTreeMap<&str, &str> = BTreeMap::new();
    for call in history {
        if let (What::Submit { payload, .. }, Some(run)) = (&call.what, &call.run) {
            payloads.insert(run, payload);
        }
    }
    let mut longest: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    for (run, payload) in &payloads {
        let Some(text) = dump.events.get(*run).map(|log| text(log)) else {
            continue;
        };
        let known = longest.entry(payload).or_insert((run, text.clone()));
        let (short, long) = if text.len() < known.1.len() {
            (&text, &known.1)
        } else {
            (&known.1, &text)
        };
        if !long.starts_with(short.as_str()) {
            tell(
                'S',
                format!(
                    "{run} and {} of one payload differ: {short:?}, {long:?}",
                    known.0
                ),
            );
        }
        if text.len() > known.1.len() {
            *known = (run, text);
        }
    }
}

fn text(log: &[Event]) -> String {
    let deltas = log.iter().filter(|event| event.kind == "delta");
    deltas
        .map(|event| event.json()["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}
