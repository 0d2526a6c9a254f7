//! Failures other engines had, by their issue numbers.

use weir_scheduler::{Config, Priority, Refused};

use crate::device::alone;
use crate::world::{Request, World, limits};

fn world(blocks: u32, running: u32) -> World {
    World::new(Config::new(
        limits(blocks, 4, running, 64),
        [1; 32],
        [1; 32],
    ))
}

/// A request whose output is not cut short by an end token.
fn request(group: u64, prompt: u32, max_output: u32) -> Request {
    let salted = |salt: u32| -> Vec<u32> {
        let seed = u32::try_from(group).unwrap() * 17 + salt * 7;
        (0..prompt)
            .map(|place| (seed + place * place) % 90)
            .collect()
    };
    let is_full = |prompt: &Vec<u32>| alone(prompt, max_output).len() == max_output as usize;
    let prompt = (0..1_000).map(salted).find(is_full).unwrap();
    Request {
        prompt,
        max_output,
        priority: Priority::Standard,
        scope: Some(1),
        adapter: None,
        group,
        uncached: false,
    }
}

/// vllm#16832, PR vllm-gaudi#524.
#[test]
fn a_preemption_at_any_step_changes_no_output() {
    for at in 0..30 {
        let mut world = world(32, 4);
        let victim = world.submit(request(1, 90, 20)).unwrap();
        let other = world.submit(request(2, 10, 12)).unwrap();
        for _ in 0..at {
            world.step();
        }
        world.scheduler.preempt(victim);
        world.step_with(|world| {
            world.scheduler.preempt(other);
        });
        world.finish(200);
    }
}

/// vllm#39734, vllm#42381, vllm#45414: 16 blocks of 4 hold 64 positions, and the last token is never written.
#[test]
fn what_can_never_fit_is_refused_at_once_and_the_queue_moves_on() {
    let mut world = world(16, 4);
    let fits = world.submit(request(1, 45, 20));
    let one_more = world.submit(request(2, 46, 20));
    let refused = Refused::TooLarge {
        blocks: 17,
        blocks_total: 16,
    };
    assert!(fits.is_ok());
    assert_eq!(one_more, Err(refused));
    world.submit(request(3, 4, 4)).unwrap();
    world.finish(100);
    let long = Request {
        prompt: vec![1; 1 << 20],
        ..request(4, 4, 1)
    };
    assert!(matches!(world.submit(long), Err(Refused::TooLong { .. })));
}

/// mistral.rs#1470, sglang#6778, PR sglang#14948.
#[test]
fn a_full_pool_always_lets_somebody_finish() {
    for rows in [1_u32, 2, 3, 8, 16] {
        let mut world = world(16, 16);
        let output = 64 - 8 + 1;
        for group in 1..=rows {
            let request = request(u64::from(group), 8, output);
            world.submit(request).unwrap();
        }
        // Each alone needs the whole pool: in the worst case they run one after the other, each computed anew a few times.
        world.finish(u64::from(rows * output) * 2 + 50);
        let preempted: Vec<u32> = world
            .records
            .values()
            .map(|record| record.preempted)
            .collect();
        assert_eq!(preempted[0], 0, "the oldest never gives way");
        let most = preempted.iter().max().copied().unwrap();
        assert!(most <= rows + 4, "{rows} rows: preempted {most} times");
    }
}

/// vllm#26400, pegainfer#215, colibri#908, PR vllm#35506, vllm#46283.
#[test]
fn an_abort_gives_back_blocks_at_once_wherever_it_finds_the_sequence() {
    for (name, steps, in_flight) in [
        ("waiting", 0, false),
        ("in the first chunk", 0, true),
        ("in prefill", 1, false),
        ("in the last chunk", 1, true),
        ("before the first decode", 2, false),
        ("in decode", 4, true),
    ] {
        let mut world = world(32, 4);
        let id = world.submit(request(1, 90, 20)).unwrap();
        for _ in 0..steps {
            world.step();
        }
        let check = |world: &mut World| {
            world.abort(id);
            let stats = world.scheduler.stats();
            assert_eq!(stats.blocks_referenced, 0, "{name}");
            assert!(world.scheduler.is_idle(), "{name}");
        };
        if in_flight {
            world.step_with(check);
        } else {
            check(&mut world);
        }
        // Aborted again, and after the end: no effect, no second end.
        world.abort(id);
        world.finish(1);
        assert!(!world.scheduler.finish(id), "{name}");
    }
}

/// sglang#26248: 14 times slower after a retraction, and for ever.
#[test]
fn throughput_recovers_after_preemptions() {
    let mut world = world(400, 16);
    let mut group = 1;
    let mut window = |world: &mut World| {
        let before: usize = world
            .records
            .values()
            .map(|record| record.output.len())
            .sum();
        for _ in 0..300 {
            while world.scheduler.stats().waiting[1] < 4 {
                world.submit(request(group, 20, 30)).unwrap();
                group += 1;
            }
            world.step();
        }
        let after: usize = world
            .records
            .values()
            .map(|record| record.output.len())
            .sum();
        after - before
    };
    let steady = window(&mut world);
    for _ in 0..3 {
        for id in world.live() {
            world.scheduler.preempt(id);
        }
        world.step();
    }
    let disturbed = window(&mut world);
    let recovered = window(&mut world);
    assert!(disturbed * 10 >= steady * 8, "{disturbed} after {steady}");
    assert!(recovered * 100 >= steady * 97, "{recovered} after {steady}");
}

/// A pool so small that growth preempts again and again must still be worth its steps.
#[test]
fn a_tight_pool_does_not_thrash() {
    let mut world = world(60, 16);
    for group in 1..=60 {
        world.submit(request(group, 16, 40)).unwrap();
    }
    world.finish(4_000);
    let made: u64 = world
        .records
        .values()
        .map(|record| record.output.len() as u64)
        .sum();
    let prompts = 60 * 16;
    let needed = made + prompts;
    let computed = world.device.computed_tokens;
    assert!(
        computed * 10 <= needed * 15,
        "{computed} tokens computed where {needed} were needed"
    );
}

/// A reader that never comes back keeps nobody from running.
#[test]
fn a_paused_sequence_gives_up_its_memory_when_others_need_it() {
    let mut world = world(16, 4);
    let slow = world.submit(request(1, 40, 20)).unwrap();
    world.step();
    world.scheduler.pause(slow);
    world.step();
    let other = world.submit(request(2, 40, 20)).unwrap();
    for _ in 0..30 {
        world.step();
    }
    assert!(world.records[&other].end_step.is_some());
    assert_eq!(world.records[&slow].preempted, 1);
    assert_eq!(world.scheduler.stats().paused, 1);
    world.scheduler.resume(slow);
    world.finish(100);
}
