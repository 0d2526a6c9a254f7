//! `weir top`: what pools and models are doing, at a glance.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

use crate::source::Where;

/// Show how busy pools are and where the traffic of each model goes.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// Show it again whenever it changes.
    #[arg(short, long)]
    watch: bool,
    /// Form of the output.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Everything, for programs.
    Json,
}

/// How often a watch looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// Nobody answers.
pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let source = args.place.open().await?;
        let mut last = String::new();
        loop {
            let objects = source.objects().await?;
            let text = match args.output {
                Some(Output::Json) => format!("{:#}\n", shown(&objects)),
                None => tables(&objects),
            };
            if text != last {
                print!("{}{text}", if last.is_empty() { "" } else { "\n" });
                last = text;
            }
            if !args.watch {
                return Ok(());
            }
            tokio::time::sleep(WATCH_EVERY).await;
        }
    })
}

fn of<'a>(objects: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = objects.as_array().into_iter().flatten();
    all.filter(move |object| object["kind"] == kind)
}

fn shown(objects: &Value) -> Value {
    let pools: Vec<Value> = of(objects, "GpuPool")
        .map(|pool| {
            let status = &pool["status"];
            json!({
                "pool": pool["metadata"]["name"], "replicas": status["replicas"], "ready": status["readyReplicas"],
                "kvPercent": status["kvOccupancy"]["percent"], "prefixHitPercent": status["prefixHitPercent"],
                "queueDepth": status["queueDepth"],
            })
        })
        .collect();
    let mut versions: Vec<Value> = of(objects, "ModelVersion")
        .map(|version| {
            let status = &version["status"];
            json!({
                "model": version["spec"]["model"], "version": version["spec"]["version"], "stage": status["stage"],
                "weightPercent": status["weightPercent"], "step": status["step"], "steps": status["steps"],
                "replicas": status["replicas"], "ready": status["readyReplicas"],
            })
        })
        .collect();
    versions.sort_by_key(|version| {
        let model = version["model"].as_str().unwrap_or_default().to_owned();
        (model, std::cmp::Reverse(version["version"].as_u64()))
    });
    json!({"pools": pools, "versions": versions})
}

fn tables(objects: &Value) -> String {
    let shown = shown(objects);
    let number = |value: &Value| {
        value
            .as_i64()
            .map_or_else(|| "-".to_owned(), |number| number.to_string())
    };
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut text = format!(
        "{:<24} {:>7} {:>5} {:>5} {:>6}\n",
        "POOL", "WORKERS", "KV%", "HIT%", "QUEUE"
    );
    for pool in shown["pools"].as_array().into_iter().flatten() {
        let workers = format!("{}/{}", number(&pool["ready"]), number(&pool["replicas"]));
        let _ = writeln!(
            text,
            "{:<24} {workers:>7} {:>5} {:>5} {:>6}",
            word(&pool["pool"]),
            number(&pool["kvPercent"]),
            number(&pool["prefixHitPercent"]),
            number(&pool["queueDepth"]),
        );
    }
    let _ = writeln!(
        text,
        "\n{:<24} {:>7} {:<11} {:>7} {:>5} {:>7}",
        "MODEL", "VERSION", "STAGE", "WEIGHT%", "STEP", "WORKERS"
    );
    for version in shown["versions"].as_array().into_iter().flatten() {
        let step = match (version["step"].as_i64(), version["steps"].as_i64()) {
            (Some(step), Some(steps)) => format!("{step}/{steps}"),
            _ => "-".to_owned(),
        };
        let workers = format!(
            "{}/{}",
            number(&version["ready"]),
            number(&version["replicas"])
        );
        let _ = writeln!(
            text,
            "{:<24} {:>7} {:<11} {:>7} {step:>5} {workers:>7}",
            word(&version["model"]),
            number(&version["version"]),
            word(&version["stage"]),
            number(&version["weightPercent"]),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_models_are_shown_with_what_is_known_of_them() {
        let objects = json!([
            {"kind": "GpuPool", "metadata": {"name": "small"}, "status": {"replicas": 2, "readyReplicas": 1, "kvOccupancy": {"percent": 40}, "queueDepth": 5}},
            {"kind": "ModelVersion", "spec": {"model": "m", "version": 1}, "status": {"stage": "Production", "weightPercent": 80, "replicas": 1, "readyReplicas": 1}},
            {"kind": "ModelVersion", "spec": {"model": "m", "version": 2}, "status": {"stage": "Canary", "weightPercent": 20, "step": 1, "steps": 2}},
        ]);
        let text = tables(&objects);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["small", "1/2", "40", "-", "5"]
        );
        assert_eq!(
            lines[4].split_whitespace().collect::<Vec<_>>(),
            ["m", "2", "Canary", "20", "1/2", "-/-"]
        );
        assert_eq!(
            lines[5].split_whitespace().collect::<Vec<_>>(),
            ["m", "1", "Production", "80", "-", "1/1"]
        );
    }
}
