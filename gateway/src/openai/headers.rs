//! What calls of `OpenAI`'s API have no field for comes in headers.

use serde_json::{Map, Value, json};
use weir_run::{RunId, payload_hash};

use crate::admit::parse_replaces;
use crate::error::{ApiError, ApiResult};
use crate::http::route::Call;
use crate::native::read::{MAX_KEY_BYTES, deadline, priority, request_key};
use crate::snapshot::Priority;

/// The headers that change what is run, or how.
pub(super) struct Headers {
    pub(super) request_key: Option<String>,
    pub(super) deadline_ms: Option<u64>,
    pub(super) max_queue_ms: Option<u64>,
    pub(super) priority: Option<Priority>,
    pub(super) allow_fallback: bool,
    pub(super) replaces: Option<RunId>,
}

impl Headers {
    pub(super) fn read(call: &Call) -> ApiResult<Self> {
        Ok(Self {
            request_key: idempotency_key(call)?,
            deadline_ms: header(call, "x-weir-deadline", deadline)?,
            max_queue_ms: header(call, "x-weir-max-queue-ms", number)?,
            priority: header(call, "x-weir-priority", priority)?,
            allow_fallback: header(call, "x-weir-allow-fallback", flag)?.unwrap_or(false),
            replaces: header(call, "x-weir-replaces", parse_replaces)?,
        })
    }
}

/// The client's name for this request.
pub(crate) fn idempotency_key(call: &Call) -> ApiResult<Option<String>> {
    let key = call.header("idempotency-key")?.map(str::to_owned);
    if key.as_ref().is_some_and(|key| key.len() > MAX_KEY_BYTES) {
        let what = format!("the header Idempotency-Key is longer than {MAX_KEY_BYTES} bytes");
        return Err(ApiError::invalid("idempotency-key", what));
    }
    request_key(key, "idempotency-key")
}

/// Over the body and the headers that change what is run; the deadline may differ between repeats.
pub(super) fn hash(call: &Call, name: &str, body: &Map<String, Value>) -> ApiResult<[u8; 32]> {
    let mut whole = json!({"call": name});
    whole["body"] = Value::Object(body.clone());
    for name in [
        "x-weir-priority",
        "x-weir-max-queue-ms",
        "x-weir-allow-fallback",
        "x-weir-replaces",
    ] {
        if let Some(text) = call.header(name)? {
            whole[name] = json!(text);
        }
    }
    Ok(payload_hash(&whole))
}

fn header<T>(
    call: &Call,
    name: &str,
    parse: impl Fn(&str, &str) -> ApiResult<T>,
) -> ApiResult<Option<T>> {
    call.header(name)?.map(|text| parse(text, name)).transpose()
}

fn number(text: &str, param: &str) -> ApiResult<u64> {
    text.parse()
        .map_err(|_| ApiError::invalid(param, format!("{param} must be a number of milliseconds")))
}

fn flag(text: &str, param: &str) -> ApiResult<bool> {
    text.parse()
        .map_err(|_| ApiError::invalid(param, format!("{param} must be true or false")))
}
