//! Refusals as clients read them: what, why, what to do, and the figures to do it with.

use serde_json::json;
use weir_admission::Refused;
use weir_budget::Refusal;
use weir_protocol::error::ErrorCode;
use weir_run::RunId;

use super::plan::Plan;
use super::request::RunRequest;
use crate::clock::{now_ms, rfc3339};
use crate::error::ApiError;
use crate::snapshot::Pool;

pub(crate) fn draining() -> ApiError {
    ApiError::new(
        ErrorCode::Draining,
        "this gateway is shutting down; try again, another one will answer",
    )
    .retry_after_ms(1000)
}

pub(super) fn conflict(other: RunId) -> ApiError {
    ApiError::new(
        ErrorCode::RequestKeyConflict,
        format!("this request key belongs to {other} with another payload; use a new key for a new request"),
    )
    .param("requestKey")
    .details(json!({"runId": other}))
}

pub(super) fn bad_replaces(why: &str) -> ApiError {
    ApiError::invalid(
        "replaces",
        format!("{why}; name a run of yours that has ended and was not replaced, or leave it out"),
    )
}

pub(super) fn no_worker(model: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NoHealthyWorker,
        format!("no worker that serves {model:?} is up at the moment; try again"),
    )
    .retry_after_ms(1000)
}

/// The line of a version takes no more, or not in time.
pub(super) fn line(refused: &Refused, request: &RunRequest, pool: &Pool) -> ApiError {
    match refused {
        Refused::QueueFull {
            depth,
            bound,
            estimate_ms,
        } => ApiError::new(
            ErrorCode::QueueFull,
            format!(
                "{depth} runs wait in pool {:?}, which is its bound; try again",
                pool.name
            ),
        )
        .retry_after_ms((*estimate_ms).clamp(100, 60_000))
        .details(json!({"queueDepth": depth, "maxQueueDepth": bound, "estimateMs": estimate_ms})),
        Refused::DeadlineUnmeetable { estimate_ms } => {
            let (what, param) = match request.deadline_ms {
                Some(_) => ("the run would not end before its deadline", "deadline"),
                None => (
                    "the run would not start within maxQueueMs and the pool's maxWait",
                    "maxQueueMs",
                ),
            };
            ApiError::new(
                ErrorCode::DeadlineUnmeetable,
                format!("{what}: the wait alone is estimated at {estimate_ms} ms; allow more time or ask for less"),
            )
            .param(param)
            .details(json!({"estimateMs": estimate_ms}))
        }
    }
}

/// A tenant's limit stands against the run.
pub(super) fn limit(refusal: &Refusal, plan: &Plan) -> ApiError {
    match refusal {
        Refusal::WindowTokens {
            available,
            needed,
            largest_output_tokens,
            window_end_ms,
            ..
        } => budget(plan, *largest_output_tokens, *window_end_ms, refusal)
            .details(json!({
                "availableTokens": available, "neededTokens": needed, "promptTokens": plan.prompt.len(),
                "largestMaxOutputTokens": largest_output_tokens / plan.choices, "windowEnd": rfc3339(*window_end_ms),
            })),
        Refusal::WindowMicros {
            available,
            needed,
            largest_output_tokens,
            window_end_ms,
            ..
        } => budget(plan, *largest_output_tokens, *window_end_ms, refusal)
            .details(json!({
                "availableMicros": available, "neededMicros": needed, "promptTokens": plan.prompt.len(),
                "largestMaxOutputTokens": largest_output_tokens / plan.choices, "windowEnd": rfc3339(*window_end_ms),
            })),
        Refusal::RequestRate { retry_after_ms, limit } => {
            ApiError::new(ErrorCode::RateLimited, format!("{refusal}; wait for the next minute"))
                .retry_after_ms(*retry_after_ms)
                .details(json!({"requestsPerMinute": limit}))
        }
        Refusal::TokenRate { retry_after_ms, limit, available, needed } => {
            ApiError::new(ErrorCode::RateLimited, format!("{refusal}; wait for the next minute or ask for less"))
                .retry_after_ms(*retry_after_ms)
                .details(json!({"tokensPerMinute": limit, "availableTokens": available, "neededTokens": needed}))
        }
        Refusal::Concurrency { limit } => ApiError::new(
            ErrorCode::ConcurrencyLimited,
            format!("{refusal}; wait for one to end or cancel one"),
        )
        .retry_after_ms(1000)
        .details(json!({"concurrentRuns": limit})),
        Refusal::KvShare { limit, held, needed } => ApiError::new(
            ErrorCode::KvShareExceeded,
            format!("{refusal}; wait for a run to end or ask for less"),
        )
        .retry_after_ms(1000)
        .details(json!({"kvTokens": limit, "heldTokens": held, "neededTokens": needed})),
        Refusal::Key { refusal, key } => limit(refusal, plan).of_key(key),
    }
}

fn budget(plan: &Plan, largest_over_all: u64, window_end_ms: u64, refusal: &Refusal) -> ApiError {
    let largest = largest_over_all / plan.choices;
    let remedy = if largest > 0 {
        format!("{} {largest} would fit", plan.max_output_param)
    } else {
        "not even the prompt fits".to_owned()
    };
    ApiError::new(
        ErrorCode::BudgetExceeded,
        format!(
            "{refusal}; {remedy}; the window ends {}",
            rfc3339(window_end_ms)
        ),
    )
    .param(plan.max_output_param)
    .retry_after_ms(window_end_ms.saturating_sub(now_ms()))
}
