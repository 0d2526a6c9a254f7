//! Responses and their headers.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;
use weir_protocol::error::ErrorBody;
use weir_run::RunId;

use super::body::Body;
use crate::error::ApiError;

/// Names the run of a response.
pub(crate) const X_RUN_ID: HeaderName = HeaderName::from_static("x-run-id");
/// The version that serves it.
pub(crate) const X_MODEL_VERSION: HeaderName = HeaderName::from_static("x-model-version");
/// Names the request, in logs too.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Whether a client that repeats on its own should.
pub(crate) const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const X_ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("response types serialize");
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(CACHE_CONTROL, NO_STORE);
    response
}

/// A stream that no proxy on the way may hold back or keep.
pub(crate) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENT_STREAM);
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

pub(crate) fn name_run(response: &mut Response<Body>, run: RunId, version: u32) {
    let headers = response.headers_mut();
    let id = HeaderValue::try_from(run.to_string()).expect("run ids are ASCII");
    headers.insert(X_RUN_ID, id);
    headers.insert(X_MODEL_VERSION, HeaderValue::from(version));
}

#[derive(Serialize)]
pub(crate) struct ErrorEnvelope<'a> {
    pub(crate) error: &'a ErrorBody,
}

pub(crate) fn error(error: &ApiError) -> Response<Body> {
    let body = error.body();
    let mut response = json(error.code().status(), &ErrorEnvelope { error: body });
    let headers = response.headers_mut();
    let retry = if error.is_retryable() {
        "true"
    } else {
        // OpenAI's clients repeat 409 and 429 on their own; where that cannot help they are told.
        "false"
    };
    headers.insert(X_SHOULD_RETRY, HeaderValue::from_static(retry));
    if let Ok(serde_json::Value::String(code)) = serde_json::to_value(error.code())
        && let Ok(code) = HeaderValue::try_from(code)
    {
        headers.insert(X_ERROR_CODE, code);
    }
    if let Some(wait_ms) = body.retry_after_ms {
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(wait_ms));
        headers.insert(RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1000)));
    }
    response
}
