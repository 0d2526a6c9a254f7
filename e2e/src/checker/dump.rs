//! The store's records as they were after the fault.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Event;

/// A run's row, as far as it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the contract")]
pub struct Row {
    pub tenant: String,
    pub request_key: Option<String>,
    pub status: String,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub reserved_tokens: u64,
    pub cost_micros: Option<u64>,
    pub last_sequence: u64,
    pub started: bool,
    /// Its events may be gone.
    pub expired: bool,
}

/// What a run was billed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the contract")]
pub struct Entry {
    pub tenant: String,
    pub run: String,
    pub accepted_at_ms: u64,
    pub status: String,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub cost_micros: u64,
    pub periods_s: Vec<u64>,
}

/// What a live run holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the contract")]
pub struct Reservation {
    pub tenant: String,
    pub run: String,
    pub tokens: u64,
    pub micros: u64,
    pub accepted_at_ms: u64,
    pub periods_s: Vec<u64>,
}

/// One window of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the contract")]
pub struct Window {
    pub period_s: u64,
    pub start_ms: u64,
    pub used_tokens: u64,
    pub reserved_tokens: u64,
    pub used_micros: u64,
    pub reserved_micros: u64,
}

/// A tenant's account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the contract")]
pub struct Account {
    pub live_runs: u64,
    pub windows: Vec<Window>,
}

/// An event as it is stored.
pub type Stored = Event;

/// Everything in the store.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// Rows by run.
    pub runs: BTreeMap<String, Row>,
    /// Logs by run, in the order of the store.
    pub events: BTreeMap<String, Vec<Stored>>,
    /// Tenant, request key, run.
    pub keys: Vec<(String, String, String)>,
    /// What was billed.
    pub ledger: Vec<Entry>,
    /// What is held.
    pub reservations: Vec<Reservation>,
    /// Accounts by tenant.
    pub accounts: BTreeMap<String, Account>,
}

impl Dump {
    /// From `weir dump`: one JSON object a line. Records of kinds it does not know are left out.
    ///
    /// # Errors
    /// A line is not JSON or lacks a field.
    pub fn parse(text: &str) -> Result<Self> {
        let mut dump = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let record: Value =
                serde_json::from_str(line).with_context(|| format!("no JSON: {line:?}"))?;
            dump.add(&record)
                .with_context(|| format!("record {line}"))?;
        }
        Ok(dump)
    }

    fn add(&mut self, record: &Value) -> Result<()> {
        match record["record"].as_str() {
            Some("run") => {
                let known = self.runs.insert(text(record, "runId")?, row(record)?);
                if known.is_some() {
                    bail!("two rows of one run");
                }
            }
            Some("events") => {
                let log = self.events.entry(text(record, "runId")?).or_default();
                for event in record["events"].as_array().context("events")? {
                    log.push(Event {
                        id: number(event, "sequence")?,
                        kind: text(event, "kind")?,
                        data: text(event, "data")?,
                    });
                }
            }
            Some("key") => self.keys.push((
                text(record, "tenant")?,
                text(record, "requestKey")?,
                text(record, "runId")?,
            )),
            Some("ledger") => self.ledger.push(entry(record)?),
            Some("reservation") => self.reservations.push(Reservation {
                tenant: text(record, "tenant")?,
                run: text(record, "runId")?,
                tokens: number(record, "tokens")?,
                micros: number(record, "micros")?,
                accepted_at_ms: number(record, "acceptedAtMs")?,
                periods_s: numbers(record, "periodsS")?,
            }),
            Some("account") => {
                let windows = record["windows"].as_array().context("windows")?;
                let account = Account {
                    live_runs: number(record, "liveRuns")?,
                    windows: windows.iter().map(window).collect::<Result<_>>()?,
                };
                self.accounts.insert(text(record, "tenant")?, account);
            }
            _ => {}
        }
        Ok(())
    }
}

fn row(record: &Value) -> Result<Row> {
    Ok(Row {
        tenant: text(record, "tenant")?,
        request_key: record["requestKey"].as_str().map(str::to_owned),
        status: text(record, "status")?,
        prompt_tokens: number(record, "promptTokens")?,
        cached_tokens: number(record, "cachedTokens")?,
        output_tokens: number(record, "outputTokens")?,
        reserved_tokens: number(record, "reservedTokens")?,
        cost_micros: record["costMicros"].as_u64(),
        last_sequence: number(record, "lastSequence")?,
        started: !record["startedAtMs"].is_null(),
        expired: record["eventsExpired"] == true,
    })
}

fn entry(record: &Value) -> Result<Entry> {
    Ok(Entry {
        tenant: text(record, "tenant")?,
        run: text(record, "runId")?,
        accepted_at_ms: number(record, "acceptedAtMs")?,
        status: text(record, "status")?,
        prompt_tokens: number(record, "promptTokens")?,
        cached_tokens: number(record, "cachedTokens")?,
        output_tokens: number(record, "outputTokens")?,
        cost_micros: number(record, "costMicros")?,
        periods_s: numbers(record, "periodsS")?,
    })
}

fn window(record: &Value) -> Result<Window> {
    Ok(Window {
        period_s: number(record, "periodS")?,
        start_ms: number(record, "startMs")?,
        used_tokens: number(record, "usedTokens")?,
        reserved_tokens: number(record, "reservedTokens")?,
        used_micros: number(record, "usedMicros")?,
        reserved_micros: number(record, "reservedMicros")?,
    })
}

fn text(record: &Value, field: &str) -> Result<String> {
    let text = record[field].as_str().map(str::to_owned);
    text.with_context(|| format!("{field} is no text"))
}

fn number(record: &Value, field: &str) -> Result<u64> {
    record[field]
        .as_u64()
        .with_context(|| format!("{field} is no number"))
}

fn numbers(record: &Value, field: &str) -> Result<Vec<u64>> {
    let all = record[field].as_array();
    let all = all.with_context(|| format!("{field} is no list"))?;
    all.iter()
        .map(|one| one.as_u64().with_context(|| format!("{field}: {one}")))
        .collect()
}
