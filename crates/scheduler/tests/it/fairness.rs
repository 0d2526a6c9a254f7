//! Nobody starves: not a short prompt beside long ones, not a long one beside short ones, not a batch job beside people.

use weir_scheduler::{Config, Mode, Priority, SequenceId};

use crate::world::{Request, World, limits};

/// A request without an end token in its output, so that its length is known; prompts of different groups share nothing.
fn request(group: u64, prompt: u32, max_output: u32, priority: Priority) -> Request {
    for salt in 0.. {
        let prompt: Vec<u32> = (0..prompt)
            .map(|place| {
                let token = crate::random::mix(group << 32 | u64::from(place) << 8 | salt) % 90;
                u32::try_from(token).unwrap()
            })
            .collect();
        if crate::device::alone(&prompt, max_output).len() == max_output as usize {
            return Request {
                prompt,
                max_output,
                priority,
                scope: Some(1),
                adapter: None,
                group,
                uncached: false,
            };
        }
    }
    unreachable!("some salt gives a full output");
}

fn world(blocks: u32, running: u32, batch_tokens: u32) -> World {
    World::new(Config {
        aging_steps: 40,
        ..Config::new(limits(blocks, 16, running, batch_tokens), [1; 32], [1; 32])
    })
}

fn has_ended(world: &World, id: SequenceId) -> bool {
    world.records[&id].end_step.is_some()
}

#[test]
fn a_short_prompt_beside_two_long_ones_has_its_first_token_in_two_steps() {
    let mut world = world(1_000, 16, 256);
    let long: Vec<_> = (1..=2)
        .map(|group| {
            let long = request(group, 5_000, 4, Priority::Standard);
            world.submit(long).unwrap()
        })
        .collect();
    let mut short = Vec::new();
    for group in 10..30 {
        short.push(
            world
                .submit(request(group, 60, 4, Priority::Standard))
                .unwrap(),
        );
        world.step();
        world.step();
    }
    let all_prefilled = |ids: &[SequenceId]| ids.iter().all(|id| has_ended(&world, *id));
    assert!(
        !all_prefilled(&long),
        "the long ones were there all the time"
    );
    world.finish(200);
    for id in short {
        assert!(world.first_token_steps(id) <= 2, "{id:?}");
    }
    // 20 short ones take 1,200 of the budget: the long ones are done little later than without them.
    let steps = world.first_token_steps(long[1]);
    assert!(steps <= (2 * 5_000 + 20 * 60) / 256 + 10, "{steps} steps");
}

#[test]
fn a_long_prompt_keeps_its_share_beside_endless_short_ones() {
    let mut world = world(4_000, 64, 256);
    let long = world
        .submit(request(1, 6_000, 4, Priority::Standard))
        .unwrap();
    let mut group = 10;
    while world.records[&long].first_step.is_none() {
        // More than a whole budget of short prompts in every step.
        while world.scheduler.stats().prefill_tokens_waiting < 8_000 {
            let short = request(group, 100, 2, Priority::Standard);
            if world.submit(short).is_err() {
                break;
            }
            group += 1;
        }
        world.step();
        // A seventh of what 64 decode rows leave of 256.
        assert!(world.step < 6_000 / ((256 - 64) / 7) + 40, "starved");
    }
    assert!(world.step > 60, "the short ones had their share");
    world.finish(2_000);
}

#[test]
fn batch_jobs_start_and_end_beside_endless_interactive_load() {
    for mode in [Mode::MaxUtilization, Mode::GuaranteedNoEvict] {
        let mut world = World::new(Config {
            mode,
            aging_steps: 40,
            ..Config::new(limits(64, 16, 4, 64), [1; 32], [1; 32])
        });
        let mut group = 10;
        let mut batch = Vec::new();
        for job in 1..=3 {
            batch.push(world.submit(request(job, 40, 12, Priority::Batch)).unwrap());
        }
        while !batch.iter().all(|id| has_ended(&world, *id)) {
            while world.scheduler.stats().waiting[0] < 8 {
                let person = request(group, 50, 8, Priority::Interactive);
                world.submit(person).unwrap();
                group += 1;
            }
            world.step();
            assert!(world.step < 3 * 3 * 40 + 200, "{mode:?}: starved");
        }
        let first = world.first_token_steps(batch[0]);
        assert!(first > 40, "{mode:?}: people go first, not after {first}");
        world.finish(500);
    }
}

#[test]
fn an_interactive_request_takes_the_place_of_a_batch_job() {
    let mut world = world(64, 4, 256);
    for job in 1..=6 {
        let job = request(job, 40, 150, Priority::Batch);
        world.submit(job).unwrap();
    }
    for _ in 0..5 {
        world.step();
    }
    let person = world
        .submit(request(10, 40, 4, Priority::Interactive))
        .unwrap();
    for _ in 0..3 {
        world.step();
    }
    assert!(world.first_token_steps(person) <= 3);
    world.finish(2_000);
}

#[test]
fn a_request_that_needs_much_memory_is_not_passed_for_ever() {
    let mut world = world(40, 16, 256);
    let mut group = 10;
    let mut large = None;
    for step in 0..400 {
        while world.scheduler.stats().waiting[1] < 4 {
            let small = request(group, 30, 20, Priority::Standard);
            world.submit(small).unwrap();
            group += 1;
        }
        if step == 30 {
            // All but two of the blocks.
            let request = request(1, 600, 4, Priority::Standard);
            large = Some(world.submit(request).unwrap());
        }
        world.step();
        if large.is_some_and(|id| has_ended(&world, id)) {
            break;
        }
    }
    let steps = world.first_token_steps(large.unwrap());
    assert!(steps < 200, "{steps} steps");
    world.finish(500);
}

#[test]
fn requests_that_arrive_together_compute_a_common_prefix_once() {
    let mut world = world(200, 16, 128);
    let common: Vec<u32> = (0..320).map(|place| place % 90 + 1).collect();
    for group in 1..=8 {
        let own = request(group, 10, 1, Priority::Standard);
        let prompt = [common.clone(), own.prompt].concat();
        let request = Request { prompt, ..own };
        world.submit(request).unwrap();
    }
    world.finish(100);
    assert_eq!(world.device.computed_tokens, 320 + 8 * 10);
}

#[test]
fn choices_of_a_request_without_a_scope_share_its_prompt_and_nobody_else_does() {
    let mut world = world(200, 16, 512);
    let private = Request {
        scope: None,
        ..request(1, 320, 4, Priority::Standard)
    };
    for _ in 0..4 {
        world.submit(private.clone()).unwrap();
    }
    world.step();
    world.step();
    // The last block is computed by each: something has to be sampled from.
    assert_eq!(world.device.computed_tokens, 320 + 1 + 3 * 16);
    let stranger = Request {
        group: 2,
        uncached: false,
        ..private.clone()
    };
    let stranger = world.submit(stranger).unwrap();
    world.finish(100);
    assert_eq!(world.records[&stranger].cached_tokens, 0);
    assert_eq!(
        world.scheduler.stats().blocks_cached,
        0,
        "nothing private outlives its request"
    );
}

#[test]
fn nothing_is_preempted_where_that_is_promised() {
    let mut world = World::new(Config {
        mode: Mode::GuaranteedNoEvict,
        ..Config::new(limits(40, 16, 16, 256), [1; 32], [1; 32])
    });
    for group in 1..=60 {
        let prompt = 20 + u32::try_from(group).unwrap() * 3;
        let request = request(group, prompt, 100, Priority::Standard);
        world.submit(request).unwrap();
    }
    world.finish(5_000);
    assert_eq!(world.scheduler.stats().preemptions, 0);
}
