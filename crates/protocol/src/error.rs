//! The one error shape of the HTTP contract, in the form that OpenAI's clients understand.

use serde::{Deserialize, Serialize};

/// A stable code; clients branch on it. The HTTP status and the OpenAI error type follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The body or a parameter has the wrong shape or range.
    InvalidRequest,
    /// A parameter is known to OpenAI's API and not supported here.
    UnsupportedParameter,
    /// A policy refused the text.
    SafetyBlocked,
    /// No key, or a key nobody knows.
    Unauthenticated,
    /// The tenant may not use this model.
    ModelNotPermitted,
    /// The tenant may not use this quality tier.
    TierNotPermitted,
    /// The tenant may not ask for this priority.
    PriorityNotPermitted,
    /// No such model is served.
    ModelNotFound,
    /// No such run, or it belongs to someone else.
    RunNotFound,
    /// No such file, or it belongs to someone else.
    FileNotFound,
    /// No such batch, or it belongs to someone else.
    BatchNotFound,
    /// The conversation to be continued is not there.
    PreviousResponseNotFound,
    /// A path of `OpenAI`'s API that is not served here.
    UnsupportedEndpoint,
    /// No such path.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The request key was used with another payload.
    RequestKeyConflict,
    /// The events asked for are no longer kept.
    EventsExpired,
    /// The prompt does not fit the context or the tenant's cap.
    PromptTooLong,
    /// The output ceiling does not fit the context or the tenant's cap.
    OutputTooLong,
    /// The body is larger than the gateway reads.
    BodyTooLarge,
    /// The tenant's files would take more space than it has.
    StorageExceeded,
    /// The chat template refused the messages.
    TemplateError,
    /// The response schema cannot be used.
    SchemaError,
    /// A token or money window is used up.
    BudgetExceeded,
    /// Requests or tokens per minute are used up.
    RateLimited,
    /// Too many runs at once.
    ConcurrencyLimited,
    /// The tenant's share of KV memory is used up.
    KvShareExceeded,
    /// The queue is at its bound.
    QueueFull,
    /// More urgent runs came and took its place in the queue.
    Shed,
    /// The estimate says that the deadline or the maximum wait cannot be met.
    DeadlineUnmeetable,
    /// No worker can take the run.
    NoHealthyWorker,
    /// The store does not answer.
    StoreUnavailable,
    /// The gateway is shutting down.
    Draining,
    /// A fault of the gateway itself.
    Internal,
}

impl ErrorCode {
    /// All of them, in the order of their declaration.
    pub const ALL: &[Self] = &[
        Self::InvalidRequest,
        Self::UnsupportedParameter,
        Self::SafetyBlocked,
        Self::Unauthenticated,
        Self::ModelNotPermitted,
        Self::TierNotPermitted,
        Self::PriorityNotPermitted,
        Self::ModelNotFound,
        Self::RunNotFound,
        Self::FileNotFound,
        Self::BatchNotFound,
        Self::PreviousResponseNotFound,
        Self::UnsupportedEndpoint,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestKeyConflict,
        Self::EventsExpired,
        Self::PromptTooLong,
        Self::OutputTooLong,
        Self::BodyTooLarge,
        Self::StorageExceeded,
        Self::TemplateError,
        Self::SchemaError,
        Self::BudgetExceeded,
        Self::RateLimited,
        Self::ConcurrencyLimited,
        Self::KvShareExceeded,
        Self::QueueFull,
        Self::DeadlineUnmeetable,
        Self::NoHealthyWorker,
        Self::StoreUnavailable,
        Self::Draining,
        Self::Internal,
    ];

    /// The HTTP status of this code.
    pub fn status(self) -> http::StatusCode {
        use http::StatusCode as S;
        match self {
            Self::InvalidRequest
            | Self::UnsupportedParameter
            | Self::SafetyBlocked
            | Self::PreviousResponseNotFound => S::BAD_REQUEST,
            Self::Unauthenticated => S::UNAUTHORIZED,
            Self::ModelNotPermitted | Self::TierNotPermitted | Self::PriorityNotPermitted => {
                S::FORBIDDEN
            }
            Self::ModelNotFound
            | Self::RunNotFound
            | Self::FileNotFound
            | Self::BatchNotFound
            | Self::UnsupportedEndpoint
            | Self::NotFound => S::NOT_FOUND,
            Self::MethodNotAllowed => S::METHOD_NOT_ALLOWED,
            Self::RequestKeyConflict => S::CONFLICT,
            Self::EventsExpired => S::GONE,
            Self::PromptTooLong
            | Self::OutputTooLong
            | Self::BodyTooLarge
            | Self::StorageExceeded => S::PAYLOAD_TOO_LARGE,
            Self::TemplateError | Self::SchemaError => S::UNPROCESSABLE_ENTITY,
            Self::BudgetExceeded
            | Self::RateLimited
            | Self::ConcurrencyLimited
            | Self::KvShareExceeded
            | Self::QueueFull
            | Self::Shed
            | Self::DeadlineUnmeetable => S::TOO_MANY_REQUESTS,
            Self::NoHealthyWorker | Self::StoreUnavailable | Self::Draining => {
                S::SERVICE_UNAVAILABLE
            }
            Self::Internal => S::INTERNAL_SERVER_ERROR,
        }
    }

    /// The `type` member, as OpenAI's clients know it.
    pub fn openai_type(self) -> &'static str {
        match self.status().as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Whether the same request may succeed later without a change; sent as `x-should-retry`.
    ///
    /// A spent budget heals only with the next window, which is longer than any client's patience, so it is not retried.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::RateLimited
                | Self::ConcurrencyLimited
                | Self::KvShareExceeded
                | Self::QueueFull
                | Self::Shed
                | Self::NoHealthyWorker
                | Self::StoreUnavailable
                | Self::Draining
        )
    }
}

/// An error as clients see it, before it is wrapped in `{"error": …}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// OpenAI's error class.
    pub r#type: String,
    /// The stable code.
    pub code: ErrorCode,
    /// What, why, what to do.
    pub message: String,
    /// The parameter at fault, in dotted form.
    pub param: Option<String>,
    /// How long to wait before the same request may succeed, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Figures that a client can act on; an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

impl ErrorBody {
    /// An error with a code and a message and nothing else.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            r#type: code.openai_type().to_owned(),
            code,
            message: message.into(),
            param: None,
            retry_after_ms: None,
            details: None,
        }
    }

    /// Names the parameter at fault.
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Says how long to wait.
    pub fn retry_after_ms(mut self, wait_ms: u64) -> Self {
        self.retry_after_ms = Some(wait_ms);
        self
    }

    /// Adds figures that a client can act on.
    pub fn details(mut self, details: serde_json::Value) -> Self {
        self.details = Some(details);
        self
    }
}
