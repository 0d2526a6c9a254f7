//! Guesses: fewer steps, the same output, and nothing taken from anybody.

use weir_scheduler::{Config, Priority};

use crate::device::alone;
use crate::world::{Request, World, limits};

fn config(max_drafts: u32, running: u32, batch_tokens: u32) -> Config {
    Config {
        max_drafts,
        ..Config::new(limits(256, 16, running, batch_tokens), [3; 32], [4; 32])
    }
}

/// A prompt whose output is long and repeats itself.
fn request(group: u64) -> Request {
    let prompt = (0..60_u32)
        .map(|first| vec![first % 50 + 1, 7, 9])
        .find(|prompt| alone(prompt, 120).len() == 120)
        .unwrap();
    Request {
        prompt,
        max_output: 120,
        priority: Priority::Standard,
        scope: None,
        group,
        adapter: None,
        uncached: false,
    }
}

fn steps(max_drafts: u32, batch_tokens: u32, requests: u32) -> (u64, u64) {
    let mut world = World::new(config(max_drafts, requests, batch_tokens));
    for group in 0..requests {
        world.submit(request(group.into())).unwrap();
    }
    // Compares every output with the one it would have alone.
    world.finish(400);
    (world.step, world.scheduler.stats().accepted_tokens)
}

#[test]
fn an_output_that_repeats_itself_takes_fewer_steps() {
    let (plain, none) = steps(0, 64, 1);
    let (guessed, accepted) = steps(7, 64, 1);
    assert_eq!(none, 0);
    assert!(
        guessed + 10 < plain,
        "{guessed} steps with guesses, {plain} without"
    );
    assert_eq!(
        plain - guessed,
        accepted,
        "a guess that came true saves a step"
    );
}

#[test]
fn guesses_leave_every_running_sequence_its_token() {
    // A step has room for one token of each and nothing else: guesses must not push anybody out.
    let (plain, _) = steps(0, 8, 8);
    let (guessed, _) = steps(7, 8, 8);
    assert!(
        guessed <= plain,
        "{guessed} steps with guesses, {plain} without"
    );
    assert_eq!(steps(7, 1, 1).1, 0, "no room, no guess");
}

#[test]
fn a_guess_that_costs_more_than_it_gives_is_not_made() {
    let mut world = World::new(config(7, 1, 64));
    world.scheduler.set_draft_cost(1024);
    world.submit(request(1)).unwrap();
    world.finish(400);
    assert_eq!(world.scheduler.stats().drafted_tokens, 0);
}
