//! The error a request ends with, on its way to becoming a response.

use serde_json::Value;
use weir_protocol::error::{ErrorBody, ErrorCode};
use weir_store::StoreError;

/// One error for every failing request; boxed, because it is rare and wide.
#[derive(Debug, Clone)]
pub(crate) struct ApiError(Box<ErrorBody>, Retry);

/// Whether clients that repeat on their own should.
#[derive(Debug, Clone, Copy)]
enum Retry {
    /// As its code says.
    ByCode,
    /// Of this refusal more is known than its code says.
    Known(bool),
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorBody::new(code, message)), Retry::ByCode)
    }

    /// A parameter of the wrong shape or range; `message` says the remedy.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message).param(param)
    }

    pub(crate) fn run_not_found() -> Self {
        Self::new(
            ErrorCode::RunNotFound,
            "no such run; its id comes in `runId` and in the header x-run-id",
        )
    }

    pub(crate) fn param(mut self, param: impl Into<String>) -> Self {
        self.0.param = Some(param.into());
        self
    }

    pub(crate) fn retry_after_ms(mut self, wait_ms: u64) -> Self {
        self.0.retry_after_ms = Some(wait_ms);
        self
    }

    /// Says whether the same request may succeed later, where its code alone does not.
    pub(crate) fn should_retry(mut self, should_retry: bool) -> Self {
        self.1 = Retry::Known(should_retry);
        self
    }

    pub(crate) fn is_retryable(&self) -> bool {
        match self.1 {
            Retry::ByCode => self.0.code.is_retryable(),
            Retry::Known(should_retry) => should_retry,
        }
    }

    pub(crate) fn details(mut self, details: Value) -> Self {
        self.0.details = Some(details);
        self
    }

    /// Says that the limit is one of the key's, not of its tenant.
    pub(crate) fn of_key(mut self, key: &str) -> Self {
        let message = std::mem::take(&mut self.0.message);
        self.0.message = format!("limits of key {key:?}: {message}");
        self
    }

    pub(crate) fn code(&self) -> ErrorCode {
        self.0.code
    }

    pub(crate) fn body(&self) -> &ErrorBody {
        &self.0
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        // The cause may name files of this machine: it goes to the log, not to the client.
        tracing::error!(%error, "the store refused a request");
        let wait_ms = match error {
            StoreError::Busy { .. } => 50,
            _ => 1000,
        };
        let why = match error {
            StoreError::Full { .. } => {
                "the run store's disk is full; nothing was started, try again when there is space"
            }
            StoreError::Busy { .. } => "the run store is busy; nothing was started, try again",
            _ => "the run store does not answer; nothing was started, try again",
        };
        Self::new(ErrorCode::StoreUnavailable, why).retry_after_ms(wait_ms)
    }
}
