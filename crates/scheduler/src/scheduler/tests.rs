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
        adapter: None,
        uncached: false,
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

#[test]
fn what_cannot_run_is_refused_with_a_reason() {
    let mut s = scheduler(8, 4, 16);
    let tokens = prompt(1, 8);
    s.submit(&new(1, &tokens, 4)).unwrap();
    let cases = [
        ("empty", new(2, &[], 4), Refused::EmptyPrompt),
        ("no output", new(2, &tokens, 0), Refused::NoOutput),
        (
            "one id twice",
            new(1, &tokens, 4),
            Refused::Duplicate { id: SequenceId(1) },
        ),
        (
            "one block too many",
            new(2, &tokens, 26),
            Refused::TooLarge {
                blocks: 9,
                blocks_total: 8,
            },
        ),
        (
            "longer than the context",
            new(2, &tokens, u32::MAX),
            Refused::TooLong {
                tokens: u64::from(u32::MAX) + 8,
                context_tokens: 4096,
            },
        ),
    ];
    for (name, given, want) in cases {
        assert_eq!(s.submit(&given), Err(want), "{name}");
    }
    // The longest that fits: the last token is never written.
    s.submit(&new(2, &tokens, 25)).unwrap();
    let mut full = Scheduler::new(Config {
        max_waiting: 1,
        ..config(8, 4, 16)
    })
    .unwrap();
    full.submit(&new(1, &tokens, 4)).unwrap();
    let refused = full.submit(&new(2, &tokens, 4));
    assert_eq!(refused, Err(Refused::QueueFull { bound: 1 }));
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let zero = Scheduler::new(config(0, 4, 16)).err();
    assert_eq!(zero, Some(ConfigError::Zero { field: "blocks" }));
    let small = Scheduler::new(config(8, 17, 16)).err();
    assert!(matches!(small, Some(ConfigError::BatchTooSmall { .. })));
    let unordered = Config {
        class_bounds: [9, 9],
        ..config(8, 4, 16)
    };
    let unordered = Scheduler::new(unordered).err();
    assert_eq!(unordered, Some(ConfigError::ClassesOutOfOrder));
}

#[test]
fn decode_rows_come_first_and_the_budget_is_never_exceeded() {
    let mut s = scheduler(100, 8, 12);
    for id in 1..=4 {
        s.submit(&new(id, &prompt(1, 3), 20)).unwrap();
    }
    step(&mut s);
    s.submit(&new(9, &prompt(9, 30), 4)).unwrap();
    let rows = step(&mut s);
    assert_eq!(ids(&rows), [1, 2, 3, 4, 9]);
    // 8 tokens are left, and the chunk ends at a block's edge.
    assert_eq!(rows[4].token_count, 8);
    s.set_step_budget(7);
    // 3 are left, which does not reach the next edge.
    assert_eq!(step(&mut s)[4].token_count, 3);
    s.set_step_budget(1);
    let rows = step(&mut s);
    assert_eq!(rows.len(), 5, "decodes in any case, prefill not starved");
    assert_eq!(rows[4].token_count, 1);
}

#[test]
fn priorities_go_in_order_and_equals_by_arrival() {
    let mut s = scheduler(100, 8, 8);
    let order = [
        (1, Priority::Batch),
        (2, Priority::Standard),
        (3, Priority::Interactive),
        (4, Priority::Interactive),
    ];
    for (id, priority) in order {
        let prompt = prompt(1, 8);
        let new = NewSequence {
            priority,
            scope: None,
            ..new(id, &prompt, 1)
        };
        s.submit(&new).unwrap();
    }
    let served: Vec<u64> = (0..4).flat_map(|_| ids(&step(&mut s))).collect();
    assert_eq!(served, [3, 4, 2, 1]);
}

#[test]
fn a_full_hit_leaves_one_token_to_compute() {
    let mut s = scheduler(32, 4, 32);
    for (id, cached) in [(1, 0), (2, 4), (3, 4)] {
        s.submit(&new(id, &prompt(1, 8), 1)).unwrap();
        let rows = step(&mut s);
        assert_eq!(rows[0].start, cached, "sequence {id}");
        assert!(rows[0].samples);
    }
    // With one more token the whole second block is a hit too.
    s.submit(&new(4, &prompt(1, 9), 1)).unwrap();
    assert_eq!(step(&mut s)[0].start, 8);
}

#[test]
fn tokens_of_an_ended_sequence_are_dropped() {
    let mut s = scheduler(32, 4, 32);
    s.submit(&new(1, &prompt(1, 5), 9)).unwrap();
    s.submit(&new(2, &prompt(2, 5), 9)).unwrap();
    s.plan();
    assert!(s.abort(SequenceId(1)));
    let mut seen = Vec::new();
    s.complete([70, 80], |outcome| {
        seen.push((outcome.id.0, outcome.token, outcome.sample_index));
        Verdict::Continue
    });
    assert_eq!(seen, [(2, 80, 1)]);
    s.check();
}

#[test]
fn the_slot_of_an_ended_sequence_closes_before_it_opens_again() {
    let mut s = scheduler(32, 1, 32);
    s.submit(&new(1, &prompt(1, 5), 9)).unwrap();
    s.submit(&new(2, &prompt(2, 5), 9)).unwrap();
    step(&mut s);
    s.finish(SequenceId(1));
    step(&mut s);
    let kinds: Vec<_> = s.events().iter().map(kind).collect();
    assert_eq!(kinds, [("closed", 1), ("started", 2)]);
}

#[test]
fn a_preempted_sequence_resumes_from_the_cache_with_its_output() {
    let mut s = scheduler(32, 4, 32);
    s.submit(&new(1, &prompt(1, 10), 9)).unwrap();
    for _ in 0..3 {
        step(&mut s);
    }
    assert!(s.preempt(SequenceId(1)));
    assert!(!s.preempt(SequenceId(1)), "it does not run");
    let rows = step(&mut s);
    let kinds: Vec<_> = s.events().iter().map(kind).collect();
    assert_eq!(kinds, [("preempted", 1), ("started", 1)]);
    // 10 + 3 tokens, of which 12 were written: three blocks.
    assert_eq!((rows[0].start, rows[0].token_count), (12, 1));
    let (_, output) = s.tokens(SequenceId(1)).unwrap();
    assert_eq!(output, [1, 1, 1, 1]);
}

#[test]
fn a_paused_sequence_has_no_rows_until_it_resumes() {
    let mut s = scheduler(32, 4, 32);
    for id in [1, 2] {
        s.submit(&new(id, &prompt(1, 5), 20)).unwrap();
    }
    step(&mut s);
    step(&mut s);
    assert!(s.pause(SequenceId(1)));
    s.submit(&new(3, &prompt(3, 5), 20)).unwrap();
    assert!(s.pause(SequenceId(3)), "before it started");
    assert_eq!(ids(&step(&mut s)), [2]);
    assert_eq!(s.stats().paused, 2);
    for id in [1, 3] {
        assert!(s.resume(SequenceId(id)));
        assert!(s.resume(SequenceId(id)), "again: no effect");
    }
    assert_eq!(ids(&step(&mut s)), [1, 2, 3]);
    assert!(!s.pause(SequenceId(9)) && !s.resume(SequenceId(9)));
}

#[test]
fn admission_stays_closed_for_some_steps_after_a_preemption_and_then_expects_more() {
    let mut s = Scheduler::new(Config {
        hysteresis_steps: 8,
        ..config(13, 4, 32)
    })
    .unwrap();
    for id in [1, 2] {
        s.submit(&new(id, &prompt(1, 8), 40)).unwrap();
    }
    let before = s.output_ratio;
    while s.stats().preemptions == 0 {
        step(&mut s);
    }
    assert_eq!(s.stats().waiting, [0, 1, 0], "the younger one gave way");
    assert!(s.output_ratio > before);
    let small = prompt(3, 2);
    let person = NewSequence {
        priority: Priority::Interactive,
        ..new(3, &small, 2)
    };
    s.submit(&person).unwrap();
    let closed = (0..100).take_while(|_| !ids(&step(&mut s)).contains(&3));
    assert_eq!(
        closed.count(),
        7,
        "the step of the preemption is the first of 8"
    );
}

#[test]
fn long_prompts_in_prefill_are_bounded_for_those_that_are_less_urgent() {
    let config = Config {
        aging_steps: 1,
        max_long_prefills: 2,
        ..config(1_000, 8, 32)
    };
    let urgent_first = [1, 2, 3];
    let urgent_last = [3, 2, 1];
    for (order, want) in [(urgent_first, 2), (urgent_last, 3)] {
        let mut s = Scheduler::new(config.clone()).unwrap();
        for id in order {
            let long = prompt(u32::try_from(id).unwrap(), 400);
            let new = NewSequence {
                priority: Priority::from_wire(u32::try_from(id).unwrap() - 1),
                ..new(id, &long, 4)
            };
            s.submit(&new).unwrap();
            for _ in 0..4 {
                step(&mut s);
            }
        }
        assert_eq!(s.stats().running, want, "{order:?}");
    }
}

#[test]
fn a_displaced_sequence_is_not_displaced_for_ever() {
    let mut s = scheduler(200, 1, 32);
    s.submit(&NewSequence {
        priority: Priority::Batch,
        ..new(1, &prompt(1, 8), 40)
    })
    .unwrap();
    let mut id = 1;
    while s.tokens(SequenceId(1)).is_some() {
        step(&mut s);
        // A person every eight steps, for four: the batch job runs in between.
        if s.step.is_multiple_of(8) {
            id += 1;
            let short = prompt(2, 8);
            let person = NewSequence {
                priority: Priority::Interactive,
                ..new(id, &short, 4)
            };
            s.submit(&person).unwrap();
        }
        assert!(s.step < 3_000, "starved");
    }
    assert_eq!(s.stats().preemptions, 4, "two for each level");
}

#[test]
fn of_an_ended_sequence_the_tail_is_evicted_first() {
    let mut s = scheduler(8, 4, 64);
    s.submit(&new(1, &prompt(1, 24), 1)).unwrap();
    step(&mut s);
    assert_eq!(s.stats().blocks_cached, 6);
    // Takes the two free blocks and three cached ones.
    s.submit(&new(2, &prompt(2, 20), 1)).unwrap();
    step(&mut s);
    s.submit(&new(3, &prompt(1, 24), 1)).unwrap();
    assert_eq!(step(&mut s)[0].start, 12, "three blocks are left");
}

#[test]
fn a_paused_sequence_gives_way_first_and_costs_nobody_its_turn() {
    let mut s = scheduler(9, 4, 64);
    for id in 1..=4 {
        let own = prompt(u32::try_from(id).unwrap(), 7);
        s.submit(&new(id, &own, 5)).unwrap();
    }
    step(&mut s);
    s.pause(SequenceId(1));
    step(&mut s);
    // All three are at position 8 now and need a third block; one is free.
    assert_eq!(ids(&step(&mut s)), [2, 3, 4]);
    let kinds: Vec<_> = s.events().iter().map(kind).collect();
    assert_eq!(kinds, [("preempted", 1)]);
}

#[test]
fn stats_count_what_is_there() {
    let mut s = scheduler(32, 2, 12);
    for (id, len) in [(1, 8), (2, 20), (3, 5)] {
        s.submit(&new(id, &prompt(u32::try_from(id).unwrap(), len), 4))
            .unwrap();
    }
    assert_eq!(s.stats().prefill_tokens_waiting, 33);
    step(&mut s);
    let stats = s.stats();
    assert_eq!(stats.running + stats.waiting[1], 3);
    assert_eq!(stats.kv_tokens + stats.prefill_tokens_waiting, 33);
    assert_eq!(
        stats.blocks_free + stats.blocks_cached + stats.blocks_referenced,
        stats.blocks_total
    );
}

#[test]
#[should_panic(expected = "was planned and not completed")]
fn a_step_is_not_planned_over_another() {
    let mut s = scheduler(32, 2, 12);
    s.submit(&new(1, &prompt(1, 4), 4)).unwrap();
    s.plan();
    s.plan();
}

fn kind(event: &Event) -> (&'static str, u64) {
    match event {
        Event::Started { id, .. } => ("started", id.0),
        Event::Preempted { id, .. } => ("preempted", id.0),
        Event::Closed { id, .. } => ("closed", id.0),
    }
}
