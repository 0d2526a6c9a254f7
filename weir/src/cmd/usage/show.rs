//! Usage as tables.

use std::fmt::Write as _;

use serde_json::Value;

use super::cell;
use crate::columns::table;

/// Windows, billed runs, and whether it all agrees.
pub(super) fn text(usage: &Value) -> String {
    let groups = ["byModel", "byVersion", "byDay"];
    let groups = groups.into_iter().find(|name| usage[*name].is_array());
    format!(
        "tenant {}\n\n{}\n{}\n{}",
        usage["tenant"].as_str().unwrap_or("?"),
        windows(&usage["windows"]),
        billed(&usage[groups.unwrap_or("byModel")]),
        agreement(usage),
    )
}

fn windows(windows: &Value) -> String {
    let rows = rows(windows, |window| {
        ["Tokens", "Micros"]
            .into_iter()
            .filter(|unit| !window[format!("limit{unit}")].is_null())
            .map(|unit| {
                let number = |what: &str| cell(&window[format!("{what}{unit}")]);
                vec![
                    cell(&window["period"]),
                    unit.to_lowercase(),
                    number("limit"),
                    number("used"),
                    number("reserved"),
                    number("available"),
                    cell(&window["end"]),
                ]
            })
            .collect()
    });
    let head = [
        "WINDOW",
        "UNIT",
        "LIMIT",
        "USED",
        "RESERVED",
        "AVAILABLE",
        "ENDS",
    ];
    table(&head.map(str::to_owned), &rows)
}

fn billed(groups: &Value) -> String {
    let rows = rows(groups, |group| {
        let name = group["model"].as_str().map_or_else(
            || cell(&group["day"]),
            |model| format!("{model}@{}", group["version"]),
        );
        let runs = &group["runs"];
        let others = ["cancelled", "interrupted", "failed", "expired"];
        let ended: u64 = others.iter().filter_map(|how| runs[*how].as_u64()).sum();
        vec![vec![
            name,
            cell(&runs["completed"]),
            ended.to_string(),
            cell(&group["promptTokens"]),
            cell(&group["cachedTokens"]),
            cell(&group["outputTokens"]),
            cell(&group["costMicros"]),
            cell(&group["costPerCompletedRunMicros"]),
        ]]
    });
    let head = [
        "BILLED",
        "COMPLETED",
        "OTHER",
        "PROMPT",
        "CACHED",
        "OUTPUT",
        "MICROS",
        "MICROS/COMPLETED",
    ];
    table(&head.map(str::to_owned), &rows)
}

fn agreement(usage: &Value) -> String {
    let checked = &usage["checked"];
    let word = if usage["consistent"] == true {
        "consistent"
    } else {
        "NOT CONSISTENT"
    };
    let scope = if checked["complete"] == true {
        "all"
    } else {
        "the newest"
    };
    let mut text = format!(
        "{word}: account, ledger and event log; {scope} {} records, {} rows and {} events compared\n",
        checked["records"], checked["runs"], checked["events"],
    );
    for difference in usage["differences"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "  {} {}: found {}, the ledger gives {}",
            difference["run"].as_str().unwrap_or("account"),
            cell(&difference["field"]),
            difference["found"],
            difference["ledger"]
        );
    }
    text
}

fn rows(list: &Value, of: impl Fn(&Value) -> Vec<Vec<String>>) -> Vec<Vec<String>> {
    list.as_array().into_iter().flatten().flat_map(of).collect()
}
