//! Usage in the words of the contract.

use serde::Serialize;
use serde_json::Value;
use weir_ledger::Day;
use weir_store::{BudgetWindow, ModelUsage, UsageReport};

use super::Group;
use crate::clock::rfc3339;
use crate::reconcile::{Checked, Found};
use crate::snapshot::Tenant;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageView {
    tenant: String,
    windows: Vec<WindowView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_model: Option<Vec<GroupView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_version: Option<Vec<GroupView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_day: Option<Vec<GroupView>>,
    live_runs: u64,
    reconciled_at: String,
    consistent: bool,
    /// What was compared beyond the account.
    checked: Checked,
    /// Where account, ledger and event log do not agree.
    differences: Vec<DifferenceView>,
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
struct GroupView {
    #[serde(skip_serializing_if = "Option::is_none")]
    day: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    runs: RunsView,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    cost_micros: u64,
    /// All that was billed, over the runs that completed: what a useful answer costs. None without one.
    cost_per_completed_run_micros: Option<u64>,
}

#[derive(Default, Serialize)]
struct RunsView {
    completed: u64,
    cancelled: u64,
    interrupted: u64,
    failed: u64,
    expired: u64,
}

#[derive(Serialize)]
struct DifferenceView {
    /// The run; none where the account is wrong.
    run: Option<String>,
    field: String,
    /// What the account, or the run's row and events, say.
    found: Value,
    /// What the ledger says.
    ledger: Value,
}

impl UsageView {
    pub(super) fn new(
        tenant: &Tenant,
        report: UsageReport,
        found: Found,
        group: Group,
        now_ms: u64,
    ) -> Self {
        let windows = report.budget.windows.iter();
        let windows = windows.map(|window| window_view(tenant, window)).collect();
        let of_account = report.differences.into_iter().map(|change| DifferenceView {
            run: None,
            field: change.field,
            found: change.old,
            ledger: change.new,
        });
        let of_runs = found
            .differences
            .into_iter()
            .map(|difference| DifferenceView {
                run: difference.run,
                field: difference.field,
                found: difference.found,
                ledger: difference.ledger,
            });
        let differences: Vec<DifferenceView> = of_account.chain(of_runs).collect();
        let groups = |wanted: Group| (wanted == group).then(|| grouped(&report.by_model, group));
        Self {
            tenant: tenant.name.clone(),
            windows,
            by_model: groups(Group::Model),
            by_version: groups(Group::Version),
            by_day: groups(Group::Day),
            live_runs: report.budget.live_runs,
            reconciled_at: rfc3339(now_ms),
            consistent: differences.is_empty(),
            checked: found.checked,
            differences,
        }
    }
}

fn window_view(tenant: &Tenant, window: &BudgetWindow) -> WindowView {
    let mut limits = tenant.limits.windows.iter();
    let limit = limits.find(|limit| limit.period_s == window.period_s);
    let limit_tokens = limit.and_then(|limit| limit.tokens);
    let limit_micros = limit.and_then(|limit| limit.micros);
    WindowView {
        period: period(window.period_s),
        start: rfc3339(window.start_ms),
        end: rfc3339(window.end_ms()),
        limit_tokens,
        used_tokens: window.used_tokens,
        reserved_tokens: window.reserved_tokens,
        available_tokens: limit_tokens.map(|limit| window.available_tokens(limit)),
        limit_micros,
        used_micros: window.used_micros,
        reserved_micros: window.reserved_micros,
        available_micros: limit_micros.map(|limit| window.available_micros(limit)),
    }
}

/// Rows come sorted by model, version and day.
fn grouped(rows: &[ModelUsage], group: Group) -> Vec<GroupView> {
    let mut rows: Vec<&ModelUsage> = rows.iter().collect();
    if group == Group::Day {
        rows.sort_by_key(|row| row.day);
    }
    let key = |row: &ModelUsage| match group {
        Group::Day => (Some(row.day), None),
        Group::Model | Group::Version => (None, Some((row.model.clone(), row.version))),
    };
    rows.chunk_by(|a, b| key(a) == key(b))
        .filter_map(|rows| Some(sum(key(rows.first()?), rows)))
        .collect()
}

fn sum((day, model): (Option<Day>, Option<(String, u32)>), rows: &[&ModelUsage]) -> GroupView {
    let add = |field: fn(&ModelUsage) -> u64| -> u64 { rows.iter().map(|row| field(row)).sum() };
    let (model, version) = model.unzip();
    let completed = add(|row| row.runs.completed);
    let cost_micros = add(|row| row.usage.cost_micros);
    GroupView {
        day: day.map(|day| day.to_string()),
        model,
        version,
        runs: RunsView {
            completed,
            cancelled: add(|row| row.runs.cancelled),
            interrupted: add(|row| row.runs.interrupted),
            failed: add(|row| row.runs.failed),
            expired: add(|row| row.runs.expired),
        },
        prompt_tokens: add(|row| row.usage.prompt_tokens),
        cached_tokens: add(|row| row.usage.cached_tokens),
        output_tokens: add(|row| row.usage.output_tokens),
        cost_micros,
        cost_per_completed_run_micros: cost_micros.checked_div(completed),
    }
}

/// In the largest unit that gives a whole number, hours at most, as manifests write it.
pub(crate) fn period(seconds: u64) -> String {
    match seconds {
        s if s >= 3600 && s % 3600 == 0 => format!("{}h", s / 3600),
        s if s >= 60 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use weir_run::Usage;
    use weir_store::RunCounts;

    use super::*;

    fn row(day: u32, version: u32, completed: u64, cost_micros: u64) -> ModelUsage {
        ModelUsage {
            day: Day(day),
            model: "tiny".to_owned(),
            version,
            runs: RunCounts {
                completed,
                ..RunCounts::default()
            },
            usage: Usage {
                cost_micros,
                ..Usage::default()
            },
        }
    }

    #[test]
    fn rows_add_up_by_version_or_by_day_with_the_cost_of_a_completed_run() {
        let rows = [row(7, 1, 2, 10), row(9, 1, 1, 20), row(7, 2, 0, 4)];
        let of = |group| -> Vec<(Option<u32>, u64, Option<u64>)> {
            let groups = grouped(&rows, group).into_iter();
            groups
                .map(|g| (g.version, g.cost_micros, g.cost_per_completed_run_micros))
                .collect()
        };
        assert_eq!(
            of(Group::Model),
            [(Some(1), 30, Some(10)), (Some(2), 4, None)]
        );
        assert_eq!(of(Group::Day), [(None, 14, Some(7)), (None, 20, Some(20))]);
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
