//! Tables: one situation each, driven step by step.

use super::*;
use crate::{Limits, Row};

fn config(blocks: u32, running: u32, batch_tokens: u32) -> Config {
    let limits = Limits {
        blocks,
        block_tokens: 4,
        max_running: running,
        max_batch_tokens: batch_tokens,
        context_tokens: 4096,
    };
    Config {
        class_bounds: [8, 32],
        ..Config::new(limits, [7; 32], [9; 32])
    }
}

fn scheduler(blocks: u32, running: u32, batch_tokens: u32) -> Scheduler {
    Scheduler::new(config(blocks, running, batch_tokens)).unwrap()
}

/// Prompt tokens that differ between sequences.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|place| seed * 1000 + place).collect()
}

fn new(id: u64, tokens: &[u32], max_output: u32) -> NewSequence<'_> {
    NewSequence {
        id: SequenceId(id),
        tokens,
        max_output,
        priority: Priority::Standard,
        scope: Some([1; 32]),
        group: id,
    }
}

/// Plans and completes one step with tokens 1, 2, .. and returns its rows.
fn step(scheduler: &mut Scheduler) -> Vec<Row> {
    let rows = scheduler.plan().rows.clone();
    scheduler.check();
    let samples = rows.iter().filter(|row| row.samples).count();
    scheduler.complete((1..).take(samples), |_| Verdict::Continue);
    scheduler.check();
    rows
}

fn ids(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.sequence.0).collect()
}

#[test]
fn a_sequence_prefills_decodes_and_ends_by_itself() {
    let mut s = scheduler(8, 4, 16);
    s.submit(&new(1, &prompt(1, 6), 3)).unwrap();
    let rows = step(&mut s);
    assert_eq!(
        (rows.len(), rows[0].token_count, rows[0].samples),
        (1, 6, true)
    );
    let started = Event::Started {
        id: SequenceId(1),
        slot: crate::SlotId(0),
        cached_tokens: 0,
        resumed: false,
    };
    assert_eq!(s.events(), &[started]);
    assert_eq!(step(&mut s)[0].start, 6);
    let last = step(&mut s);
    assert_eq!((last[0].start, last[0].token_count), (7, 1));
    assert!(s.is_idle());
    assert!(step(&mut s).is_empty());
    let closed = Event::Closed {
        id: SequenceId(1),
        slot: crate::SlotId(0),
    };
    assert_eq!(s.events(), &[closed]);
    // KV tokens are prompt + outputs - 1 = 8: two full blocks stay cached.
    assert_eq!(s.stats().blocks_cached, 2);
}

#[test]
fn rows_of_a_batch_name_their_tokens_and_blocks() {
    let mut s = scheduler(8, 4, 16);
    s.submit(&new(1, &prompt(1, 5), 4)).unwrap();
    step(&mut s);
    s.submit(&new(2, &prompt(2, 3), 4)).unwrap();
    let batch = s.plan();
    assert_eq!((ids(&batch.rows), batch.decode_rows), (vec![1, 2], 1));
    assert_eq!(batch.row_tokens(&batch.rows[0]), &[1]);
    assert_eq!(batch.row_tokens(&batch.rows[1]), &[2000, 2001, 2002]);
    assert_eq!(batch.row_blocks(&batch.rows[0]).len(), 2);
    assert_eq!(batch.row_blocks(&batch.rows[1]).len(), 1);
}
