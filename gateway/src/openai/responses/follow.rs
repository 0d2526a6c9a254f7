//! `GET /v1/responses/{id}`, its input items, its cancellation and its deletion.

use std::time::Duration;

use http::{Response, StatusCode};
use serde_json::{Value, json as value};
use weir_run::{Run, RunId, RunStatus};
use weir_store::{Expect, ObjectWrite, Purge, RUN_SPACE};

use super::events::Events;
use super::input::tell;
use super::read::LOGPROBS;
use super::record::{DELETED, bare, find};
use super::story::Story;
use crate::clock::now_ms;
use crate::core::CANCELLED;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::list::{self, Page};
use crate::http::reply::{event_stream, json, name_run};
use crate::http::route::Call;
use crate::http::sse::EventStream;
use crate::hub::EventSource;

/// How long a cancellation waits for the run's end before it answers with what is known.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);
/// Most input items of one answer, as `OpenAI` has it.
const MAX_ITEMS: u64 = 100;

/// When a completed response ended, in seconds.
pub(super) fn completed_at(run: &Run) -> Option<u64> {
    let completed = run.status == RunStatus::Completed;
    run.finished_at_ms.filter(|_| completed).map(|ms| ms / 1000)
}

pub(crate) async fn retrieve(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    let query = call.query(&[
        "stream",
        "starting_after",
        "include",
        "include[]",
        "include_obfuscation",
    ])?;
    let one = |name: &str| {
        let found = query.iter().find(|(given, _)| given == name);
        found.map(|(_, text)| text.as_str())
    };
    if let Some(other) = one("include").or(one("include[]"))
        && other != LOGPROBS
    {
        return Err(ApiError::invalid(
            "include",
            format!("`include` of {other:?} is not supported here; there is {LOGPROBS:?}"),
        ));
    }
    let stream = match one("stream") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => {
            return Err(ApiError::invalid(
                "stream",
                "`stream` must be true or false",
            ));
        }
    };
    let after = one("starting_after")
        .map(|text| {
            text.parse::<u64>().map_err(|_| {
                ApiError::invalid(
                    "starting_after",
                    "`starting_after` must be a sequence_number",
                )
            })
        })
        .transpose()?;
    if after.is_some() && !stream {
        return Err(ApiError::invalid(
            "starting_after",
            "`starting_after` needs `stream=true`",
        ));
    }
    let (run, record) = find(&*call.core.store, &call.tenant.name, id).await?;
    let mut response = if stream {
        // Events are told from the first, whatever the client has: a run whose first event is gone is found out here.
        if run.status.is_terminal() {
            tell(&*call.core.store, &run, record.clone()).await?;
        }
        let core = &call.core;
        let events = EventSource::new(core, &run, 0);
        let shape = Events::new(Story::of(&run, record), after);
        let silence = core.config.keep_alive;
        let stream = EventStream::new(events, shape, (), silence, &core.metrics);
        event_stream(Body::stream(stream))
    } else {
        show(call, &run, record).await?
    };
    name_run(&mut response, run.id, run.model_version);
    Ok(response)
}

async fn show(call: &Call, run: &Run, record: super::record::Record) -> ApiResult<Response<Body>> {
    let story = tell(&*call.core.store, run, record).await?;
    let completed_at = completed_at(run);
    Ok(json(
        StatusCode::OK,
        &story.view(story.word(), completed_at),
    ))
}

pub(crate) async fn cancel(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let core = &call.core;
    let tenant = &call.tenant.name;
    let (run, record) = find(&*core.store, tenant, id).await?;
    let run = end(call, run).await?;
    let mut response = show(call, &run, record).await?;
    name_run(&mut response, run.id, run.model_version);
    Ok(response)
}

/// Cancels the run if it is not over, and waits a while for its end.
async fn end(call: &Call, run: Run) -> ApiResult<Run> {
    let (core, tenant) = (&call.core, &call.tenant.name);
    let cancelled = core.store.cancel(tenant, run.id, now_ms()).await?;
    let run = cancelled.unwrap_or(run);
    if run.status.is_terminal() {
        return Ok(run);
    }
    let after = run.last_sequence.0;
    let mut events = EventSource::new(core, &run, after);
    core.end_soon(run.id, CANCELLED);
    let ended = async { while events.next().await.is_some_and(|frame| frame.is_ok()) {} };
    tokio::time::timeout(CANCEL_WITHIN, ended).await.ok();
    Ok(core.store.run(tenant, run.id).await?.unwrap_or(run))
}

pub(crate) async fn input_items(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    let page = Page::read(call, &["include", "include[]"], 20, MAX_ITEMS)?;
    let (run, record) = find(&*call.core.store, &call.tenant.name, id).await?;
    let mut items: Vec<Value> = record
        .input
        .iter()
        .enumerate()
        .map(|(place, item)| shown_item(&run, place, item))
        .collect();
    if page.descending {
        items.reverse();
    }
    if let Some(after) = &page.after {
        let place = items.iter().position(|item| item["id"] == *after);
        let place = place.ok_or_else(|| {
            ApiError::invalid("after", format!("`after` names no input item: {after:?}"))
        })?;
        items.drain(..=place);
    }
    let more = items.len() as u64 > page.limit;
    items.truncate(page.limit as usize);
    Ok(list::answer(&items, more))
}

/// An input item with what every item has when it is listed.
fn shown_item(run: &Run, place: usize, item: &Value) -> Value {
    let mut item = item.clone();
    if item["type"].is_null() {
        item["type"] = "message".into();
    }
    if item["id"].is_null() {
        item["id"] = format!("msg_{}_{place}", bare(run.id)).into();
    }
    if item["type"] == "message" {
        if item["status"].is_null() {
            item["status"] = "completed".into();
        }
        if let Value::String(text) = &item["content"] {
            let kind = if item["role"] == "assistant" {
                "output_text"
            } else {
                "input_text"
            };
            item["content"] = value!([{"type": kind, "text": text}]);
        }
    }
    item
}

/// The content goes, events and all; the run's row and its bill stay.
pub(crate) async fn delete(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let (store, tenant) = (&call.core.store, &call.tenant.name);
    let (run, _) = find(&**store, tenant, id).await?;
    // Nobody will ask for what it would still say.
    let run = end(call, run).await?;
    let before = u128::from_be_bytes(run.id.to_bytes()).saturating_sub(1);
    store
        .purge(Purge {
            tenant: tenant.clone(),
            before_ms: u64::MAX,
            after: Some(RunId::from_bytes(before.to_be_bytes())),
            limit: 1,
            now_ms: now_ms(),
        })
        .await?;
    // What was deleted is told from what has expired, until it would have.
    store
        .write_objects(vec![ObjectWrite {
            space: RUN_SPACE,
            owner: tenant.clone(),
            name: run.id.to_string(),
            expect: Expect::Any,
            data: Some(DELETED.into()),
        }])
        .await?;
    let deleted = value!({"id": id, "object": "response", "deleted": true});
    Ok(json(StatusCode::OK, &deleted))
}
