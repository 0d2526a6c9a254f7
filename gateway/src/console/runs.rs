//! Runs of a tenant, and the events of one.

use std::sync::Arc;

use http::request::Parts;
use serde_json::{Value, json};
use weir_run::{Run, RunId, Sequence};

use super::parameters;
use crate::auth::authenticate;
use crate::clock::now_ms;
use crate::core::Core;
use crate::error::{ApiError, ApiResult};

/// Runs that are shown at once.
const MOST_RUNS: usize = 100;
/// Runs that are looked through for the newest ones: more of them means a shorter time to look at.
const MOST_READ: usize = 20_000;
const PAGE: usize = 1_000;
/// How far back is looked where nothing is said.
const LOOK_BACK_S: u64 = 3_600;
const MOST_EVENTS: usize = 2_000;

fn given<'a>(all: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut of_name = all.iter().filter(|(given, _)| given == name);
    of_name.next().map(|(_, value)| value.as_str())
}

fn needed<'a>(all: &'a [(String, String)], name: &str) -> ApiResult<&'a str> {
    given(all, name).ok_or_else(|| ApiError::invalid(name, format!("give {name}=…")))
}

/// The first id of a moment: ids begin with their time.
fn first_id_of(at_ms: u64) -> RunId {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&at_ms.to_be_bytes()[2..]);
    RunId::from_bytes(bytes)
}

/// The newest runs of a tenant within a time, the newest first. No text.
pub(super) async fn runs(core: &Arc<Core>, parts: &Parts) -> ApiResult<String> {
    let asked = parameters(parts, &["tenant", "seconds"])?;
    let tenant = needed(&asked, "tenant")?;
    let seconds = match given(&asked, "seconds") {
        None => LOOK_BACK_S,
        Some(text) => text
            .parse()
            .map_err(|_| ApiError::invalid("seconds", "seconds must be a number"))?,
    };
    let mut after = first_id_of(now_ms().saturating_sub(seconds.saturating_mul(1_000)));
    let (mut newest, mut read) = (Vec::new(), 0);
    loop {
        let page = core.store.runs(tenant, Some(after), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.id;
        read += page.len();
        let is_last = page.len() < PAGE;
        newest.extend(page);
        let spare = newest.len().saturating_sub(MOST_RUNS);
        newest.drain(..spare);
        if is_last || read >= MOST_READ {
            break;
        }
    }
    let shown: Vec<Value> = newest.iter().rev().map(row).collect();
    Ok(json!({"tenant": tenant, "runs": shown, "read": read}).to_string())
}

fn row(run: &Run) -> Value {
    json!({
        "runId": run.id,
        "status": run.status.as_str(),
        "model": run.model,
        "version": run.model_version,
        "pool": run.pool,
        "worker": run.decision.worker,
        "promptTokens": run.prompt_tokens,
        "cachedTokens": run.cached_tokens,
        "outputTokens": run.output_tokens,
        "costMicros": run.cost_micros,
        "createdAtMs": run.created_at_ms,
        "startedAtMs": run.started_at_ms,
        "firstTokenAtMs": run.first_token_at_ms,
        "finishedAtMs": run.finished_at_ms,
        "finishReason": run.finish_reason,
    })
}

/// The retained events of a run, as far as there are not too many of them. Their text only with a key of the tenant.
pub(super) async fn events(core: &Arc<Core>, parts: &Parts) -> ApiResult<String> {
    let asked = parameters(parts, &["tenant", "run"])?;
    let tenant = needed(&asked, "tenant")?;
    let id: RunId = needed(&asked, "run")?
        .parse()
        .map_err(|_| ApiError::run_not_found())?;
    let may_read = if parts.headers.contains_key(http::header::AUTHORIZATION) {
        let caller = authenticate(core, &parts.headers).await?;
        if caller.name != tenant {
            return Err(ApiError::run_not_found());
        }
        true
    } else {
        false
    };
    let run = core.store.run(tenant, id).await?;
    let run = run.ok_or_else(ApiError::run_not_found)?;
    let events = core.store.events(id, Sequence(0), MOST_EVENTS).await?;
    let shown: Vec<Value> = events
        .iter()
        .map(|event| {
            let data: Value = serde_json::from_slice(&event.data).unwrap_or_default();
            let data = if may_read { data } else { shape(&data) };
            json!({"sequence": event.sequence, "kind": event.kind, "data": data})
        })
        .collect();
    Ok(json!({
        "run": row(&run),
        "events": shown,
        "hasText": may_read,
        "isCut": events.len() == MOST_EVENTS,
    })
    .to_string())
}

/// Fields of an event that hold no text of the tenant, by name: what is added later stays out until it is put here.
const HARMLESS: &[&str] = &[
    "choice",
    "finishReason",
    "choiceFinishReason",
    "modelVersion",
    "queueMs",
    "reservedTokens",
    "runId",
    "sequence",
    "status",
    "tokens",
    "type",
    "usage",
];

/// An event without what anybody wrote.
fn shape(data: &Value) -> Value {
    let Value::Object(fields) = data else {
        return Value::Null;
    };
    let harmless = |(name, _): &(&String, &Value)| HARMLESS.contains(&name.as_str());
    let kept = fields.iter().filter(harmless);
    let mut shape: serde_json::Map<String, Value> = kept
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(text) = fields.get("text").and_then(Value::as_str) {
        shape.insert("textChars".to_owned(), json!(text.chars().count()));
    }
    Value::Object(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_an_event_has_no_text() {
        let event = json!({
            "sequence": 3, "text": "sécret", "tokens": 1, "toolCalls": [{"arguments": "secret"}],
            "logprobs": [{"token": "secret"}], "reason": "it said secret", "later": "secret",
        });
        let shape = shape(&event);
        assert!(!shape.to_string().contains("cret"), "{shape}");
        assert_eq!(shape["textChars"], 6);
        assert_eq!(shape["tokens"], 1);
    }

    #[test]
    fn an_id_of_a_moment_is_before_all_ids_of_it() {
        let now = now_ms();
        let made = crate::clock::new_run_id();
        assert!(first_id_of(now) <= made, "{made}");
        assert!(first_id_of(now + 60_000) > made);
    }
}
