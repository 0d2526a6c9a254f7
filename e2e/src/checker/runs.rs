//! U, D, I, F: which runs there are, whose they are, and that they end.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::is_terminal;
use super::{Call, Dump, Rules, Tell, What};

pub(super) fn check(history: &[Call], dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    keys(history, dump, tell);
    acknowledged(history, dump, tell);
    isolation(history, dump, tell);
    ends(history, dump, rules, tell);
}

/// One run for each key, in what clients were told and in the store.
fn keys(history: &[Call], dump: &Dump, tell: Tell<'_>) {
    let mut told: BTreeMap<(&str, &str), (&str, &str)> = BTreeMap::new();
    for call in history {
        let What::Submit {
            key: Some(key),
            payload,
        } = &call.what
        else {
            continue;
        };
        let place = (call.tenant.as_str(), key.as_str());
        match (call.status, &call.run) {
            (200 | 202, Some(run)) => {
                let first = *told.entry(place).or_insert((run, payload));
                if first.0 != run {
                    tell('U', format!("{place:?} is {} and {run}", first.0));
                } else if first.1 != payload {
                    tell('U', format!("{place:?} took another payload for {run}"));
                }
            }
            (409, _) if told.get(&place).is_some_and(|(_, first)| first == payload) => {
                tell('U', format!("{place:?}: a repeat was refused"));
            }
            _ => {}
        }
    }
    let mut stored: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (tenant, key, run) in &dump.keys {
        if let Some(other) = stored.insert((tenant, key), run) {
            tell(
                'U',
                format!("{tenant} {key}: {other} and {run} in the store"),
            );
        }
    }
    let mut rows: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (run, row) in &dump.runs {
        let Some(key) = &row.request_key else {
            continue;
        };
        if let Some(other) = rows.insert((&row.tenant, key), run) {
            tell('U', format!("{} {key}: rows {other} and {run}", row.tenant));
        }
        if stored.get(&(row.tenant.as_str(), key.as_str())) != Some(&run.as_str()) {
            tell('U', format!("{} {key}: not the key of {run}", row.tenant));
        }
    }
    for (place, (run, _)) in told {
        if rows.get(&place) != Some(&run) {
            tell(
                'D',
                format!("{place:?} was acknowledged as {run} and is not there"),
            );
        }
    }
}

/// A run that anybody was told of is there, and so is what was asked of it.
fn acknowledged(history: &[Call], dump: &Dump, tell: Tell<'_>) {
    for call in history {
        let Some(run) = call
            .run
            .as_ref()
            .filter(|_| matches!(call.status, 200 | 202))
        else {
            continue;
        };
        let Some(row) = dump.runs.get(run) else {
            tell('D', format!("{run} was acknowledged and is not there"));
            continue;
        };
        let (What::Cancel { .. }, Some(body)) = (&call.what, &call.body) else {
            continue;
        };
        let status = body["status"].as_str().unwrap_or_default();
        if is_terminal(status) && status != row.status {
            tell('T', format!("{run} was {status} and is {}", row.status));
        }
    }
    let mut cancelled: BTreeMap<&str, u64> = BTreeMap::new();
    for call in history {
        if let (What::Cancel { run }, 202) = (&call.what, call.status) {
            let at = cancelled.entry(run).or_insert(call.ended_ms);
            *at = call.ended_ms.min(*at);
        }
    }
    for call in history {
        let (What::Row { run }, 200, Some(body)) = (&call.what, call.status, &call.body) else {
            continue;
        };
        let status = body["status"].as_str().unwrap_or_default();
        let now = dump.runs.get(run).map(|row| row.status.as_str());
        if is_terminal(status) && now != Some(status) {
            tell('T', format!("{run} was {status} and is {now:?}"));
        }
        // A run that ends by itself at that moment may win, but the intent is never forgotten.
        let asked = cancelled
            .get(run.as_str())
            .is_some_and(|at| *at < call.begun_ms);
        if asked && matches!(status, "accepted" | "running") {
            tell('D', format!("{run} was to be cancelled and is {status}"));
        }
        let row = dump.runs.get(run);
        if row.is_some_and(|row| body["lastSequence"].as_u64() > Some(row.last_sequence)) {
            tell(
                'D',
                format!("{run} had more events than it has now: {body}"),
            );
        }
    }
}

/// A run of another tenant is not there.
fn isolation(history: &[Call], dump: &Dump, tell: Tell<'_>) {
    for call in history {
        let asked = match &call.what {
            What::Read { run, .. } | What::Row { run } | What::Cancel { run } => Some(run),
            What::Submit { .. } | What::Usage => None,
        };
        for run in asked.into_iter().chain(&call.run) {
            let foreign = dump.runs.get(run).filter(|row| row.tenant != call.tenant);
            if let Some(row) = foreign
                && !matches!(call.status, 0 | 404 | 503)
            {
                tell(
                    'I',
                    format!(
                        "{} got {} for {run} of {}",
                        call.tenant, call.status, row.tenant
                    ),
                );
            }
        }
    }
}

fn ends(history: &[Call], dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    if rules.quiet {
        for (run, row) in dump
            .runs
            .iter()
            .filter(|(_, row)| !is_terminal(&row.status))
        {
            tell(
                'F',
                format!("{run} of {} is still {}", row.tenant, row.status),
            );
        }
    }
    if let Some(within) = rules.answer_within_ms {
        for call in history {
            let took = call.ended_ms.saturating_sub(call.begun_ms);
            if took > within {
                tell('F', format!("{:?} took {took} ms", call.what));
            }
        }
    }
    let lost: BTreeSet<&String> = rules.lost.iter().collect();
    for run in lost {
        if dump
            .runs
            .get(run)
            .is_some_and(|row| row.status == "completed")
        {
            tell(
                'S',
                format!("{run} completed although the worker that had begun it is gone"),
            );
        }
    }
}
