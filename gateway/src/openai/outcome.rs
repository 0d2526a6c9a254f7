//! Runs that end short of completion, as errors of `OpenAI`'s API.

use http::{Response, StatusCode};
use serde::Serialize;
use weir_protocol::error::ErrorCode;
use weir_run::RunStatus;

use crate::core::SHED;
use crate::error::ApiError;
use crate::http::body::Body;
use crate::http::reply;

#[derive(Serialize)]
pub(super) struct Envelope<'a> {
    error: RunError<'a>,
}

#[derive(Serialize)]
struct RunError<'a> {
    message: String,
    r#type: &'static str,
    param: Option<()>,
    code: &'a str,
}

impl<'a> Envelope<'a> {
    /// How a run ended, or `lost` where the events cannot be read on.
    pub(super) fn new(code: &'a str, reason: &str) -> Self {
        Self {
            error: RunError {
                message: if reason.is_empty() {
                    format!("the run ended as {code}")
                } else {
                    format!("the run ended as {code}: {reason}")
                },
                r#type: "server_error",
                param: None,
                code,
            },
        }
    }
}

/// The answer to a call whose run did not complete. What it produced is in its events; a blind repeat would be billed again.
pub(super) fn ended(status: RunStatus, reason: &str) -> Response<Body> {
    if reason == SHED.reason {
        // Nothing was computed: a repeat costs nothing and may find room.
        let shed = ApiError::new(ErrorCode::Shed, reason).retry_after_ms(1000);
        return reply::error(&shed);
    }
    let http_status = match status {
        RunStatus::Expired => StatusCode::GATEWAY_TIMEOUT,
        RunStatus::Cancelled => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = reply::json(http_status, &Envelope::new(status.as_str(), reason));
    let no = http::HeaderValue::from_static("false");
    response.headers_mut().insert(reply::X_SHOULD_RETRY, no);
    response
}
