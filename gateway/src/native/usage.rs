//! `GET /usage`.

use http::{Response, StatusCode};
use serde::Serialize;
use weir_store::{BudgetWindow, ModelUsage};

use crate::clock::{now_ms, parse_rfc3339, rfc3339};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::json;
use crate::http::route::Call;
use crate::snapshot::Tenant;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageView<'a> {
    tenant: &'a str,
    windows: Vec<WindowView>,
    by_model: Vec<ModelView>,
    live_runs: u64,
    reconciled_at: String,
    consistent: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WindowView {
    period: String,
    start: String,
    end: String,
    limit_tokens: Option<u64>,
    used_tokens: u64,
    reserved_tokens: u64,
    available_tokens: Option<i64>,
    limit_micros: Option<u64>,
    used_micros: u64,
    reserved_micros: u64,
    available_micros: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ModelView {
    model: String,
    version: u32,
    runs: RunsView,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    cost_micros: u64,
}

#[derive(Serialize)]
struct RunsView {
    completed: u64,
    cancelled: u64,
    interrupted: u64,
    failed: u64,
    expired: u64,
}

pub(crate) async fn usage(call: &Call) -> ApiResult<Response<Body>> {
    let now = now_ms();
    let (mut from, mut to) = (0, now.saturating_add(1));
    for (name, text) in call.query(&["from", "to", "groupBy"])? {
        let time = || {
            parse_rfc3339(&text).ok_or_else(|| {
                ApiError::invalid(
                    &name,
                    format!("{name} must be a time like 2026-12-01T00:00:00.000Z"),
                )
            })
        };
        match name.as_str() {
            "from" => from = time()?,
            "to" => to = time()?,
            _ if text == "model" => {}
            _ => return Err(ApiError::invalid("groupBy", "groupBy can only be model")),
        }
    }
    let tenant = &*call.tenant;
    let periods = tenant.limits.windows.iter().map(|w| w.period_s).collect();
    let report = call
        .core
        .store
        .usage(&tenant.name, periods, from, to, now)
        .await?;
    let windows = report.budget.windows.iter();
    let view = UsageView {
        tenant: &tenant.name,
        windows: windows.map(|window| window_view(tenant, window)).collect(),
        by_model: by_model(report.by_model),
        live_runs: report.budget.live_runs,
        reconciled_at: rfc3339(now),
        consistent: report.consistent,
    };
    Ok(json(StatusCode::OK, &view))
}

fn window_view(tenant: &Tenant, window: &BudgetWindow) -> WindowView {
    let limit = tenant
        .limits
        .windows
        .iter()
        .find(|limit| limit.period_s == window.period_s);
    let limit_tokens = limit.and_then(|limit| limit.tokens);
    let limit_micros = limit.and_then(|limit| limit.micros);
    let end = window
        .start_ms
        .saturating_add(window.period_s.saturating_mul(1000));
    WindowView {
        period: period(window.period_s),
        start: rfc3339(window.start_ms),
        end: rfc3339(end),
        limit_tokens,
        used_tokens: window.used_tokens,
        reserved_tokens: window.reserved_tokens,
        available_tokens: available(limit_tokens, window.used_tokens, window.reserved_tokens),
        limit_micros,
        used_micros: window.used_micros,
        reserved_micros: window.reserved_micros,
        available_micros: available(limit_micros, window.used_micros, window.reserved_micros),
    }
}

/// Negative when a limit was lowered below what is in use.
fn available(limit: Option<u64>, used: u64, reserved: u64) -> Option<i64> {
    let left = i128::from(limit?) - i128::from(used) - i128::from(reserved);
    Some(i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX }))
}

/// Days added up.
fn by_model(days: Vec<ModelUsage>) -> Vec<ModelView> {
    let mut all: Vec<ModelView> = Vec::new();
    for day in days {
        let more = model_view(day);
        match all.last_mut() {
            Some(last) if last.model == more.model && last.version == more.version => {
                last.add(&more);
            }
            _ => all.push(more),
        }
    }
    all
}

impl ModelView {
    fn add(&mut self, more: &Self) {
        self.runs.completed += more.runs.completed;
        self.runs.cancelled += more.runs.cancelled;
        self.runs.interrupted += more.runs.interrupted;
        self.runs.failed += more.runs.failed;
        self.runs.expired += more.runs.expired;
        self.prompt_tokens += more.prompt_tokens;
        self.cached_tokens += more.cached_tokens;
        self.output_tokens += more.output_tokens;
        self.cost_micros += more.cost_micros;
    }
}

fn model_view(usage: ModelUsage) -> ModelView {
    let runs = usage.runs;
    ModelView {
        model: usage.model,
        version: usage.version,
        runs: RunsView {
            completed: runs.completed,
            cancelled: runs.cancelled,
            interrupted: runs.interrupted,
            failed: runs.failed,
            expired: runs.expired,
        },
        prompt_tokens: usage.usage.prompt_tokens,
        cached_tokens: usage.usage.cached_tokens,
        output_tokens: usage.usage.output_tokens,
        cost_micros: usage.usage.cost_micros,
    }
}

/// In the largest unit that gives a whole number, hours at most, as manifests write it.
fn period(seconds: u64) -> String {
    match seconds {
        s if s >= 3600 && s % 3600 == 0 => format!("{}h", s / 3600),
        s if s >= 60 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_is_exact_and_may_be_negative() {
        assert_eq!(available(None, 1, 2), None);
        assert_eq!(available(Some(10), 3, 2), Some(5));
        assert_eq!(available(Some(1), 3, 2), Some(-4));
        assert_eq!(available(Some(u64::MAX), 0, 0), Some(i64::MAX));
    }

    #[test]
    fn periods_read_as_manifests_write_them() {
        for (seconds, want) in [
            (86_400, "24h"),
            (3600, "1h"),
            (90, "90s"),
            (120, "2m"),
            (1, "1s"),
        ] {
            assert_eq!(period(seconds), want);
        }
    }
}
