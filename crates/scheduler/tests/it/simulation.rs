//! Random arrivals, aborts, pauses and preemptions. A failure names its seed.

use weir_scheduler::{Config, Mode, Priority, SequenceId};

use crate::device::VOCAB;
use crate::random::Random;
use crate::world::{Request, World, limits};

fn config(random: &mut Random) -> Config {
    let running = 1 + random.below(12);
    let limits = limits(
        12 + random.below(60),
        [1, 4, 8, 16][random.below(4) as usize],
        running,
        running + random.below(60),
    );
    Config {
        mode: if random.chance(40) {
            Mode::GuaranteedNoEvict
        } else {
            Mode::MaxUtilization
        },
        max_drafts: random.below(8),
        max_waiting: 40,
        class_bounds: [8, 40],
        max_long_prefills: 1 + random.below(3),
        aging_steps: 1 + u64::from(random.below(60)),
        patience_steps: u64::from(random.below(20)),
        hysteresis_steps: u64::from(random.below(10)),
        pause_grace_steps: u64::from(random.below(10)),
        scope_soft_cap: 1 + random.below(20),
        ..Config::new(limits, [3; 32], [4; 32])
    }
}

/// A prompt that shares its beginning with others: the tokens of a few common texts, cut anywhere, then some of its own.
fn request(random: &mut Random, group: u64) -> Request {
    let text = random.below(3);
    let common = random.below(40);
    let mut prompt: Vec<u32> = (0..common)
        .map(|place| (text * 31 + place * 7) % u32::try_from(VOCAB).unwrap())
        .collect();
    let own = if random.chance(10) { 120 } else { 10 };
    for _ in 0..=random.below(own) {
        prompt.push(random.below(u32::try_from(VOCAB).unwrap()));
    }
    let scope = random.below(4);
    Request {
        prompt,
        max_output: 1 + random.below(40),
        priority: [Priority::Interactive, Priority::Standard, Priority::Batch]
            [random.below(3) as usize],
        scope: (scope < 3).then(|| u8::try_from(scope).unwrap()),
        adapter: random.chance(40).then(|| u8::try_from(group % 2).unwrap()),
        group,
        uncached: random.chance(10),
    }
}

fn some(random: &mut Random, ids: &[SequenceId]) -> Option<SequenceId> {
    let count = u32::try_from(ids.len()).unwrap();
    (count > 0).then(|| ids[random.below(count) as usize])
}

/// What may happen between two steps, and during one.
fn disturb(world: &mut World, random: &mut Random) {
    let live = world.live();
    let Some(id) = some(random, &live) else {
        return;
    };
    match random.below(12) {
        0 => world.abort(id),
        1 | 2 => assert!(world.scheduler.pause(id)),
        3..=5 => assert!(world.scheduler.resume(id)),
        6 => {
            world.scheduler.preempt(id);
        }
        7 => world.scheduler.forget_scope(&[0; 32], |_| {}),
        8 => world.scheduler.set_step_budget(random.below(80)),
        9 => {
            let anybody = some(random, &world.records.keys().copied().collect::<Vec<_>>());
            world.abort(anybody.unwrap());
        }
        _ => {}
    }
}

struct Seen {
    trace: u64,
    cached_tokens: u64,
    preemptions: u64,
    drafted: u64,
    accepted: u64,
    refused: u64,
    ended: usize,
    steps_ahead: u64,
}

fn simulate(seed: u64) -> Seen {
    simulate_on(seed, false)
}

fn simulate_on(seed: u64, runs_ahead: bool) -> Seen {
    let mut random = Random(seed);
    let mut world = World::new(config(&mut random));
    world.runs_ahead = runs_ahead;
    let mut refused = 0;
    for group in 1..=60 {
        if random.chance(70) {
            let request = request(&mut random, group);
            let choices = if random.chance(20) { 3 } else { 1 };
            for _ in 0..choices {
                refused += u64::from(world.submit(request.clone()).is_err());
            }
        }
        for _ in 0..random.below(8) {
            disturb(&mut world, &mut random);
            world.step_with(|world| {
                if random.chance(10) {
                    disturb(world, &mut random);
                }
            });
        }
    }
    for id in world.live() {
        world.scheduler.resume(id);
    }
    world.finish(20_000);
    Seen {
        trace: world.trace,
        cached_tokens: world
            .records
            .values()
            .map(|record| u64::from(record.cached_tokens))
            .sum(),
        preemptions: world.scheduler.stats().preemptions,
        drafted: world.scheduler.stats().drafted_tokens,
        accepted: world.scheduler.stats().accepted_tokens,
        refused,
        ended: world.records.len(),
        steps_ahead: world.steps_ahead,
    }
}

#[test]
fn every_request_gets_what_it_would_get_alone() {
    let seeds = 0..3_000_u64;
    let mut seen = Vec::new();
    for seed in seeds {
        println!("seed {seed}");
        seen.push(simulate(seed));
    }
    // The simulation must have been about something.
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    assert!(sum(|s| s.cached_tokens) > 10_000);
    assert!(sum(|s| s.preemptions) > 1_000);
    assert!(sum(|s| s.accepted) > 10_000);
    assert!(sum(|s| s.drafted) > sum(|s| s.accepted) + 10_000);
    assert!(sum(|s| s.refused) > 100);
    assert!(seen.iter().map(|s| s.ended).sum::<usize>() > 10_000);
}

/// A device that is given steps ahead makes the same outputs, also of those that are aborted, paused or preempted meanwhile.
#[test]
fn a_step_planned_ahead_changes_no_output() {
    let seen: Vec<Seen> = (0..1_000_u64)
        .map(|seed| {
            println!("seed {seed}");
            simulate_on(seed, true)
        })
        .collect();
    let ahead: u64 = seen.iter().map(|seen| seen.steps_ahead).sum();
    assert!(ahead > 10_000, "{ahead} steps were planned ahead");
    assert!(seen.iter().map(|seen| seen.preemptions).sum::<u64>() > 100);
}

#[test]
fn same_seed_same_trace() {
    for seed in 1_000..1_010 {
        assert_eq!(simulate(seed).trace, simulate(seed).trace, "seed {seed}");
    }
    assert_ne!(simulate(1_000).trace, simulate(1_001).trace);
}
