//! How many rows per second one session carries, and what a step costs outside of the backend: the engine with a backend that costs
//! almost nothing, a Unix socket, and a gateway that acknowledges.
//!
//! `cargo run --release -p weir-worker --example session_rate -- [RUNS [SECONDS]]`
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a program for people; it shares the tests' backend and gateway"
)]

#[path = "../tests/it/fake.rs"]
mod fake;
#[path = "../tests/it/gateway.rs"]
mod gateway;
#[path = "../tests/it/harness.rs"]
mod harness;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_model::backend::BackendLimits;
use weir_protocol::worker::{Progress, progress, worker_frame::Frame};

use gateway::{Gateway, hello, submit};
use harness::{Options, TestWorker};

/// Rows a run may be ahead of its acknowledgement.
const AHEAD: u64 = 256;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u32>().unwrap());
    let runs = arguments.next().unwrap_or(64).min(255);
    let seconds = arguments.next().unwrap_or(5);
    let limits = BackendLimits {
        blocks: runs * 130,
        block_tokens: 16,
        max_running: runs,
        max_batch_tokens: 2048,
        context_tokens: 2048,
        kv_bytes: 1 << 30,
        max_drafts: u32::MAX,
        scores_prompts: false,
    };
    let worker = TestWorker::start_with(Options {
        limits,
        ..Options::default()
    })
    .await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut next = 0_u64;
    for _ in 0..runs {
        start(&gateway, &mut next).await;
    }
    let begin = Instant::now();
    let (mut rows, mut frames) = (0_u64, 0_u64);
    let mut seen: BTreeMap<bytes::Bytes, u64> = BTreeMap::new();
    while begin.elapsed() < Duration::from_secs(u64::from(seconds)) {
        let Some(Ok(Frame::Step(step))) = gateway.frame().await else {
            continue;
        };
        frames += 1;
        rows += step.rows.len() as u64;
        let mut behind = Vec::new();
        for row in &step.rows {
            let last = seen.entry(row.run.clone()).or_default();
            if row.run_finished || row.index >= *last + AHEAD / 4 {
                *last = row.index;
                let acknowledged = row.index + 1;
                behind.push(progress::Run {
                    run: row.run.clone(),
                    acknowledged,
                    credit: acknowledged + AHEAD,
                });
            }
            if row.run_finished {
                seen.remove(&row.run);
                start(&gateway, &mut next).await;
            }
        }
        if !behind.is_empty() {
            gateway.send(Progress { runs: behind }).await;
        }
    }
    let took = begin.elapsed().as_secs_f64();
    let status = gateway.status_where(|_| true).await;
    println!(
        "{runs} runs: {:.0} rows/s in {:.0} frames/s; step {} us",
        rows as f64 / took,
        frames as f64 / took,
        status.step_us_ewma
    );
    for line in worker.metrics.prometheus_text().lines() {
        if line.starts_with("weir_engine_step")
            && (line.contains("_sum") || line.contains("_count"))
        {
            println!("{line}");
        }
    }
}

/// A run of a thousand tokens under a new id.
async fn start(gateway: &Gateway, next: &mut u64) {
    *next += 1;
    let prompt = [1 + u32::try_from(*next % 200).unwrap(), 2, 3, 4];
    let mut frame = submit(0, &prompt, 1000);
    frame.run = [*next, 0].map(u64::to_le_bytes).concat().into();
    frame.credit = AHEAD;
    gateway.send(frame).await;
}
