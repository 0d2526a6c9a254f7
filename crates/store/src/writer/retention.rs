//! What happens to ended runs: first their events go, then, much later, the row. The ledger stays.

use std::ops::ControlFlow;

use weir_run::{Run, RunId};

use super::ops::OpError;
use super::state::{Changes, Group, ReadError, at, pairs};
use crate::RUN_SPACE;
use crate::record::{BadRecord, key, unseal};

/// A run's row outlives its end by at least this much: its request key stays known.
const ROW_KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// What is due, as stored.
const EVENTS: u8 = 0;
const ROW: u8 = 1;

/// Notes when a run that has just ended loses its events.
pub(super) fn schedule_events(changes: &mut Changes, run: &Run) {
    let key = key::due(run.events_expire_at_ms, run.id);
    changes.put(key, stage(EVENTS, &run.tenant));
}

fn stage(stage: u8, tenant: &str) -> Vec<u8> {
    let mut payload = vec![stage];
    payload.extend_from_slice(tenant.as_bytes());
    payload
}

impl Group<'_> {
    /// Carries out at most `limit` of what is due; how many runs were touched.
    pub(crate) fn expire(&mut self, now_ms: u64, limit: usize) -> Result<usize, OpError> {
        let mut due = vec![];
        let until = key::due_from(now_ms.saturating_add(1));
        self.view
            .scan(&key::due_from(0), &until, &mut |key, value| {
                if due.len() >= limit {
                    return ControlFlow::Break(());
                }
                due.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .map_err(ReadError::from)?;
        for (key, value) in &due {
            self.drop_due(key, value, now_ms)?;
        }
        Ok(due.len())
    }

    fn drop_due(&mut self, due: &[u8], value: &[u8], now_ms: u64) -> Result<(), OpError> {
        let bad = |source| ReadError::from_record("a retention entry", source);
        let id = key::trailing_run(due).ok_or_else(|| bad(BadRecord::Value("run id")))?;
        let payload = unseal(due, value).map_err(at("the retention of", id))?;
        let (stage, tenant) = payload
            .split_first()
            .and_then(|(stage, tenant)| Some((*stage, std::str::from_utf8(tenant).ok()?)))
            .ok_or_else(|| bad(BadRecord::Value("tenant")))?;
        self.changes.remove(due.to_vec());
        let Some(run) = self.run(tenant, id)? else {
            return Ok(());
        };
        if stage == EVENTS {
            self.drop_events(id)?;
            self.changes
                .remove(key::object(RUN_SPACE, tenant, &id.to_string()));
            let ended_at_ms = run.finished_at_ms.unwrap_or(now_ms);
            let row_until_ms = ended_at_ms.saturating_add(ROW_KEPT_MS).max(now_ms);
            let key = key::due(row_until_ms, id);
            self.changes.put(key, self::stage(ROW, tenant));
        } else {
            self.drop_row(&run);
        }
        Ok(())
    }

    pub(super) fn drop_events(&mut self, id: RunId) -> Result<(), OpError> {
        self.changes.expired.insert(id);
        // An engine that several gateways share drops events by the partition.
        if self.owner.is_some() {
            return Ok(());
        }
        for (key, _) in pairs(self.view, key::chunks(id))? {
            self.changes.remove(key);
        }
        Ok(())
    }

    fn drop_row(&mut self, run: &Run) {
        self.changes.remove(key::run(&run.tenant, run.id));
        self.changes.remove(key::owner(run.id));
        if let Some(request_key) = &run.request_key {
            self.changes
                .remove(key::request_key(&run.tenant, request_key));
        }
    }
}
