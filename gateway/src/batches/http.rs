//! `/v1/batches`.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use weir_protocol::error::ErrorCode;
use weir_run::{Usage, payload_hash};
use weir_store::{Expect, ObjectRange, ObjectWrite, Store, Written};

use super::doc::{BATCHES, Batch, Counts, Endpoint, Lease, Progress, Status, Times, load, open};
use crate::clock::now_ms;
use crate::error::{ApiError, ApiResult};
use crate::files::{self, DEFAULT_LIFE_S, KEYS, LIFE_S, Marker, new_id, read, to_bytes};
use crate::http::body::Body;
use crate::http::json::{Fields, parse_object};
use crate::http::list::{self, Page};
use crate::http::reply::json;
use crate::http::route::Call;
use crate::native::read::metadata;
use crate::openai::idempotency_key;

/// Batches of one tenant that are not done.
const MAX_OPEN: usize = 64;
/// Longest time for a batch.
const MAX_WINDOW_S: u64 = 7 * 24 * 60 * 60;
const MAX_LIST: u64 = 100;
const DEFAULT_LIST: u64 = 20;
/// A request's key names its batch for so long.
const KEY_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// A request's key, and the batch it made.
#[derive(Serialize, Deserialize)]
struct Known {
    hash: [u8; 32],
    batch: String,
}

pub(crate) async fn create(mut call: Call) -> ApiResult<Response<Body>> {
    let bytes = call.read_body().await?;
    let body = parse_object(&bytes, call.core.config.json_depth)?;
    let hash = payload_hash(&serde_json::Value::Object(body.clone()));
    let batch = read_batch(&call.tenant.name, Fields::new(body))?;
    let key = idempotency_key(&call)?.map(|key| format!("batches/{key}"));
    let (store, tenant) = (&call.core.store, &call.tenant.name);
    if let Some(key) = &key
        && let Some(known) = known(&**store, tenant, key, hash).await?
    {
        return Ok(json(StatusCode::OK, &known.view()));
    }
    let file = files::find(&**store, tenant, &batch.input_file_id).await;
    let file = file.map_err(|error| error.param("input_file_id"))?;
    if file.purpose != files::Purpose::Batch {
        return Err(ApiError::invalid(
            "input_file_id",
            "the input of a batch is a file of purpose batch",
        ));
    }
    let waiting = open(&**store).await?;
    if waiting.iter().filter(|(_, owner)| owner == tenant).count() >= MAX_OPEN {
        return Err(ApiError::new(
            ErrorCode::ConcurrencyLimited,
            format!("{MAX_OPEN} batches of this tenant are not done; wait for one or cancel one"),
        )
        .retry_after_ms(30_000));
    }
    let mut writes = vec![batch.write(Expect::Absent), batch.list(true)];
    if let Some(name) = &key {
        let known = Known {
            hash,
            batch: batch.id.clone(),
        };
        writes.push(ObjectWrite {
            space: KEYS,
            owner: tenant.clone(),
            name: name.clone(),
            expect: Expect::Absent,
            data: Some(to_bytes(&known)),
        });
        writes.push(Marker::key(tenant, name).write(now_ms() + KEY_MS));
    }
    let written = store.write_objects(writes).await?;
    let batch = match (written, &key) {
        (Written::Done, _) => batch,
        // The same key came twice at once.
        (_, Some(key)) => known(&**store, tenant, key, hash)
            .await?
            .ok_or_else(|| ApiError::new(ErrorCode::Internal, "the batch could not be kept"))?,
        (_, None) => return Err(ApiError::new(ErrorCode::Internal, "the batch's id exists")),
    };
    call.core.batches.news.notify_one();
    Ok(json(StatusCode::OK, &batch.view()))
}

/// The batch that a key made, if the request is the same.
async fn known(
    store: &dyn Store,
    tenant: &str,
    key: &str,
    hash: [u8; 32],
) -> ApiResult<Option<Batch>> {
    let Some(found) = store.object(KEYS, tenant, key).await? else {
        return Ok(None);
    };
    let known: Known = read(&found)?;
    if known.hash != hash {
        return Err(ApiError::new(
            ErrorCode::RequestKeyConflict,
            format!(
                "this key belongs to {} with another request; use a new key for a new batch",
                known.batch
            ),
        )
        .param("idempotency-key"));
    }
    Ok(Some(load(store, tenant, &known.batch).await?.0))
}

fn read_batch(tenant: &str, mut fields: Fields) -> ApiResult<Batch> {
    let missing = |name: &str| ApiError::invalid(name, format!("`{name}` is missing"));
    let input = fields.string("input_file_id", 64)?;
    let path = fields
        .string("endpoint", 128)?
        .ok_or_else(|| missing("endpoint"))?;
    let endpoint = Endpoint::ALL.into_iter().find(|known| known.path() == path);
    let endpoint = endpoint.ok_or_else(|| {
        ApiError::new(
            ErrorCode::UnsupportedParameter,
            format!("batches of {path:?} are not served here; there are /v1/chat/completions, /v1/completions and /v1/responses"),
        )
        .param("endpoint")
    })?;
    let window = fields.string("completion_window", 16)?;
    let window = window.ok_or_else(|| missing("completion_window"))?;
    let window_s = seconds(&window).ok_or_else(|| {
        ApiError::invalid(
            "completion_window",
            "`completion_window` must be a time like 24h, 90m or 45s, at most 7d",
        )
    })?;
    let output_life_s = output_life(&mut fields)?;
    let metadata = metadata(&mut fields, "metadata")?;
    fields.done()?;
    let now = now_ms();
    Ok(Batch {
        id: new_id("batch_"),
        tenant: tenant.to_owned(),
        endpoint,
        input_file_id: input.ok_or_else(|| missing("input_file_id"))?,
        completion_window: window,
        output_life_s,
        metadata,
        created_at_ms: now,
        expires_at_ms: now + window_s * 1000,
        status: Status::Validating,
        times: Times::default(),
        counts: Counts::default(),
        usage: Usage::default(),
        faults: Vec::new(),
        output_file_id: None,
        error_file_id: None,
        progress: Progress::default(),
        lease: Lease::default(),
    })
}

fn output_life(fields: &mut Fields) -> ApiResult<u64> {
    let Some(mut after) = fields.object("output_expires_after")? else {
        return Ok(DEFAULT_LIFE_S);
    };
    if after.string("anchor", 32)?.as_deref() != Some("created_at") {
        return Err(ApiError::invalid(
            "output_expires_after.anchor",
            "`output_expires_after.anchor` must be created_at",
        ));
    }
    let seconds = after.integer("seconds", LIFE_S)?;
    after.done()?;
    Ok(seconds.unwrap_or(DEFAULT_LIFE_S))
}

/// `24h`, `90m`, `45s`, `2d`.
fn seconds(text: &str) -> Option<u64> {
    let unit = text.char_indices().next_back()?;
    let number: u64 = text.get(..unit.0)?.parse().ok()?;
    let one = match unit.1 {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let seconds = number.checked_mul(one)?;
    (1..=MAX_WINDOW_S).contains(&seconds).then_some(seconds)
}

pub(crate) async fn retrieve(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let (batch, _) = load(&*call.core.store, &call.tenant.name, id).await?;
    Ok(json(StatusCode::OK, &batch.view()))
}

pub(crate) async fn list(call: &Call) -> ApiResult<Response<Body>> {
    let page = Page::read(call, &[], DEFAULT_LIST, MAX_LIST)?;
    let (after, before) = page.bounds(page.after.as_deref().unwrap_or_default());
    let mut found = call
        .core
        .store
        .objects(ObjectRange {
            space: BATCHES,
            owner: call.tenant.name.clone(),
            after,
            before,
            descending: page.descending,
            limit: page.limit as usize + 1,
        })
        .await?;
    let more = found.len() as u64 > page.limit;
    found.truncate(page.limit as usize);
    let data = found
        .iter()
        .map(|object| read::<Batch>(object).map(|batch| batch.view()))
        .collect::<ApiResult<Vec<_>>>()?;
    Ok(list::answer(&data, more))
}

pub(crate) async fn cancel(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let core = Arc::clone(&call.core);
    loop {
        let (mut batch, version) = load(&*core.store, &call.tenant.name, id).await?;
        match batch.status {
            Status::Cancelling | Status::Cancelled => {
                return Ok(json(StatusCode::OK, &batch.view()));
            }
            Status::Validating | Status::InProgress => {}
            _ => {
                let word = serde_json::to_value(batch.status).unwrap_or_default();
                return Err(ApiError::invalid(
                    "batch_id",
                    format!("batch {id} is {word}: there is nothing left to cancel"),
                ));
            }
        }
        batch.status = Status::Cancelling;
        batch.times.cancelling = Some(now_ms());
        let write = batch.write(Expect::Version(version));
        if core.store.write_objects(vec![write]).await? == Written::Done {
            core.batches.news.notify_one();
            return Ok(json(StatusCode::OK, &batch.view()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_window_is_a_number_and_a_unit() {
        for (text, want) in [
            ("24h", Some(86_400)),
            ("45s", Some(45)),
            ("7d", Some(MAX_WINDOW_S)),
            ("8d", None),
            ("0s", None),
            ("h", None),
            ("", None),
            ("1ü", None),
            ("-1h", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(seconds(text), want, "{text}");
        }
    }
}
