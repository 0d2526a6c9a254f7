//! Reads: each from one consistent state of the engine, never through the writer.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use weir_budget::{Account, window_start_ms};
use weir_ledger::Day;
use weir_run::{Run, RunId, RunStatus, Sequence, WorkOrder};

use crate::kv::View;
use crate::record::{self, BadRecord, chunk, key, ledger::Entry, unseal};
use crate::writer::ops::decode_id;
use crate::writer::state::{ReadError, at, decode_account, live_run, pairs};
use crate::writer::upkeep::changes;
use crate::{Budget, BudgetWindow, EventRecord, ModelUsage, RunCounts, UsageReport};

/// The row of a run. That of a live one lags behind its events: see [`live_or_ended`].
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn run(view: &dyn View, tenant: &str, id: RunId) -> Result<Option<Run>, ReadError> {
    let key = key::run(tenant, id);
    let Some(value) = view.get(&key)? else {
        return Ok(None);
    };
    unseal(&key, &value)
        .and_then(|payload| record::run::decode(tenant, id, payload))
        .map(Some)
        .map_err(at("the row of", id))
}

/// A run, live or not, as its row and its last events tell it.
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn live_or_ended(view: &dyn View, tenant: &str, id: RunId) -> Result<Option<Run>, ReadError> {
    let Some(run) = run(view, tenant, id)? else {
        return Ok(None);
    };
    if run.status.is_terminal() {
        return Ok(Some(run));
    }
    live_run(view, tenant, id).map(Some)
}

/// The run that has a request key.
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn id_by_key(
    view: &dyn View,
    tenant: &str,
    request_key: &str,
) -> Result<Option<RunId>, ReadError> {
    let key = key::request_key(tenant, request_key);
    let value = view.get(&key)?;
    value.map(|value| decode_id(&key, &value)).transpose()
}

/// What the worker of a live run needs; `None` once it has ended.
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn work(view: &dyn View, id: RunId) -> Result<Option<WorkOrder>, ReadError> {
    let key = key::work(id);
    let Some(value) = view.get(&key)? else {
        return Ok(None);
    };
    unseal(&key, &value)
        .and_then(record::run::decode_work)
        .map(Some)
        .map_err(at("the work order of", id))
}

/// Events above `after`, at most `limit`.
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn events(
    view: &dyn View,
    run: RunId,
    after: Sequence,
    limit: usize,
) -> Result<Vec<EventRecord>, ReadError> {
    let (start, end) = key::chunks(run);
    let next = key::chunk(run, Sequence(after.0.saturating_add(2)));
    // The chunk that the first event wanted is in begins at or before it.
    let from = match view.last(&start, &next)? {
        Some((key, _)) => key,
        None => start,
    };
    let mut events = vec![];
    let mut bad = None;
    view.scan(&from, &end, &mut |key, value| {
        match decode_events(key, value, after) {
            Ok(more) => events.extend(more),
            Err(error) => bad = Some(error),
        }
        if events.len() >= limit || bad.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    events.truncate(limit);
    bad.map_or(Ok(events), |error| Err(at("the events of", run)(error)))
}

fn decode_events(key: &[u8], value: &[u8], after: Sequence) -> Result<Vec<EventRecord>, BadRecord> {
    let first = key::first_sequence(key).ok_or(BadRecord::Value("sequence"))?;
    chunk::events(first, unseal(key, value)?, after)
}

/// An account's windows that contain `now_ms`.
pub fn budget(account: &Account, periods_s: &[u64], now_ms: u64) -> Budget {
    let windows = periods_s.iter().map(|&period_s| {
        let window = account.window(period_s, now_ms);
        BudgetWindow {
            period_s,
            start_ms: window_start_ms(period_s, now_ms),
            used_tokens: window.used_tokens,
            reserved_tokens: window.reserved_tokens,
            used_micros: window.used_micros,
            reserved_micros: window.reserved_micros,
        }
    });
    let (minute_requests, minute_tokens) = account.minute(now_ms);
    Budget {
        windows: windows.collect(),
        live_runs: account.live_runs(),
        minute_requests,
        minute_tokens,
    }
}

/// A tenant's reconciled ledger.
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn usage(
    view: &dyn View,
    tenant: &str,
    periods_s: &[u64],
    range: Range<u64>,
    now_ms: u64,
) -> Result<UsageReport, ReadError> {
    let account = stored_account(view, tenant)?;
    let mut rebuild = account.rebuild(now_ms);
    for (key, value) in pairs(view, key::open_of(tenant))? {
        let reservation = unseal(&key, &value)
            .and_then(record::run::decode_reservation)
            .map_err(at("a reservation of", tenant))?;
        rebuild.reserved(&reservation);
    }
    // As far back as the oldest window that is kept or holds now, or the range that was asked for.
    let kept = account.windows().map(|(_, start_ms, _)| start_ms);
    let held = periods_s
        .iter()
        .map(|period_s| window_start_ms(*period_s, now_ms));
    let oldest = kept.chain(held).min().unwrap_or(now_ms);
    let from_ms = range.start.min(oldest);
    let mut by_model: BTreeMap<(String, u32, Day), ModelUsage> = BTreeMap::new();
    let (from, to) = (key::ledger_from(tenant, from_ms), key::ledger_end(tenant));
    let mut bad = None;
    view.scan(&from, &to, &mut |key, value| {
        let entry = unseal(key, value).and_then(Entry::decode);
        match (entry, key::ledger_moment(key)) {
            (Ok(entry), Some(accepted_at_ms)) => {
                rebuild.billed(&entry.billed(accepted_at_ms));
                if range.contains(&accepted_at_ms) {
                    add(&mut by_model, entry, Day::of(accepted_at_ms));
                }
                ControlFlow::Continue(())
            }
            (Ok(_), None) => ControlFlow::Continue(()),
            (Err(error), _) => {
                bad = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = bad {
        return Err(at("the ledger of", tenant)(error));
    }
    let differences = changes(&account, &rebuild.finish());
    Ok(UsageReport {
        budget: budget(&account, periods_s, now_ms),
        by_model: by_model.into_values().collect(),
        consistent: differences.is_empty(),
        differences,
    })
}

/// A tenant's account; empty where nothing was ever reserved.
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn stored_account(view: &dyn View, tenant: &str) -> Result<Arc<Account>, ReadError> {
    let key = key::account(tenant);
    match view.get(&key)? {
        Some(value) => decode_account(tenant, &key, &value).map(Arc::new),
        None => Ok(Arc::default()),
    }
}

fn add(by_model: &mut BTreeMap<(String, u32, Day), ModelUsage>, entry: Entry, day: Day) {
    let of = by_model
        .entry((entry.model.clone(), entry.version, day))
        .or_insert_with(|| ModelUsage {
            day,
            model: entry.model,
            version: entry.version,
            runs: RunCounts::default(),
            usage: weir_run::Usage::default(),
        });
    let count = match entry.status {
        RunStatus::Completed => &mut of.runs.completed,
        RunStatus::Cancelled => &mut of.runs.cancelled,
        RunStatus::Interrupted => &mut of.runs.interrupted,
        RunStatus::Expired => &mut of.runs.expired,
        // The ledger has terminal runs only.
        _ => &mut of.runs.failed,
    };
    *count += 1;
    of.usage.prompt_tokens += entry.usage.prompt_tokens;
    of.usage.cached_tokens += entry.usage.cached_tokens;
    of.usage.output_tokens += entry.usage.output_tokens;
    of.usage.cost_micros += entry.usage.cost_micros;
}
