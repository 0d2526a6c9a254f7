//! Figures as people and programs read them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{machine, target};

/// Which end of the values is good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Lower,
    Higher,
}

/// Measured values of one quantity.
pub(super) struct Figure<'a> {
    /// What was measured.
    pub(super) name: &'a str,
    /// Under which conditions.
    pub(super) setup: &'a str,
    pub(super) unit: &'a str,
    pub(super) better: Better,
    pub(super) values: Vec<f64>,
}

/// Prints figures and appends them to a file of JSON lines.
pub(super) struct Report {
    command: String,
    machine: Value,
    out: Option<File>,
    count: usize,
}

impl Report {
    pub(super) fn new(words: &[&str]) -> Self {
        Self {
            command: format!("cargo xtask bench {}", words.join(" ")),
            machine: machine::facts(),
            out: None,
            count: 0,
        }
    }

    pub(super) fn heading(&self) -> String {
        let machine = &self.machine;
        let text = |name: &str| machine[name].as_str().unwrap_or("unknown").to_owned();
        let (cpu, memory, kernel, commit) =
            (text("cpu"), text("memory"), text("kernel"), text("commit"));
        let cores = &machine["cores"];
        format!(
            "{cores} cores of {cpu}, {memory}, Linux {kernel}; commit {commit}\n{}",
            columns([
                "figure", "setup", "best", "median", "p95", "worst", "n", "load", "date"
            ])
        )
    }

    /// Appends from now on to target/bench/NAME.jsonl.
    pub(super) fn file(&mut self, name: &str) -> Result<()> {
        let folder = target().join("bench");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(format!("{name}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        self.out = Some(file.with_context(|| format!("cannot open {}", path.display()))?);
        Ok(())
    }

    pub(super) fn add(&mut self, figure: Figure<'_>) -> Result<()> {
        let Figure {
            name,
            setup,
            unit,
            better,
            mut values,
        } = figure;
        values.sort_by(f64::total_cmp);
        if better == Better::Higher {
            values.reverse();
        }
        let (load, date) = (machine::load(), Timestamp::now().to_string());
        let [best, median, p95, worst] = [0, 50, 95, 100].map(|percent| at(&values, percent));
        let line = json!({
            "figure": name, "setup": setup, "unit": unit, "best": best, "median": median, "p95": p95, "worst": worst, "n": values.len(),
            "load": load, "date": date, "machine": self.machine, "command": self.command,
        });
        if let Some(out) = &mut self.out {
            writeln!(out, "{line}").context("cannot write the figures")?;
        }
        // Of a single value there is no distribution.
        let is_single = values.len() == 1;
        let shown = |value: Option<f64>| {
            value.map_or_else(
                || "-".to_owned(),
                |value| format!("{} {unit}", short(value)),
            )
        };
        let (count, load) = (values.len().to_string(), format!("{load:.1}"));
        let minute = date.get(..16).unwrap_or_default();
        let cells = [
            name,
            setup,
            &shown(best.filter(|_| !is_single)),
            &shown(median),
            &shown(p95.filter(|_| !is_single)),
            &shown(worst.filter(|_| !is_single)),
            &count,
            &load,
            minute,
        ];
        println!("{}", columns(cells));
        self.count += 1;
        Ok(())
    }

    /// A single value.
    pub(super) fn one(&mut self, name: &str, setup: &str, unit: &str, value: f64) -> Result<()> {
        let values = vec![value];
        self.add(Figure {
            name,
            setup,
            unit,
            better: Better::Lower,
            values,
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// The value that this share of all values is at least as good as; `None` where nothing was measured.
fn at(sorted_best_first: &[f64], percent: usize) -> Option<f64> {
    let last = sorted_best_first.len().checked_sub(1)?;
    sorted_best_first
        .get((last * percent).div_ceil(100))
        .copied()
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn columns([name, setup, best, median, p95, worst, count, load, date]: [&str; 9]) -> String {
    format!(
        "| {name:<34} | {setup:<40} | {best:>14} | {median:>14} | {p95:>14} | {worst:>14} | {count:>5} | {load:>5} | {date:<16} |"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let cases: [(&[f64], usize, Option<f64>); 6] = [
            (&[], 50, None),
            (&[7.0], 95, Some(7.0)),
            (&[1.0, 2.0, 3.0], 50, Some(2.0)),
            (&[1.0, 2.0, 3.0], 95, Some(3.0)),
            (&hundred, 0, Some(1.0)),
            (&hundred, 95, Some(96.0)),
        ];
        for (values, percent, want) in cases {
            assert_eq!(at(values, percent), want, "{percent} of {values:?}");
        }
    }

    #[test]
    fn three_digits_are_shown() {
        assert_eq!([1.234, 12.34, 1234.5].map(short), ["1.23", "12.3", "1234"]);
    }
}
