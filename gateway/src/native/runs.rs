//! `GET /runs/{id}`, `GET /runs/{id}/events`, `DELETE /runs/{id}`.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use serde::Serialize;
use weir_run::{Decision, FinishReason, Run, RunId, Sequence};
use weir_store::fault::point;

use crate::clock::{now_ms, rfc3339};
use crate::core::CANCELLED;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::{event_stream, json, name_run};
use crate::http::route::Call;
use crate::http::sse::{EventStream, Native};
use crate::hub::{EventSource, check_kept};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunView<'a> {
    run_id: RunId,
    status: &'static str,
    model: &'a str,
    model_version: u32,
    manifest_digest: &'a str,
    pool: &'a str,
    decision: &'a Decision,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    reserved_tokens: u64,
    cost_micros: Option<u64>,
    last_sequence: Sequence,
    created_at: String,
    started_at: Option<String>,
    first_token_at: Option<String>,
    finished_at: Option<String>,
    deadline: Option<String>,
    finish_reason: Option<FinishReason>,
    error: Option<&'a str>,
    replaces: Option<RunId>,
    replaced_by: Option<RunId>,
    events_expire_at: String,
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    verdicts: &'a [weir_run::Verdict],
    #[serde(skip_serializing_if = "Option::is_none")]
    request_key: Option<&'a str>,
}

fn view(run: &Run) -> RunView<'_> {
    RunView {
        run_id: run.id,
        status: run.status.as_str(),
        model: &run.model,
        model_version: run.model_version,
        manifest_digest: &run.manifest_digest,
        pool: &run.pool,
        decision: &run.decision,
        prompt_tokens: run.prompt_tokens,
        cached_tokens: run.cached_tokens,
        output_tokens: run.output_tokens,
        reserved_tokens: run.reserved_tokens,
        cost_micros: run.cost_micros,
        last_sequence: run.last_sequence,
        created_at: rfc3339(run.created_at_ms),
        started_at: run.started_at_ms.map(rfc3339),
        first_token_at: run.first_token_at_ms.map(rfc3339),
        finished_at: run.finished_at_ms.map(rfc3339),
        deadline: run.deadline_ms.map(rfc3339),
        finish_reason: run.finish_reason,
        error: run.error.as_deref(),
        replaces: run.replaces,
        replaced_by: run.replaced_by,
        events_expire_at: rfc3339(run.events_expire_at_ms),
        metadata: &run.metadata,
        caller: run.caller.as_deref(),
        verdicts: &run.verdicts,
        request_key: run.request_key.as_deref(),
    }
}

/// The run of this tenant; what is no id, unknown or another tenant's is equally not there.
async fn own_run(call: &Call, id: &str) -> ApiResult<Run> {
    let id: RunId = id.parse().map_err(|_| ApiError::run_not_found())?;
    let run = call.core.store.run(&call.tenant.name, id).await?;
    run.ok_or_else(ApiError::run_not_found)
}

pub(crate) async fn run(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let run = own_run(call, id).await?;
    Ok(named(&run, json(StatusCode::OK, &view(&run))))
}

pub(crate) async fn cancel(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let id: RunId = id.parse().map_err(|_| ApiError::run_not_found())?;
    let store = &call.core.store;
    point("cancel.asked");
    let run = store
        .cancel(&call.tenant.name, id, now_ms())
        .await?
        .ok_or_else(ApiError::run_not_found)?;
    if run.status.is_terminal() {
        return Ok(named(&run, json(StatusCode::OK, &view(&run))));
    }
    point("cancel.durable");
    call.core.end_soon(id, CANCELLED);
    point("cancel.sent");
    Ok(named(&run, json(StatusCode::ACCEPTED, &view(&run))))
}

pub(crate) async fn events(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    let after = after(call)?;
    let run = own_run(call, id).await?;
    let core = &call.core;
    check_kept(core, &run, after).await?;
    let source = EventSource::new(core, &run, after);
    let stream = if run.status.is_terminal() && after >= run.last_sequence.0 {
        Body::empty()
    } else {
        let silence = core.config.keep_alive;
        Body::stream(EventStream::new(source, Native, (), silence, &core.metrics))
    };
    Ok(named(&run, event_stream(stream)))
}

fn named(run: &Run, mut response: Response<Body>) -> Response<Body> {
    name_run(&mut response, run.id, run.model_version);
    response
}

/// The cursor: `after` of the query, else `Last-Event-ID`, else the beginning.
fn after(call: &Call) -> ApiResult<u64> {
    let number = |text: &str, param: &str| {
        text.parse::<u64>().map_err(|_| {
            ApiError::invalid(
                param,
                format!("{param} must be the number of an event, or 0"),
            )
        })
    };
    if let Some((name, text)) = call.query(&["after"])?.first() {
        return number(text, name);
    }
    match call.header("last-event-id")? {
        Some(text) if !text.is_empty() => number(text, "last-event-id"),
        _ => Ok(0),
    }
}
