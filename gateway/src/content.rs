//! Deletion of a tenant's content on request. The ledger stays, and so do rows and request keys.

use std::time::Duration;

use http::{Response, StatusCode};
use serde::Serialize;
use weir_ledger::{Actor, AuditLine};
use weir_protocol::error::ErrorCode;
use weir_run::RunId;
use weir_store::{Note, Purge, Scrub, Store};

use crate::clock::{now_ms, parse_rfc3339};
use crate::core::{CANCELLED, Core};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::json;
use crate::http::route::Call;

/// Rows looked at in one commit.
const AT_ONCE: usize = 256;
/// How long runs that are cancelled for it may take to end.
const END_WITHIN: Duration = Duration::from_secs(20);

/// Asks for a deletion.
#[derive(Clone, Debug)]
pub(crate) struct Deletion {
    pub(crate) tenant: String,
    /// Of runs accepted before this moment.
    pub(crate) before_ms: u64,
    /// Whether live runs of that time are cancelled first; they keep their content else.
    pub(crate) cancel_live: bool,
    pub(crate) actor: Actor,
}

/// What was deleted.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Deleted {
    /// Runs whose content is gone.
    pub(crate) runs: u64,
    /// Live runs, which keep theirs.
    pub(crate) live: u64,
    /// Files that are gone; those that a batch still reads stay.
    pub(crate) files: u64,
    /// Whether the store's files hold none of it any more.
    pub(crate) scrubbed: bool,
    /// Why not, and until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrubbed_later: Option<String>,
}

/// `DELETE /tenant/content`.
pub(crate) async fn delete(call: &Call) -> ApiResult<Response<Body>> {
    if !call.tenant.content_deletion {
        return Err(ApiError::new(
            ErrorCode::PriorityNotPermitted,
            "this tenant may not delete its content itself; `retention.deletion: Allowed` in its TenantQuota permits it",
        ));
    }
    let mut deletion = Deletion {
        tenant: call.tenant.name.clone(),
        before_ms: now_ms(),
        cancel_live: false,
        actor: Actor::new("tenant", &call.tenant.name),
    };
    for (name, text) in call.query(&["before", "cancelLive"])? {
        match (name.as_str(), text.as_str()) {
            ("before", _) => {
                deletion.before_ms = parse_rfc3339(&text).ok_or_else(|| {
                    ApiError::invalid(
                        "before",
                        "before must be a time like 2026-12-01T00:00:00.000Z",
                    )
                })?;
            }
            (_, "true") => deletion.cancel_live = true,
            (_, "false") => {}
            _ => {
                return Err(ApiError::invalid(
                    "cancelLive",
                    "cancelLive must be true or false",
                ));
            }
        }
    }
    let deleted = carry_out(&call.core, deletion).await?;
    Ok(json(StatusCode::OK, &deleted))
}

/// Deletes, scrubs, and leaves two lines in the audit log: what was asked for, and what came of it.
pub(crate) async fn carry_out(
    core: &std::sync::Arc<Core>,
    deletion: Deletion,
) -> ApiResult<Deleted> {
    let store = &*core.store;
    note(
        store,
        &deletion,
        "contentDeletionAsked",
        serde_json::Value::Null,
    )
    .await?;
    if deletion.cancel_live {
        cancel_live(core, &deletion).await?;
    }
    let mut deleted = Deleted::default();
    let mut after: Option<RunId> = None;
    loop {
        let purge = Purge {
            tenant: deletion.tenant.clone(),
            before_ms: deletion.before_ms,
            after,
            limit: AT_ONCE,
            now_ms: now_ms(),
        };
        let purged = store.purge(purge).await?;
        deleted.runs += purged.runs;
        deleted.live += purged.live;
        after = purged.next;
        if after.is_none() {
            break;
        }
    }
    deleted.files = crate::files::forget(store, &deletion.tenant, deletion.before_ms).await?;
    match store.scrub().await? {
        Scrub::Done => deleted.scrubbed = true,
        Scrub::Later(why) => deleted.scrubbed_later = Some(why),
    }
    note(
        store,
        &deletion,
        "contentDeleted",
        serde_json::json!(deleted),
    )
    .await?;
    Ok(deleted)
}

async fn note(
    store: &dyn Store,
    deletion: &Deletion,
    action: &str,
    came_of_it: serde_json::Value,
) -> ApiResult<()> {
    let now_ms = now_ms();
    let object = format!("TenantQuota {}", deletion.tenant);
    let before = weir_ledger::rfc3339(deletion.before_ms);
    let details = serde_json::json!({"before": before, "deleted": came_of_it});
    let line = AuditLine::new(now_ms, deletion.actor.clone(), action, &object).details(details);
    let note = Note {
        lines: vec![line.encode()],
        now_ms,
        ..Note::default()
    };
    store.note(note).await?;
    Ok(())
}

/// Cancels the tenant's live runs of that time and waits until they have ended.
async fn cancel_live(core: &std::sync::Arc<Core>, deletion: &Deletion) -> ApiResult<()> {
    let is_meant = |run: &weir_run::Run| {
        run.tenant == deletion.tenant && run.created_at_ms < deletion.before_ms
    };
    let until = tokio::time::Instant::now() + END_WITHIN;
    loop {
        let mut quieter = std::pin::pin!(core.quieter.notified());
        quieter.as_mut().enable();
        let open = core.store.open_runs().await?;
        let live: Vec<RunId> = open
            .iter()
            .filter(|open| is_meant(&open.run))
            .map(|open| open.run.id)
            .collect();
        if live.is_empty() {
            return Ok(());
        }
        for run in live {
            core.store.cancel(&deletion.tenant, run, now_ms()).await?;
            core.end_soon(run, CANCELLED);
        }
        if tokio::time::timeout_at(until, quieter).await.is_err() {
            return Ok(());
        }
    }
}
