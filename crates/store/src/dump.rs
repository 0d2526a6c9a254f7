//! Everything a store holds, record by record: for checks from outside and for people who look for a fault.

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use weir_run::RunId;

use crate::kv::{Kv, View};
use crate::reader::live_or_ended;
use crate::record::{self, chunk, key, ledger::Entry, unseal};
use crate::writer::state::{ReadError, at, decode_account, missing};
use crate::{Engine, StoreError, open};

/// Tells of every record in the store of a folder that no process has open, as JSON objects with a field `record`: `run`, `events`, `key`,
/// `reservation`, `ledger` and `account`. Prompts are not among them; the text of events is.
///
/// # Errors
/// As for [`crate::open`].
pub fn dump(
    folder: &Path,
    engine: Engine,
    now_ms: u64,
    tell: &mut dyn FnMut(Value),
) -> Result<(), StoreError> {
    let (kv, _lock) = open::files(folder, engine, crate::Durability::Disk)?;
    of(&*kv, &folder.display().to_string(), now_ms, tell)
}

pub(crate) fn of(
    kv: &dyn Kv,
    path: &str,
    now_ms: u64,
    tell: &mut dyn FnMut(Value),
) -> Result<(), StoreError> {
    let told = kv.view().map_err(ReadError::from);
    let told = told.and_then(|view| records(&*view, now_ms, tell));
    told.map_err(|error| StoreError::Read {
        path: path.to_owned(),
        cause: error.to_string(),
    })
}

/// Tells of every record in a view, as [`dump`] does.
///
/// # Errors
/// A record could not be read or makes no sense.
pub fn records(view: &dyn View, now_ms: u64, tell: &mut dyn FnMut(Value)) -> Result<(), ReadError> {
    for (letter, show) in FAMILIES {
        each(view, *letter, |key, value| {
            tell(show(view, key, value, now_ms)?);
            Ok(())
        })?;
    }
    Ok(())
}

type Show = fn(&dyn View, &[u8], &[u8], u64) -> Result<Value, ReadError>;

const FAMILIES: &[(u8, Show)] = &[
    (b'r', run),
    (b'e', events),
    (b'k', request_key),
    (b'o', reservation),
    (b'l', ledger),
    (b'a', account),
];

/// Visits a family record by record, without holding it in memory.
fn each(
    view: &dyn View,
    letter: u8,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let (from, to) = key::family(letter);
    let mut outcome = Ok(());
    view.scan(&from, &to, &mut |key, value| {
        outcome = visit(key, value);
        if outcome.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    outcome
}

/// Whose record it is, and of which run.
fn place(key: &[u8]) -> Result<(&str, RunId), ReadError> {
    let tenant = key::tenant(key).ok_or_else(|| missing("the tenant of", "a record"))?;
    let run = key::trailing_run(key).ok_or_else(|| missing("the run of", "a record"))?;
    Ok((tenant, run))
}

fn run(view: &dyn View, key: &[u8], _value: &[u8], now_ms: u64) -> Result<Value, ReadError> {
    let (tenant, id) = place(key)?;
    let run = live_or_ended(view, tenant, id)?.ok_or_else(|| missing("the row of", id))?;
    Ok(json!({
        "record": "run", "runId": id, "tenant": tenant, "requestKey": run.request_key,
        "status": run.status.as_str(), "epoch": run.epoch.0, "model": run.model, "modelVersion": run.model_version,
        "promptTokens": run.prompt_tokens, "cachedTokens": run.cached_tokens, "outputTokens": run.output_tokens,
        "reservedTokens": run.reserved_tokens, "costMicros": run.cost_micros, "lastSequence": run.last_sequence.0,
        "createdAtMs": run.created_at_ms, "startedAtMs": run.started_at_ms, "finishedAtMs": run.finished_at_ms,
        "replaces": run.replaces, "replacedBy": run.replaced_by, "eventsExpired": run.events_expire_at_ms <= now_ms,
    }))
}

fn events(_view: &dyn View, key: &[u8], value: &[u8], _now_ms: u64) -> Result<Value, ReadError> {
    let id = key.get(1..17).and_then(|id| <[u8; 16]>::try_from(id).ok());
    let id = RunId::from_bytes(id.ok_or_else(|| missing("the run of", "events"))?);
    let first = key::first_sequence(key).ok_or_else(|| missing("the sequence of", "events"))?;
    let events = unseal(key, value)
        .and_then(|payload| chunk::events(first, payload, weir_run::Sequence(0)))
        .map_err(at("the events of", id))?;
    let events: Vec<Value> = events
        .iter()
        .map(|event| json!({"sequence": event.sequence.0, "kind": event.kind, "data": String::from_utf8_lossy(&event.data)}))
        .collect();
    Ok(json!({"record": "events", "runId": id, "events": events}))
}

fn request_key(_: &dyn View, key: &[u8], value: &[u8], _: u64) -> Result<Value, ReadError> {
    let tenant = key::tenant(key).ok_or_else(|| missing("the tenant of", "a request key"))?;
    let id = crate::writer::ops::decode_id(key, value)?;
    let text = key.get(3 + tenant.len()..).unwrap_or_default();
    Ok(
        json!({"record": "key", "tenant": tenant, "requestKey": String::from_utf8_lossy(text), "runId": id}),
    )
}

fn reservation(_: &dyn View, key: &[u8], value: &[u8], _: u64) -> Result<Value, ReadError> {
    let (tenant, id) = place(key)?;
    let held = unseal(key, value)
        .and_then(record::run::decode_reservation)
        .map_err(at("the reservation of", id))?;
    Ok(json!({
        "record": "reservation", "tenant": tenant, "runId": id, "tokens": held.tokens, "micros": held.micros,
        "pool": held.pool, "acceptedAtMs": held.accepted_at_ms, "periodsS": held.periods_s,
    }))
}

fn ledger(_: &dyn View, key: &[u8], value: &[u8], _: u64) -> Result<Value, ReadError> {
    let (tenant, id) = place(key)?;
    let entry = unseal(key, value).and_then(Entry::decode);
    let entry = entry.map_err(at("the ledger entry of", id))?;
    Ok(json!({
        "record": "ledger", "tenant": tenant, "runId": id, "acceptedAtMs": key::ledger_moment(key),
        "model": entry.model, "modelVersion": entry.version, "status": entry.status.as_str(),
        "promptTokens": entry.usage.prompt_tokens, "cachedTokens": entry.usage.cached_tokens,
        "outputTokens": entry.usage.output_tokens, "costMicros": entry.usage.cost_micros, "periodsS": entry.periods_s,
    }))
}

fn account(_: &dyn View, key: &[u8], value: &[u8], _: u64) -> Result<Value, ReadError> {
    let tenant = key::tenant(key).ok_or_else(|| missing("the tenant of", "an account"))?;
    let account = decode_account(tenant, key, value)?;
    let windows = account.windows().map(|(period_s, start_ms, window)| {
        json!({
            "periodS": period_s, "startMs": start_ms, "usedTokens": window.used_tokens, "reservedTokens": window.reserved_tokens,
            "usedMicros": window.used_micros, "reservedMicros": window.reserved_micros,
        })
    });
    let windows: Vec<Value> = windows.collect();
    Ok(
        json!({"record": "account", "tenant": tenant, "liveRuns": account.live_runs(), "windows": windows}),
    )
}
