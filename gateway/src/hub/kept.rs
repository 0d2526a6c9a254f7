//! Whether the events after a cursor are still there to be told.

use serde_json::json as value;
use weir_protocol::error::ErrorCode;
use weir_run::{Run, Sequence};

use crate::clock::{now_ms, rfc3339};
use crate::core::Core;
use crate::error::{ApiError, ApiResult};

/// Refuses a cursor whose next events are no longer kept, with the first one that is.
pub(crate) async fn check_kept(core: &Core, run: &Run, after: u64) -> ApiResult<()> {
    let may_be_gone = run.status.is_terminal()
        && run.events_expire_at_ms <= now_ms()
        && after < run.last_sequence.0;
    if !may_be_gone {
        return Ok(());
    }
    let store = &core.store;
    let next = store.events(run.id, Sequence(after), 1).await?;
    if next.first().is_some_and(|e| e.sequence.0 == after + 1) {
        return Ok(());
    }
    let first = match next.first() {
        Some(event) => Some(event.sequence),
        None => store
            .events(run.id, Sequence(0), 1)
            .await?
            .first()
            .map(|event| event.sequence),
    };
    Err(ApiError::new(
        ErrorCode::EventsExpired,
        format!(
            "events of this run were kept until {}; GET /runs/{} still tells how it ended",
            rfc3339(run.events_expire_at_ms),
            run.id
        ),
    )
    .param("after")
    .details(value!({"firstSequence": first, "lastSequence": run.last_sequence})))
}
