//! Refusals as clients read them: what, why, what to do, and the figures to do it with.

use serde_json::json;
use weir_admission::Refused;
use weir_budget::Refusal;
use weir_protocol::error::ErrorCode;
use weir_run::RunId;

use super::plan::Plan;
use super::queue::Newcomer;
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
pub(super) fn line(refused: &Refused, newcomer: &Newcomer<'_>, pool: &Pool) -> ApiError {
    match *refused {
        Refused::QueueFull {
            depth,
            bound,
            estimate_ms,
        } => ApiError::new(
            ErrorCode::QueueFull,
            format!(
                "{depth} runs of this kind wait in pool {:?}, which is its bound; try again",
                pool.name
            ),
        )
        // Half of the queue is gone by then.
        .retry_after_ms((estimate_ms / 2).clamp(100, 60_000))
        .details(json!({"queueDepth": depth, "maxQueueDepth": bound, "estimateMs": estimate_ms})),
        Refused::DeadlineUnmeetable {
            estimate_ms,
            service_ms,
            is_late: true,
        } => ApiError::new(
            ErrorCode::DeadlineUnmeetable,
            format!("the run would not end before its deadline: it would wait about {estimate_ms} ms and take about {service_ms} ms; allow more time or ask for less"),
        )
        .param("deadline")
        .details(json!({"estimateMs": estimate_ms, "serviceMs": service_ms})),
        Refused::DeadlineUnmeetable {
            estimate_ms,
            service_ms,
            is_late: false,
        } => ApiError::new(
            ErrorCode::DeadlineUnmeetable,
            format!(
                "the run would not start within the {} ms that maxQueueMs and the pool's maxWait allow: it would wait about {estimate_ms} ms; allow more time or try again",
                newcomer.max_wait_ms
            ),
        )
        .param("maxQueueMs")
        // Without a deadline the same request is met once the queue is shorter.
        .should_retry(newcomer.deadline_in_ms.is_none())
        .retry_after_ms(estimate_ms.saturating_sub(newcomer.max_wait_ms).clamp(100, 60_000))
        .details(json!({"estimateMs": estimate_ms, "serviceMs": service_ms, "maxWaitMs": newcomer.max_wait_ms})),
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
                // More than a whole minute's worth fits no minute.
                .should_retry(needed <= limit)
                .details(json!({"tokensPerMinute": limit, "availableTokens": available, "neededTokens": needed}))
        }
        Refusal::Concurrency { limit } => ApiError::new(
            ErrorCode::ConcurrencyLimited,
            format!("{refusal}; wait for one to end or cancel one"),
        )
        .retry_after_ms(1000)
        .should_retry(*limit > 0)
        .details(json!({"concurrentRuns": limit})),
        Refusal::KvShare { limit, held, needed } => ApiError::new(
            ErrorCode::KvShareExceeded,
            format!("{refusal}; wait for a run to end or ask for less"),
        )
        .retry_after_ms(1000)
        .should_retry(needed <= limit && *limit > 0)
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
