//! What the admin port offers of a gateway: ledgers and audit log to read, repair and deletion to ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_ledger::{Actor, AuditLine, Chain};
use weir_store::{Note, Repair, StoreError};
use weir_telemetry::admin::{Action, Query};

use crate::auth::{KeyView, views};
use crate::clock::{now_ms, parse_rfc3339};
use crate::content::{Deletion, carry_out};
use crate::core::Core;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::http::route::parameters;
use crate::native::{Asked, Export, NDJSON, export, view};
use crate::reconcile::Depth;
use crate::snapshot::Tenant;

impl Gateway {
    /// What a GET on the admin port may ask of this gateway: `/keys`, `/usage`, `/usage/ledger` and `/audit`.
    pub fn admin_queries(&self) -> BTreeMap<&'static str, Query> {
        let query = |kind, answer| Query {
            content_type: kind,
            answer,
        };
        let action = |act: fn(Arc<Core>, Bytes) -> Answering| self.action(act);
        BTreeMap::from([
            (
                "/keys",
                query(
                    "application/json",
                    action(|core, query| Box::pin(keys(core, query))),
                ),
            ),
            (
                "/usage",
                query(
                    "application/json",
                    action(|core, query| Box::pin(usage(core, query))),
                ),
            ),
            (
                "/usage/ledger",
                query(NDJSON, action(|core, query| Box::pin(ledger(core, query)))),
            ),
            (
                "/audit",
                query(NDJSON, action(|core, query| Box::pin(audit(core, query)))),
            ),
        ])
    }

    /// What a POST on the admin port may ask of this gateway: `/usage/repair` and `/tenant/purge`.
    pub fn admin_actions(&self) -> BTreeMap<&'static str, Action> {
        let action = |act: fn(Arc<Core>, Bytes) -> Answering| self.action(act);
        BTreeMap::from([
            (
                "/usage/repair",
                action(|core, body| Box::pin(repair(core, body))),
            ),
            (
                "/tenant/purge",
                action(|core, body| Box::pin(purge(core, body))),
            ),
        ])
    }

    fn action(&self, act: fn(Arc<Core>, Bytes) -> Answering) -> Action {
        let core = Arc::clone(self.core());
        Action(Arc::new(move |body| act(Arc::clone(&core), body)))
    }

    /// Something beside the snapshot is in force: `object` is a kind and a name. Noted when it is not what was noted last; holds no secret.
    pub fn note_setting(&self, object: &str, value: Value) {
        let actor = Actor::new("manifests", &self.core().config.replica);
        self.core().audit.setting(object, value, actor);
    }

    /// Adds a line to the audit log.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn audit(&self, line: AuditLine) -> Result<(), StoreError> {
        let note = Note {
            lines: vec![line.encode()],
            now_ms: now_ms(),
            ..Note::default()
        };
        self.core().store.note(note).await.map(|_| ())
    }
}

type Answering = std::pin::Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

fn told(error: &ApiError) -> String {
    error.body().message.clone()
}

fn read_query(query: &Bytes, known: &[&str]) -> Result<Vec<(String, String)>, String> {
    let text = std::str::from_utf8(query).map_err(|_| "the query is no text".to_owned())?;
    parameters(text, known).map_err(|error| told(&error))
}

fn tenant_of(parameters: &[(String, String)]) -> Result<String, String> {
    let mut of = parameters.iter().filter(|(name, _)| name == "tenant");
    let (_, name) = of.next().ok_or("name the tenant: ?tenant=NAME")?;
    Ok(name.clone())
}

/// The tenant in force; one that is not in force any more still has a ledger, and no limits.
fn find(core: &Core, name: &str) -> Arc<Tenant> {
    let directory = core.directory.load();
    let mut tenants = directory.keys.tenants().into_iter();
    let found = tenants.find(|tenant| tenant.name == name);
    found.unwrap_or_else(|| Arc::new(Tenant::named(name)))
}

async fn keys(core: Arc<Core>, query: Bytes) -> Result<String, String> {
    let given = read_query(&query, &["tenant"])?;
    let only = given.first().map(|(_, name)| name);
    let mut all: Vec<KeyView> = Vec::new();
    let mut tenants = core.directory.load().keys.tenants();
    tenants.sort_by(|one, other| one.name.cmp(&other.name));
    for tenant in tenants.iter().filter(|t| only.is_none_or(|n| *n == t.name)) {
        let last = core.key_use.last(&*core.store, &tenant.name).await;
        let last = last.map_err(|error| error.to_string())?;
        all.extend(views(tenant, &last, now_ms()));
    }
    Ok(json!(all).to_string())
}

async fn usage(core: Arc<Core>, query: Bytes) -> Result<String, String> {
    let given = read_query(&query, &["tenant", "from", "to", "groupBy", "check"])?;
    let tenant = find(&core, &tenant_of(&given)?);
    let mut asked = Asked::read(&given).map_err(|error| told(&error))?;
    if given
        .iter()
        .any(|(name, text)| name == "check" && text == "all")
    {
        asked.depth = Depth::All;
    }
    let view = view(&core, &tenant, asked).await;
    view.map(|view| json!(view).to_string())
        .map_err(|error| told(&error))
}

async fn ledger(core: Arc<Core>, query: Bytes) -> Result<String, String> {
    let given = read_query(&query, &["tenant", "day", "after", "limit"])?;
    page(&core, Chain::Ledger(tenant_of(&given)?), &given).await
}

async fn audit(core: Arc<Core>, query: Bytes) -> Result<String, String> {
    let given = read_query(&query, &["day", "after", "limit"])?;
    page(&core, Chain::Audit, &given).await
}

async fn page(core: &Core, chain: Chain, given: &[(String, String)]) -> Result<String, String> {
    let asked = Export::read(given).map_err(|error| told(&error))?;
    let text = export(&*core.store, chain, &asked).await;
    text.map_err(|error| told(&error))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RepairOrder {
    tenant: String,
    #[serde(default)]
    apply: bool,
    /// Who asks, as the command line knows the user.
    #[serde(default)]
    actor: String,
}

async fn repair(core: Arc<Core>, body: Bytes) -> Result<String, String> {
    let order: RepairOrder = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let repair = Repair {
        tenant: order.tenant,
        actor: Actor::new("admin", &order.actor),
        apply: order.apply,
        now_ms: now_ms(),
    };
    let repaired = core.store.repair(repair).await;
    let repaired = repaired.map_err(|error| error.to_string())?;
    Ok(json!({"changes": repaired.changes, "applied": repaired.applied}).to_string())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PurgeOrder {
    tenant: String,
    before: Option<String>,
    #[serde(default)]
    cancel_live: bool,
    #[serde(default)]
    actor: String,
}

async fn purge(core: Arc<Core>, body: Bytes) -> Result<String, String> {
    let order: PurgeOrder = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let before_ms = match &order.before {
        None => now_ms(),
        Some(text) => {
            parse_rfc3339(text).ok_or("before must be a time like 2026-12-01T00:00:00.000Z")?
        }
    };
    let deletion = Deletion {
        tenant: order.tenant,
        before_ms,
        cancel_live: order.cancel_live,
        actor: Actor::new("admin", &order.actor),
    };
    let deleted = carry_out(&core, deletion).await;
    deleted
        .map(|deleted| json!(deleted).to_string())
        .map_err(|error| told(&error))
}
