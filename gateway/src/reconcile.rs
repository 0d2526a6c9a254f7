//! The ledger against the runs' rows and events: whether what was billed is what the log holds.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use serde_json::{Value, json};
use weir_ledger::{Chain, Day, Head, Link, UsageRecord, Verifier};
use weir_run::{Event, EventKind, Run, RunId, Sequence};
use weir_store::{EventRecord, Store, StoreError};

/// Newest records that every `GET /usage` compares.
const NEWEST: u64 = 200;
/// Events that it reads for that at most: some tens of milliseconds.
const EVENTS: u64 = 20_000;
/// Links, rows and events read at a time.
const PAGE: usize = 512;
/// Differences that are told; the first ones say what is wrong.
const MOST: usize = 100;

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The newest records, within a bound.
    Newest,
    /// Every record, and every row for its record.
    All,
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checked {
    /// Records of the ledger whose place in the chain was proven.
    pub(crate) records: u64,
    /// Runs whose row is still there.
    pub(crate) runs: u64,
    /// Events that are still there.
    pub(crate) events: u64,
    /// Whether nothing was left out for its number.
    pub(crate) complete: bool,
}

/// A disagreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) run: Option<String>,
    pub(crate) field: String,
    /// What row or events say.
    pub(crate) found: Value,
    /// What the ledger says.
    pub(crate) ledger: Value,
}

/// What a comparison found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) checked: Checked,
    pub(crate) differences: Vec<Difference>,
}

/// Compares a tenant's ledger with what else there is of its runs.
pub(crate) async fn reconcile(
    store: &dyn Store,
    tenant: &str,
    depth: Depth,
) -> Result<Found, StoreError> {
    let mut walk = Walk {
        store,
        tenant,
        depth,
        found: Found::default(),
        billed: HashSet::new(),
        sums: BTreeMap::new(),
    };
    walk.records().await?;
    if depth == Depth::All {
        walk.rows().await?;
        walk.sums().await?;
    }
    walk.found.differences.truncate(MOST);
    Ok(walk.found)
}

struct Walk<'a> {
    store: &'a dyn Store,
    tenant: &'a str,
    depth: Depth,
    found: Found,
    /// Runs that have a record; only kept where rows are looked through too.
    billed: HashSet<RunId>,
    /// Tokens and cost by model, version and day of acceptance, as the chain has them.
    sums: BTreeMap<(String, u32, Day), (u64, u64)>,
}

impl Walk<'_> {
    fn differs(&mut self, run: Option<RunId>, field: &str, found: Value, ledger: Value) {
        if self.found.differences.len() < MOST {
            self.found.differences.push(Difference {
                run: run.map(|run| run.to_string()),
                field: field.to_owned(),
                found,
                ledger,
            });
        }
    }

    async fn records(&mut self) -> Result<(), StoreError> {
        let chain = Chain::Ledger(self.tenant.to_owned());
        let head = self.store.chain_head(chain.clone()).await?;
        let mut after = match self.depth {
            Depth::All => 0,
            Depth::Newest => head.number.saturating_sub(NEWEST),
        };
        self.found.checked.complete = after == 0;
        let mut verifier = (after == 0).then(|| Verifier::new(&chain));
        while after < head.number {
            let links = self.store.chain(chain.clone(), after, PAGE).await?;
            let Some(last) = links.last() else {
                self.differs(None, "chain", json!(after), json!(head.number));
                return Ok(());
            };
            after = last.number;
            for link in &links {
                // Begun in the middle, the first link says what is before it.
                let verifier = verifier.get_or_insert_with(|| {
                    Verifier::from(Head {
                        number: link.number.saturating_sub(1),
                        day: link.day,
                        hash: link.previous,
                    })
                });
                if let Err(broken) = verifier.follow(link) {
                    self.differs(None, "chain", json!(broken.to_string()), json!(link.number));
                    return Ok(());
                }
                self.record(link).await?;
                if self.depth == Depth::Newest && self.found.checked.events >= EVENTS {
                    self.found.checked.complete = false;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn record(&mut self, link: &Link) -> Result<(), StoreError> {
        let Ok(record) = UsageRecord::decode(&link.body) else {
            self.differs(None, "record", Value::Null, json!(link.number));
            return Ok(());
        };
        self.found.checked.records += 1;
        if self.depth == Depth::All {
            self.billed.insert(record.run);
            let day = record.day().unwrap_or_default();
            let key = (record.model.clone(), record.version, day);
            let (tokens, micros) = self.sums.entry(key).or_default();
            *tokens += record.usage.prompt_tokens + record.usage.output_tokens;
            *micros += record.usage.cost_micros;
        }
        // A row is dropped a week after its end; the ledger stays.
        let Some(run) = self.store.run(self.tenant, record.run).await? else {
            return Ok(());
        };
        self.found.checked.runs += 1;
        self.row(&record, &run);
        self.events(&record, &run).await
    }

    fn row(&mut self, record: &UsageRecord, run: &Run) {
        let ledger = json!(record);
        let row = json!(UsageRecord::of(run));
        for change in weir_ledger::diff(&row, &ledger) {
            self.differs(Some(run.id), &change.field, change.old, change.new);
        }
    }

    async fn events(&mut self, record: &UsageRecord, run: &Run) -> Result<(), StoreError> {
        let (mut after, mut tokens, mut end) = (0, 0, None);
        loop {
            let events = self.store.events(run.id, Sequence(after), PAGE).await?;
            let Some(last) = events.last() else { break };
            // What retention has dropped cannot be compared, and is dropped whole.
            if after == 0 && events.first().is_some_and(|first| first.sequence.0 != 1) {
                self.differs(Some(run.id), "events", json!(last.sequence), json!(1));
                return Ok(());
            }
            after = last.sequence.0;
            self.found.checked.events += events.len() as u64;
            tokens += events.iter().map(tokens_of).sum::<u64>();
            end = Some(last.clone());
        }
        let Some(end) = end else { return Ok(()) };
        let ended = Event::decode(end.kind, &end.data).ok().map(|end| end.kind);
        let Some(EventKind::Completed { usage, .. } | EventKind::Ended { usage, .. }) = ended
        else {
            let want = json!(record.status.as_str());
            self.differs(Some(run.id), "events.end", json!(end.kind), want);
            return Ok(());
        };
        if usage != record.usage || end.kind != record.status.as_str() {
            let found = json!({"status": end.kind, "usage": usage});
            let ledger = json!({"status": record.status, "usage": record.usage});
            self.differs(Some(run.id), "events.usage", found, ledger);
        }
        if tokens != record.usage.output_tokens {
            let ledger = json!(record.usage.output_tokens);
            self.differs(Some(run.id), "events.tokens", json!(tokens), ledger);
        }
        Ok(())
    }

    /// Runs that have ended and were billed by no record.
    async fn rows(&mut self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let runs = self.store.runs(self.tenant, after, PAGE).await?;
            let Some(last) = runs.last() else {
                return Ok(());
            };
            after = Some(last.id);
            for run in &runs {
                // One that ended since the records were read has its record by now.
                if run.status.is_terminal()
                    && !self.billed.contains(&run.id)
                    && !self.has_record(run).await?
                {
                    let found = json!(run.status.as_str());
                    self.differs(Some(run.id), "record", found, Value::Null);
                }
            }
        }
    }

    async fn has_record(&self, run: &Run) -> Result<bool, StoreError> {
        let chain = Chain::Ledger(self.tenant.to_owned());
        let head = self.store.chain_head(chain.clone()).await?;
        let after = self.found.checked.records;
        let left = usize::try_from(head.number.saturating_sub(after)).unwrap_or(usize::MAX);
        let newer = self.store.chain(chain, after, left.min(PAGE)).await?;
        Ok(newer
            .iter()
            .any(|link| UsageRecord::decode(&link.body).is_ok_and(|record| record.run == run.id)))
    }

    /// The sums that budgets and `byModel` are made of, against the chain's own.
    async fn sums(&mut self) -> Result<(), StoreError> {
        let before = self.found.checked.records;
        let report = self
            .store
            .usage(self.tenant, vec![], 0, u64::MAX, crate::clock::now_ms())
            .await?;
        let chain = Chain::Ledger(self.tenant.to_owned());
        if self.store.chain_head(chain).await?.number != before {
            // Runs have ended meanwhile: the next comparison will see them.
            return Ok(());
        }
        let mut summed = BTreeMap::new();
        for row in report.by_model {
            let tokens = row.usage.prompt_tokens + row.usage.output_tokens;
            summed.insert(
                (row.model, row.version, row.day),
                (tokens, row.usage.cost_micros),
            );
        }
        let keys: Vec<_> = self.sums.keys().chain(summed.keys()).cloned().collect();
        for key in keys {
            let (found, ledger) = (summed.get(&key).copied(), self.sums.get(&key).copied());
            if found != ledger {
                let (model, version, day) = key;
                let field = format!("sums.{model}@{version}.{day}");
                self.differs(None, &field, json!(found), json!(ledger));
            }
        }
        Ok(())
    }
}

fn tokens_of(event: &EventRecord) -> u64 {
    if event.kind != "delta" {
        return 0;
    }
    match Event::decode(event.kind, &event.data).map(|event| event.kind) {
        Ok(EventKind::Delta { tokens, .. }) => u64::from(tokens),
        _ => 0,
    }
}
