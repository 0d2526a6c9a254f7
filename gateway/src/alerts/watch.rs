//! Looks at accounts that have changed and raises what was crossed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use weir_ledger::{Actor, AuditLine};
use weir_store::{BudgetWindow, Expect, Note, Noted, ObjectWrite, StoreError};

use super::deliver::{self, Delivery};
use super::threshold::{Raised, crossed};
use crate::clock::{now_ms, rfc3339};
use crate::core::Core;
use crate::native::period;
use crate::snapshot::Tenant;

/// Where it is kept what was raised: owner is the tenant, name the budget.
const SPACE: &str = "alert";
/// How often all accounts are looked at, changed by this gateway or not.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Attempts against other gateways that raise the same.
const ATTEMPTS: usize = 8;

/// Watches for ever.
pub(crate) async fn watch(core: Arc<Core>) {
    let mut swept: Option<Instant> = None;
    let mut known: BTreeSet<String> = BTreeSet::new();
    loop {
        let touched = std::mem::take(&mut *core.alerts.touched.lock());
        let tenants = core.directory.load().keys.tenants();
        let sweeps = swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY);
        if sweeps {
            swept = Some(Instant::now());
        }
        for tenant in tenants {
            let is_new = !known.contains(&tenant.name);
            if !(sweeps || is_new || touched.contains(&tenant.name)) {
                continue;
            }
            match look(&core, &tenant, is_new).await {
                Ok(()) => {
                    known.insert(tenant.name.clone());
                }
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!(tenant = tenant.name, %error, "cannot look at a budget; trying again");
                    core.alerts.touch(&tenant.name);
                }
            }
        }
        tokio::time::sleep(core.config.alerts_every).await;
    }
}

/// One budget of a tenant in one window.
struct Level<'a> {
    tenant: &'a Tenant,
    window: &'a BudgetWindow,
    unit: &'static str,
    limit: u64,
    used: u64,
    reserved: u64,
}

/// `first`: the windows before the present ones too, which may have ended while nobody looked.
async fn look(core: &Core, tenant: &Tenant, first: bool) -> Result<(), StoreError> {
    let now = now_ms();
    for limit in &tenant.limits.windows {
        let start_ms = weir_budget::window_start_ms(limit.period_s, now);
        let moments = [first.then(|| start_ms.saturating_sub(1)), Some(now)];
        for moment in moments.into_iter().flatten() {
            let budget = core
                .store
                .budget(&tenant.name, vec![limit.period_s], moment)
                .await?;
            let Some(window) = budget.windows.first() else {
                continue;
            };
            let levels = [
                (
                    "tokens",
                    limit.tokens,
                    window.used_tokens,
                    window.reserved_tokens,
                ),
                (
                    "micros",
                    limit.micros,
                    window.used_micros,
                    window.reserved_micros,
                ),
            ];
            for (unit, limit, used, reserved) in levels {
                let Some(limit) = limit else { continue };
                let level = Level {
                    tenant,
                    window,
                    unit,
                    limit,
                    used,
                    reserved,
                };
                if moment == now {
                    level.show(core);
                }
                level.raise(core).await?;
            }
        }
    }
    Ok(())
}

impl Level<'_> {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![
            ("tenant", self.tenant.name.clone()),
            ("period", period(self.window.period_s)),
            ("unit", self.unit.to_owned()),
        ]
    }

    fn show(&self, core: &Core) {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let labels = self.labels();
        let alerts = &core.alerts;
        alerts.used.get_or_create(&labels).set(signed(self.used));
        alerts
            .reserved
            .get_or_create(&labels)
            .set(signed(self.reserved));
        alerts.limit.get_or_create(&labels).set(signed(self.limit));
    }

    async fn raise(&self, core: &Core) -> Result<(), StoreError> {
        let thresholds = &self.tenant.alerts.thresholds_percent;
        let crossed = crossed(thresholds, self.used, self.limit);
        let Some(highest) = crossed.last().copied() else {
            return Ok(());
        };
        let start_ms = self.window.start_ms;
        let key = (self.tenant.name.clone(), self.window.period_s, self.unit);
        let known = core.alerts.raised.lock().get(&key).copied();
        if known.is_some_and(|(start, at)| start == start_ms && at >= highest) {
            return Ok(());
        }
        let name = format!("{}s.{}", self.window.period_s, self.unit);
        for _ in 0..ATTEMPTS {
            let object = core.store.object(SPACE, &self.tenant.name, &name).await?;
            let stored = object.as_ref().map(|object| &object.data[..]);
            let mut raised: Raised = stored
                .and_then(|bytes| serde_json::from_slice(bytes).ok())
                .unwrap_or_default();
            let new = raised.raise(start_ms, &crossed);
            if new.is_empty() {
                break;
            }
            let expect = object.map_or(Expect::Absent, |object| Expect::Version(object.version));
            let text = serde_json::to_vec(&raised).expect("numbers serialize");
            let note = self.note(
                &new,
                ObjectWrite {
                    space: SPACE,
                    owner: self.tenant.name.clone(),
                    name: name.clone(),
                    expect,
                    data: Some(Bytes::from(text)),
                },
            );
            if let Noted::Written(_) = core.store.note(note).await? {
                self.raised(core, &new);
                break;
            }
        }
        core.alerts.raised.lock().insert(key, (start_ms, highest));
        Ok(())
    }

    fn raised(&self, core: &Core, new: &BTreeSet<u8>) {
        for percent in new {
            tracing::warn!(
                tenant = self.tenant.name,
                unit = self.unit,
                percent,
                used = self.used,
                limit = self.limit,
                "a budget's threshold was crossed"
            );
            let mut labels = self.labels();
            labels.push(("threshold", percent.to_string()));
            core.alerts.crossed.get_or_create(&labels).inc();
        }
        core.alerts.queued.notify_one();
    }

    fn note(&self, new: &BTreeSet<u8>, raised: ObjectWrite) -> Note {
        let now_ms = now_ms();
        let object = format!("TenantQuota {}", self.tenant.name);
        let mut note = Note {
            lines: Vec::new(),
            writes: vec![raised],
            now_ms,
        };
        for percent in new {
            let event = self.event(*percent, now_ms);
            let actor = Actor::new("weir", "");
            let line = AuditLine::new(now_ms, actor, "budgetThreshold", &object);
            if self.tenant.alerts.webhook.is_some() {
                note.writes.push(deliver::queued(&Delivery {
                    id: self.id(*percent),
                    tenant: self.tenant.name.clone(),
                    body: event.to_string(),
                    created_ms: now_ms,
                    due_ms: now_ms,
                    attempts: 0,
                }));
            }
            note.lines.push(line.details(event).encode());
        }
        note
    }

    /// The same for every gateway that might raise it, so that a receiver knows it again.
    fn id(&self, percent: u8) -> String {
        let window = self.window;
        let what = format!(
            "{}/{}/{}/{}/{percent}",
            self.tenant.name, window.period_s, window.start_ms, self.unit
        );
        format!("alert_{}", &blake3::hash(what.as_bytes()).to_hex()[..24])
    }

    fn event(&self, percent: u8, now_ms: u64) -> Value {
        json!({
            "id": self.id(percent),
            "type": "budget.threshold",
            "at": rfc3339(now_ms),
            "tenant": self.tenant.name,
            "window": {
                "period": period(self.window.period_s),
                "start": rfc3339(self.window.start_ms),
                "end": rfc3339(self.window.end_ms()),
            },
            "unit": self.unit,
            "thresholdPercent": percent,
            "limit": self.limit,
            "used": self.used,
            "reserved": self.reserved,
        })
    }
}
