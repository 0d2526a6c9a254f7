//! Deliberate breaks: for each the harness turns red and names the invariant that does not hold.

use std::time::Duration;

use weir_e2e::Seeded;
use weir_store::fault::BREAKS;

use crate::world::{End, World};

/// Crashes before the verdict, and how often the verdict is asked for: chance decides when a break shows.
const LIVES: u64 = 6;
const MACHINES: u64 = 30;

#[test]
fn every_deliberate_break_turns_the_harness_red_under_its_own_letter() {
    let mut seeds = Seeded::announced("breaks");
    let mut missed = Vec::new();
    for (name, letter) in BREAKS {
        // Memory is one for all machines of a process: that break is shown on processes.
        if *letter == 'M' {
            continue;
        }
        let mut found = Vec::new();
        for _ in 0..MACHINES {
            let mut world = World::new(seeds.number(), Some(*name));
            for life in 0..LIVES {
                let point = ["link.appending", "store.begun", "link.acknowledged"];
                let point = point[life as usize % point.len()];
                world.live(End::Point(point, 20 + life * 10));
            }
            found = world.judge(Duration::from_secs(3)).0;
            if found.iter().any(|violation| violation.invariant == *letter) {
                break;
            }
        }
        let shown = found
            .iter()
            .find(|violation| violation.invariant == *letter);
        match shown {
            Some(violation) => println!("{name}: {violation}"),
            None => missed.push(format!("{name}: no {letter} in {found:?}")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
