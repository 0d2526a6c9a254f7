//! Crashes at every named point and at any write of the medium.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_e2e::Seeded;
use weir_store::fault::POINTS;

use crate::world::{End, World};

/// Lives of one machine; then its history is judged and another one begins.
const LIVES: u64 = 25;
/// Machines at once, one for each core of a small computer.
const MACHINES: u64 = 2;

/// How many crashes; `cargo xtask test --full` asks for ten thousand.
fn crashes() -> u64 {
    std::env::var("WEIR_CRASHES").map_or(300, |text| text.parse().unwrap())
}

#[derive(Default)]
struct Total {
    hits: BTreeMap<&'static str, (u64, u64)>,
    crashes: u64,
    runs: u64,
    interrupted: u64,
    tokens: u64,
    resumed: u64,
    joined: u64,
}

#[test]
fn whatever_point_a_gateway_dies_at_every_invariant_holds_afterwards() {
    let mut seeds = Seeded::announced("crash_points");
    let machines = crashes().div_ceil(LIVES);
    let seeds: Vec<u64> = (0..machines).map(|_| seeds.number()).collect();
    let totals: Vec<Total> = std::thread::scope(|scope| {
        let machine = |first: u64| {
            let mine = seeds.iter().enumerate().skip(first as usize);
            let mine = mine.step_by(MACHINES as usize);
            let mut total = Total::default();
            mine.for_each(|(number, seed)| one_machine(number as u64, *seed, &mut total));
            total
        };
        let threads: Vec<_> = (0..MACHINES)
            .map(|first| scope.spawn(move || machine(first)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Total>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    let mut all = Total::default();
    for total in totals {
        for (name, (hits, crashed)) in total.hits {
            let of = all.hits.entry(name).or_default();
            *of = (of.0 + hits, of.1 + crashed);
        }
        all.crashes += total.crashes;
        all.runs += total.runs;
        all.interrupted += total.interrupted;
        all.tokens += total.tokens;
        all.resumed += total.resumed;
        all.joined += total.joined;
    }
    println!(
        "{} crashes, {} runs ({} interrupted), {} tokens, {} streams resumed, {} keys joined",
        all.crashes, all.runs, all.interrupted, all.tokens, all.resumed, all.joined
    );
    for (name, (hits, crashed)) in &all.hits {
        println!("{crashed:>5} of {hits:>8}  {name}");
    }
    let never: Vec<_> = all
        .hits
        .iter()
        .filter(|(_, (hits, _))| *hits == 0)
        .collect();
    assert!(never.is_empty(), "points that nothing passed: {never:?}");
    // A quiet run proves nothing.
    assert!(all.runs > 3 * all.crashes, "too few runs");
    assert!(all.tokens > 20 * all.crashes, "too few tokens");
    assert!(all.interrupted * 50 > all.crashes, "too few interruptions");
    assert!(all.resumed > all.crashes / 4 && all.joined > all.crashes / 10);
}

fn one_machine(number: u64, seed: u64, total: &mut Total) {
    let mut world = World::new(seed, None);
    let mut random = Seeded(seed ^ 0x55);
    for life in 0..LIVES {
        let end = if life % 3 == 2 {
            End::Write(1 + random.below(400))
        } else {
            // Each point in turn, so that none is left to chance.
            let place = (number * LIVES + life) * 2 / 3 % POINTS.len() as u64;
            let name = POINTS[place as usize];
            let rare = [
                "recover",
                "requeue",
                "cancel",
                "unsent",
                "link.taken",
                "link.attach",
            ];
            let is_rare = rare.iter().any(|start| name.starts_with(start));
            End::Point(name, 1 + random.below(if is_rare { 2 } else { 8 }))
        };
        world.live(end);
    }
    let (found, much) = world.judge(Duration::from_mins(1));
    assert!(
        found.is_empty(),
        "machine of seed {seed} after {LIVES} crashes: {} violations, first {:#?}",
        found.len(),
        &found[..found.len().min(5)]
    );
    for (name, hits, crashed) in world.hits() {
        let of = total.hits.entry(name).or_default();
        *of = (of.0 + hits, of.1 + crashed);
    }
    total.crashes += world.crashes;
    total.runs += much.runs;
    total.interrupted += much.interrupted;
    total.tokens += much.tokens;
    total.resumed += much.resumed;
    total.joined += much.joined;
}
