//! What is kept of a response beside its run's events: what the client sent, as long as the events are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_protocol::error::ErrorCode;
use weir_run::{Run, RunId};
use weir_store::{RUN_SPACE, Store};

use crate::clock::{now_ms, rfc3339};
use crate::error::{ApiError, ApiResult};

/// A response's own part of its run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Input items, as the client sent them, without ids.
    pub(super) input: Vec<Value>,
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    #[serde(default)]
    pub(super) background: bool,
    /// Whether the client may ask for it again.
    #[serde(default)]
    pub(super) store: bool,
    pub(super) max_output_tokens: Option<u32>,
    /// Sampling as the client wrote it: shown again, never computed with.
    pub(super) temperature: Option<Value>,
    pub(super) top_p: Option<Value>,
    /// Alternatives shown for each token; none: no log-probabilities.
    pub(super) logprobs: Option<u32>,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) user: Option<String>,
    pub(super) safety_identifier: Option<String>,
    /// `text`, `tools` and `tool_choice`, as they are shown again.
    pub(super) shape: ShapeView,
}

/// How a response shows what was asked of its output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShapeView {
    pub(crate) text: Value,
    pub(crate) tools: Value,
    pub(crate) tool_choice: Value,
    pub(crate) parallel_tool_calls: bool,
}

impl Default for ShapeView {
    fn default() -> Self {
        Self {
            text: json!({"format": {"type": "text"}}),
            tools: json!([]),
            tool_choice: json!("auto"),
            parallel_tool_calls: true,
        }
    }
}

/// Kept in place of the record of a response that was deleted.
pub(super) const DELETED: &[u8] = b"deleted";

/// `resp_` and the run's own letters: the id of a response is the id of its run.
pub(crate) fn response_id(run: RunId) -> String {
    format!("resp_{}", bare(run))
}

/// The letters of a run's id.
pub(super) fn bare(run: RunId) -> String {
    let id = run.to_string();
    id.strip_prefix("run_").unwrap_or(&id).to_owned()
}

/// The run of a response.
pub(super) fn run_id(response: &str) -> Option<RunId> {
    let letters = response.strip_prefix("resp_")?;
    format!("run_{letters}").parse().ok()
}

/// A response of this tenant: its run and its record. What is no response, unknown or another tenant's is equally not there.
pub(super) async fn find(
    store: &dyn Store,
    tenant: &str,
    response: &str,
) -> ApiResult<(Run, Record)> {
    let id = run_id(response).ok_or_else(|| not_found(response))?;
    let run = store.run(tenant, id).await?;
    let run = run.ok_or_else(|| not_found(response))?;
    let kept = store.object(RUN_SPACE, tenant, &id.to_string()).await?;
    if kept.as_ref().is_some_and(|kept| &kept.data[..] == DELETED) {
        return Err(not_found(response));
    }
    let Some(kept) = kept else {
        // A native run has no record either, and is no response; one whose content is over says so.
        return Err(if run.events_expire_at_ms <= now_ms() {
            expired(&run)
        } else {
            not_found(response)
        });
    };
    let record: Record = serde_json::from_slice(&kept.data).map_err(|error| {
        tracing::error!(run = %id, %error, "the record of a response cannot be read");
        ApiError::new(
            ErrorCode::Internal,
            "the record of the response cannot be read",
        )
    })?;
    Ok((run, record))
}

pub(super) fn expired(run: &Run) -> ApiError {
    ApiError::new(
        ErrorCode::EventsExpired,
        format!(
            "the content of this response was kept until {}; GET /runs/{} still tells how it ended",
            rfc3339(run.events_expire_at_ms),
            run.id
        ),
    )
}

fn not_found(response: &str) -> ApiError {
    ApiError::new(
        ErrorCode::RunNotFound,
        format!("no such response {response:?}: it is unknown, was not stored, or was deleted"),
    )
    .param("response_id")
}
