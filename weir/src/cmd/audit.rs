//! `weir audit`: who changed what.

use anyhow::Result;
use clap::Parser;
use serde_json::Value;
use weir_ledger::{Line, parse_line};

use super::usage::{Output, verify};
use crate::client::Admin;
use crate::columns::table;

/// Show the audit log: who changed a limit, a price, a key, the trust policy or a rollout, deleted content, or repaired a budget, and which
/// budgets reached a threshold.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    admin: Admin,
    /// Only lines of this UTC day, such as 2026-11-29.
    #[arg(long)]
    day: Option<String>,
    /// Recompute the log's hash chain and name the first broken line.
    #[arg(long)]
    verify: bool,
    /// `json` prints the export as it is.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

/// Runs the command.
///
/// # Errors
/// Nothing answers, or the chain is broken.
pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let day = args
        .day
        .as_ref()
        .map_or(String::new(), |day| format!("day={day}&"));
    let text = runtime.block_on(args.admin.server().pages(&format!("/audit?{day}")))?;
    if args.output == Some(Output::Json) {
        print!("{text}");
    } else {
        print!("{}", lines(&text)?);
    }
    if args.verify {
        println!("{}", verify(&text)?);
    }
    Ok(())
}

fn lines(text: &str) -> Result<String> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let Line::Link(link) = parse_line(line)? else {
            continue;
        };
        let record: Value = serde_json::from_slice(&link.body).unwrap_or_default();
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let actor = format!(
            "{} {}",
            word(&record["actor"]["kind"]),
            word(&record["actor"]["name"])
        );
        rows.push(vec![
            link.number.to_string(),
            word(&record["at"]),
            actor.trim_end().to_owned(),
            word(&record["action"]),
            word(&record["object"]),
            what(&record),
        ]);
    }
    let head = ["NUMBER", "AT", "WHO", "ACTION", "OBJECT", "WHAT"].map(str::to_owned);
    Ok(table(&head, &rows))
}

/// Changes, else details, on one line.
fn what(record: &Value) -> String {
    let changes = record["changes"].as_array().into_iter().flatten();
    let changes: Vec<String> = changes
        .map(|change| {
            let field = change["field"].as_str().unwrap_or_default();
            format!("{field}: {} -> {}", change["old"], change["new"])
        })
        .collect();
    match (changes.is_empty(), &record["details"]) {
        (false, _) => changes.join("; "),
        (true, Value::Null) => String::new(),
        (true, details) => details.to_string(),
    }
}
