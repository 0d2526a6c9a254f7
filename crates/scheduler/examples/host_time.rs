//! Host time of a scheduler step and allocations per step: `cargo run --release -p weir-scheduler --example host_time`.
//!
//! Goals: at most 50 us at 64 rows and 200 us at 256, and no allocation once warm. Exits with 1 when one is missed. Times are
//! the best of several rounds, because other work on the machine only ever adds.
#![expect(
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "a measurement needs a clock and prints what it found; the crate itself does neither"
)]

use std::process::ExitCode;
use std::time::Instant;

use weir_scheduler::{Config, Limits, NewSequence, Priority, Scheduler, SequenceId, Verdict};

#[path = "../tests/it/counting.rs"]
mod counting;

use counting::allocations;

/// Prompt and output tokens of every sequence.
const PROMPT: u32 = 512;
const OUTPUT: u32 = 256;
const ROUNDS: usize = 8;
const STEPS_PER_ROUND: u32 = 200;

struct Measured {
    mean_us: f64,
    worst_us: f64,
    allocations: u64,
    prefill_tokens: u64,
}

fn main() -> ExitCode {
    println!(
        "rows  mean us/step  worst us  allocations  prefill tokens  (best of {ROUNDS} rounds of {STEPS_PER_ROUND} steps)"
    );
    let mut missed = false;
    for (rows, goal_us) in [(1, 50.0), (64, 50.0), (256, 200.0)] {
        let measured = measure(rows);
        let Measured {
            mean_us,
            worst_us,
            allocations,
            prefill_tokens,
        } = measured;
        println!("{rows:4}  {mean_us:12.2}  {worst_us:8.2}  {allocations:11}  {prefill_tokens:14}");
        missed |= mean_us > goal_us || allocations > 0;
    }
    ExitCode::from(u8::from(missed))
}

/// Keeps `rows` sequences running, with a new one submitted whenever one ends, and measures `plan` and `complete`.
fn measure(rows: u32) -> Measured {
    let limits = Limits {
        blocks: rows * (PROMPT + OUTPUT).div_ceil(16) + 256,
        block_tokens: 16,
        max_running: rows,
        max_batch_tokens: rows + 1024,
        context_tokens: 8192,
    };
    let mut scheduler =
        Scheduler::new(Config::new(limits, [1; 32], [2; 32])).expect("the settings are valid");
    let mut load = Load {
        next_id: 0,
        prompt: vec![0; PROMPT as usize],
    };
    // Warm up: staggered, so that later some sequence ends every few steps.
    for step in 0..OUTPUT * 4 {
        if step % (OUTPUT / rows.min(OUTPUT)) == 0 {
            load.fill(&mut scheduler, rows);
        }
        run(&mut scheduler, None);
    }
    let mut best = Measured {
        mean_us: f64::MAX,
        worst_us: f64::MAX,
        allocations: 0,
        prefill_tokens: 0,
    };
    for _ in 0..ROUNDS {
        let mut times = Times::default();
        for _ in 0..STEPS_PER_ROUND {
            load.fill(&mut scheduler, rows);
            run(&mut scheduler, Some(&mut times));
        }
        best.mean_us = best
            .mean_us
            .min(times.total_us / f64::from(STEPS_PER_ROUND));
        best.worst_us = best.worst_us.min(times.worst_us);
        best.allocations += times.allocations;
        best.prefill_tokens += times.prefill_tokens;
    }
    best
}

struct Load {
    next_id: u64,
    prompt: Vec<u32>,
}

impl Load {
    /// Submits until `rows` sequences run or wait. Submitting is not a step: it is not measured.
    fn fill(&mut self, scheduler: &mut Scheduler, rows: u32) {
        let stats = scheduler.stats();
        let known = stats.running + stats.waiting.iter().sum::<u32>();
        for _ in known..rows {
            self.next_id += 1;
            // Half of each prompt is shared with every other one, as a system prompt is.
            for (place, token) in (0..).zip(&mut self.prompt) {
                let own = if place < PROMPT / 2 { 0 } else { self.next_id };
                *token = place ^ u32::try_from(own % 65_536).expect("below 2^16") << 8;
            }
            let new = NewSequence {
                id: SequenceId(self.next_id),
                tokens: &self.prompt,
                max_output: OUTPUT,
                priority: Priority::Standard,
                scope: Some([1; 32]),
                group: self.next_id,
                adapter: None,
                uncached: false,
            };
            scheduler.submit(&new).expect("it fits");
        }
    }
}

#[derive(Default)]
struct Times {
    total_us: f64,
    worst_us: f64,
    allocations: u64,
    prefill_tokens: u64,
}

fn run(scheduler: &mut Scheduler, times: Option<&mut Times>) {
    let (allocated, start) = (allocations(), Instant::now());
    let batch = scheduler.plan();
    let prefill = batch.tokens.len() as u64 - u64::from(batch.decode_rows);
    let samples = batch.rows.iter().filter(|row| row.samples).count();
    let step = u32::try_from(batch.step % 50_000).expect("below 2^32");
    scheduler.complete((0..samples).map(|_| step), |_| Verdict::Continue);
    let us = start.elapsed().as_secs_f64() * 1e6;
    if let Some(times) = times {
        times.total_us += us;
        times.worst_us = times.worst_us.max(us);
        times.allocations += allocations() - allocated;
        times.prefill_tokens += prefill;
    }
}
