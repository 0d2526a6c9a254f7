//! B, T, L: reservations, settlements, sums.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Call, Dump, Entry, Row, Rules, Tell, What, tokens_of};

pub(super) fn check(history: &[Call], dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    for call in history {
        if let (What::Usage, 200, Some(body)) = (&call.what, call.status, &call.body) {
            usage(&call.tenant, body, tell);
        }
    }
    settlements(dump, rules, tell);
    accounts(dump, rules, tell);
}

/// An account as a tenant saw it, whenever it looked.
fn usage(tenant: &str, body: &Value, tell: Tell<'_>) {
    for window in body["windows"].as_array().into_iter().flatten() {
        for unit in ["Tokens", "Micros"] {
            let read = |name: &str| window[format!("{name}{unit}")].as_i64();
            let (Some(limit), Some(available)) = (read("limit"), read("available")) else {
                continue;
            };
            let (used, reserved) = (
                read("used").unwrap_or(i64::MAX),
                read("reserved").unwrap_or(0),
            );
            if used.checked_add(reserved + available) != Some(limit) {
                tell(
                    'B',
                    format!(
                        "{tenant} saw {limit} = {available} + {reserved} + {used} {unit}: {window}"
                    ),
                );
            }
            if available < 0 {
                tell('B', format!("{tenant} saw {available} {unit} available"));
            }
        }
    }
    if body["consistent"] == false {
        tell(
            'L',
            format!(
                "{tenant} was told that its account is not consistent: {}",
                body["differences"]
            ),
        );
    }
}

/// One settlement for each run that has ended, none and one reservation for each that has not.
fn settlements(dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    let mut entries: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in &dump.ledger {
        entries.entry(&entry.run).or_default().push(entry);
    }
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for reservation in &dump.reservations {
        *held.entry(&reservation.run).or_default() += 1;
        match dump.runs.get(&reservation.run) {
            None => tell('T', format!("a reservation of no run: {reservation:?}")),
            Some(row) if reservation.tokens != row.reserved_tokens => {
                tell(
                    'B',
                    format!("{} reserved otherwise: {reservation:?}", reservation.run),
                );
            }
            Some(_) => {}
        }
    }
    for (run, row) in &dump.runs {
        let settled = entries.remove(run.as_str()).unwrap_or_default();
        let (wanted, live) = if is_terminal(&row.status) {
            (1, 0)
        } else {
            (0, 1)
        };
        if settled.len() != wanted {
            tell(
                'T',
                format!("{run} is {} with {} settlements", row.status, settled.len()),
            );
        }
        let reservations = held.get(run.as_str()).copied().unwrap_or(0);
        if reservations != live {
            tell(
                'T',
                format!("{run} is {} with {reservations} reservations", row.status),
            );
        }
        if let [entry] = settled[..] {
            billed(run, row, entry, dump, rules, tell);
        }
    }
    for entry in entries.into_values().flatten() {
        tell('T', format!("a settlement of no run: {entry:?}"));
    }
}

/// What was billed is what the log says was made.
fn billed(run: &str, row: &Row, entry: &Entry, dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    if entry.tenant != row.tenant || entry.status != row.status {
        tell('L', format!("{run}: {entry:?} does not fit {row:?}"));
    }
    if entry.output_tokens != row.output_tokens {
        tell(
            'L',
            format!(
                "{run}: {} tokens billed, the row has {}",
                entry.output_tokens, row.output_tokens
            ),
        );
    }
    if entry.prompt_tokens + entry.output_tokens > row.reserved_tokens {
        tell('B', format!("{run}: billed beyond its reservation"));
    }
    let wanted = if row.started { row.prompt_tokens } else { 0 };
    if entry.prompt_tokens != wanted {
        tell(
            'L',
            format!(
                "{run}: {} prompt tokens billed instead of {wanted}",
                entry.prompt_tokens
            ),
        );
    }
    let (prompt, cached, output) = rules.price;
    let cost = (entry.prompt_tokens - entry.cached_tokens.min(entry.prompt_tokens)) * prompt
        + entry.cached_tokens * cached
        + entry.output_tokens * output;
    if entry.cost_micros != cost {
        tell(
            'L',
            format!("{run}: cost {} instead of {cost}", entry.cost_micros),
        );
    }
    let Some(log) = dump.events.get(run).filter(|_| !row.expired) else {
        return;
    };
    let made: u64 = log.iter().map(tokens_of).sum();
    if made != entry.output_tokens {
        tell(
            'L',
            format!(
                "{run}: {} tokens billed, {made} logged",
                entry.output_tokens
            ),
        );
    }
    let told = log.last().map(|event| event.json()["usage"].clone());
    let told = told.unwrap_or_default();
    if told["outputTokens"] != entry.output_tokens || told["costMicros"] != entry.cost_micros {
        tell(
            'L',
            format!("{run}: its end says {told}, billed is {entry:?}"),
        );
    }
}

/// Each account is the sum of its settlements and reservations, and within its limit.
fn accounts(dump: &Dump, rules: &Rules, tell: Tell<'_>) {
    for (tenant, account) in &dump.accounts {
        let live = dump.reservations.iter().filter(|r| r.tenant == *tenant);
        if live.count() as u64 != account.live_runs {
            tell('B', format!("{tenant}: {} live runs", account.live_runs));
        }
        for window in &account.windows {
            let within = |at_ms: u64, periods: &[u64]| {
                periods.contains(&window.period_s)
                    && (window.start_ms..window.start_ms + window.period_s * 1000).contains(&at_ms)
            };
            let used: (u64, u64) = dump
                .ledger
                .iter()
                .filter(|e| e.tenant == *tenant && within(e.accepted_at_ms, &e.periods_s))
                .map(|e| (e.prompt_tokens + e.output_tokens, e.cost_micros))
                .fold((0, 0), add);
            let reserved: (u64, u64) = dump
                .reservations
                .iter()
                .filter(|r| r.tenant == *tenant && within(r.accepted_at_ms, &r.periods_s))
                .map(|r| (r.tokens, r.micros))
                .fold((0, 0), add);
            if used != (window.used_tokens, window.used_micros) {
                tell(
                    'L',
                    format!("{tenant}: {window:?}, the ledger's sums are {used:?}"),
                );
            }
            if reserved != (window.reserved_tokens, window.reserved_micros) {
                tell(
                    'B',
                    format!("{tenant}: {window:?}, live runs hold {reserved:?}"),
                );
            }
            let limit = rules.limits.get(&(tenant.clone(), window.period_s));
            if let Some(limit) = limit
                && window.used_tokens + window.reserved_tokens > *limit
            {
                tell('B', format!("{tenant}: {window:?} beyond {limit}"));
            }
        }
    }
}

fn add(sum: (u64, u64), one: (u64, u64)) -> (u64, u64) {
    (sum.0 + one.0, sum.1 + one.1)
}

pub(super) fn is_terminal(status: &str) -> bool {
    matches!(
        status,
        "completed" | "cancelled" | "interrupted" | "failed" | "expired"
    )
}
