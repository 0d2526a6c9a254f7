//! Alerts when a tenant's budget is used up to a threshold: once for each threshold and window, over all gateways and restarts.
//!
//! An alert is a line of the audit log, a count, and, where the tenant has a webhook, a delivery. Line, delivery and the note that the
//! threshold was crossed are one commit, made only by the gateway that finds the threshold not crossed yet.

mod deliver;
mod threshold;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use serde::Deserialize;
use tokio::sync::Notify;
use weir_telemetry::{Label, Metrics as Registry};

pub(crate) use deliver::deliver;
pub(crate) use watch::watch;

/// What a tenant is told, and where.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Alerts {
    /// Percent of a window's limit, rising.
    pub thresholds_percent: Vec<u8>,
    /// Where alerts go beside the audit log.
    pub webhook: Option<Webhook>,
}

impl Default for Alerts {
    /// At 50, 80, 95 and 100 percent, without a webhook.
    fn default() -> Self {
        Self {
            thresholds_percent: vec![50, 80, 95, 100],
            webhook: None,
        }
    }
}

/// Where alerts are posted, and the secret that signs them.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Webhook {
    /// `https://…`, or `http://` on this machine.
    pub url: String,
    /// Shared with the receiver.
    pub secret: String,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Tenant, period and unit.
type Budget = (String, u64, &'static str);

/// What watching needs to remember; everything that counts is in the store.
pub(crate) struct AlertState {
    /// Tenants whose account has changed.
    touched: Mutex<BTreeSet<String>>,
    /// A window's start and the highest threshold known to be raised in it.
    raised: Mutex<HashMap<Budget, (u64, u8)>>,
    /// A delivery was queued.
    queued: Notify,
    crossed: Family<Label, Counter>,
    deliveries: Family<Label, Counter>,
    used: Family<Label, Gauge>,
    reserved: Family<Label, Gauge>,
    limit: Family<Label, Gauge>,
}

impl AlertState {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            touched: Mutex::default(),
            raised: Mutex::default(),
            queued: Notify::new(),
            crossed: registry.counters(
                "weir_budget_threshold_crossed",
                "Thresholds of budgets that this gateway found crossed first",
            ),
            deliveries: registry.counters(
                "weir_webhook_deliveries",
                "Attempts to deliver an alert, by what became of them",
            ),
            used: registry.gauges("weir_budget_used", "Used of a budget's present window"),
            reserved: registry.gauges(
                "weir_budget_reserved",
                "Reserved of a budget's present window by live runs",
            ),
            limit: registry.gauges("weir_budget_limit", "Limit of a budget's windows"),
        }
    }

    /// The tenant's account has changed.
    pub(crate) fn touch(&self, tenant: &str) {
        let mut touched = self.touched.lock();
        if !touched.contains(tenant) {
            touched.insert(tenant.to_owned());
        }
    }

    fn delivered(&self, what: &'static str) {
        let label = vec![("result", what.to_owned())];
        self.deliveries.get_or_create(&label).inc();
    }
}
