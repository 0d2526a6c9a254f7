//! On a data folder that no gateway has open.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_ledger::{Actor, Chain, Page, encode_link};
use weir_store::{Engine, Repair, Store, StoreError};

/// Links read at a time.
const PAGE: usize = 1000;
/// Closing waits for nothing but a sync.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Opens the store of a data folder, with the engine that made it.
async fn open(data: &Path) -> Result<Arc<dyn Store>> {
    let folder = data.join("store");
    let engine = std::fs::read_to_string(folder.join("engine")).with_context(|| {
        format!(
            "{} holds no store; name the folder that `weir up` has as --data",
            data.display()
        )
    })?;
    let engine: Engine = engine.trim().parse().map_err(anyhow::Error::msg)?;
    let opening = tokio::task::spawn_blocking(move || weir_store::open(&folder, engine));
    match opening.await? {
        Err(error @ StoreError::Locked { .. }) => Err(error).context(
            "a gateway has the store open; stop it, or leave --data out to let it do the work itself",
        ),
        opened => Ok(opened?),
    }
}

/// The whole ledger of a tenant, as `GET /usage/ledger` gives it.
pub(super) async fn export(data: &Path, tenant: &str) -> Result<String> {
    let store = open(data).await?;
    let chain = Chain::Ledger(tenant.to_owned());
    let head = store.chain_head(chain.clone()).await?;
    let (mut text, mut after) = (String::new(), 0);
    loop {
        let links = store.chain(chain.clone(), after, PAGE).await?;
        let Some(last) = links.last() else { break };
        after = last.number;
        for link in &links {
            text.push_str(&String::from_utf8_lossy(&encode_link(link)));
            text.push('\n');
        }
    }
    let page = Page::of_chain(&chain, &head);
    text.push_str(&json!({ "page": page }).to_string());
    store.close(CLOSE_WITHIN).await?;
    Ok(text)
}

/// Repairs, and answers as the admin port does.
pub(super) async fn repair(data: &Path, tenant: &str, actor: &str, apply: bool) -> Result<Value> {
    let store = open(data).await?;
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let repair = Repair {
        tenant: tenant.to_owned(),
        actor: Actor::new("command", actor),
        apply,
        now_ms,
    };
    let repaired = store.repair(repair).await?;
    store.close(CLOSE_WITHIN).await?;
    Ok(json!({"changes": repaired.changes, "applied": repaired.applied}))
}
