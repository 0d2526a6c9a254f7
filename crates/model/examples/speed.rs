//! Measures a model directory on the CPU: prefill and decode at several batch sizes, on tokens that mean nothing.
//! `cargo run --release -p weir-model --example speed -- DIR [THREADS [stored|int8|int4 [f32|bf16]]]`. The best of several rounds counts.
#![expect(clippy::print_stdout, reason = "an example speaks to a person")]

use std::error::Error;
use std::time::Instant;

use weir_model::backend::{Backend as _, NoMasks, SamplingParams};
use weir_model::quant::QuantKind;
use weir_model::{CpuBackend, CpuOptions, KvType, OpenFiles, WeightFormat, load_cpu};
use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

const PROMPT: u32 = 512;
const ROUNDS: u32 = 8;
const BLOCK_TOKENS: u32 = 16;

/// `rows` sequences, each with `count` tokens from `start` on.
fn batch(rows: u32, start: u32, count: u32) -> Batch {
    let blocks = (start + count).div_ceil(BLOCK_TOKENS);
    let mut batch = Batch {
        step: 1,
        ..Batch::default()
    };
    for slot in 0..rows {
        batch.rows.push(Row {
            sequence: SequenceId(slot.into()),
            slot: SlotId(slot),
            start,
            token_offset: slot * count,
            token_count: count,
            block_offset: slot * blocks,
            block_count: blocks,
            draft_count: 0,
            samples: true,
        });
        batch
            .tokens
            .extend((0..count).map(|at| (slot * 31 + at * 7) % 200));
        batch
            .blocks
            .extend((0..blocks).map(|block| BlockId(slot * 128 + block)));
    }
    batch
}

/// Seconds of the fastest round.
fn best(backend: &mut CpuBackend, batch: &Batch) -> Result<f64, Box<dyn Error>> {
    let mut sampled = Vec::new();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        backend.step(batch, &NoMasks, &mut sampled)?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: speed DIR [THREADS]")?;
    let threads = arguments.next().map_or(Ok(0), |threads| threads.parse())?;
    let weights = match arguments.next().as_deref() {
        None | Some("stored") => WeightFormat::Stored,
        Some("int8") => WeightFormat::Quantized(QuantKind::Int8),
        Some("int4") => WeightFormat::Quantized(QuantKind::Int4),
        Some(other) => return Err(format!("no weight format {other}").into()),
    };
    let kv_type = match arguments.next().as_deref() {
        None | Some("f32") => KvType::F32,
        Some("bf16") => KvType::Bf16,
        Some(other) => return Err(format!("no format of keys and values {other}").into()),
    };
    let files = OpenFiles::from_dir(dir.as_ref())?;
    let options = CpuOptions {
        threads,
        kv_bytes: 2 << 30,
        block_tokens: BLOCK_TOKENS,
        max_batch_tokens: PROMPT,
        kv_type,
        weights,
        ..CpuOptions::default()
    };
    let begin = Instant::now();
    let mut backend = load_cpu(&files, &options)?;
    println!("load: {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
    let params = SamplingParams {
        seed: 1,
        ..SamplingParams::greedy()
    };
    for slot in 0..16 {
        backend.open(SlotId(slot), &params, &[], &[]);
    }
    println!("{:?}", backend.level());
    let seconds = best(&mut backend, &batch(1, 0, PROMPT))?;
    println!(
        "prefill {PROMPT}: {:.1} ms, {:.0} tokens/s",
        seconds * 1e3,
        f64::from(PROMPT) / seconds
    );
    for start in [512, 1500] {
        let seconds = best(&mut backend, &batch(1, start, 1))?;
        println!(
            "decode 1 at {start}: {:.2} ms, {:.0} tokens/s",
            seconds * 1e3,
            1.0 / seconds
        );
    }
    for rows in [1, 2, 4, 8, 16] {
        let seconds = best(&mut backend, &batch(rows, 64, 1))?;
        println!(
            "decode {rows}: {:.2} ms, {:.0} tokens/s",
            seconds * 1e3,
            f64::from(rows) / seconds
        );
    }
    Ok(())
}
