//! `kill -9` at random points under load of two gateways on one PostgreSQL: of a gateway, of both, of the worker, of the server; and
//! gateways that stand still until their runs are another's. The independent checker judges what clients saw and what the store holds.

use std::time::Duration;

use weir_e2e::Seeded;

use crate::fleet::{Fault, Fleet};

/// Kills of one fleet between two verdicts.
const KILLS_A_FLEET: u64 = 25;

fn kills() -> u64 {
    let set = std::env::var("WEIR_KILLS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(30)
}

#[test]
fn killed_gateways_workers_and_servers_break_no_invariant_on_postgresql() {
    let mut seeds = Seeded::announced("replica_death");
    let mut left = kills();
    while left > 0 {
        let Some(done) = one_fleet(seeds.number(), left.min(KILLS_A_FLEET)) else {
            return;
        };
        left = left.saturating_sub(done);
    }
}

/// How many processes were killed; `None` where no PostgreSQL is installed.
fn one_fleet(seed: u64, kills: u64) -> Option<u64> {
    let mut fleet = Fleet::start(seed, None)?;
    let mut random = Seeded(seed ^ 0x55);
    let mut faults = vec![];
    while fleet.kills < kills {
        let fault = Fault::any(&mut random);
        faults.push(fault);
        let well = fleet.suffer(fault);
        assert!(well.is_ok(), "seed {seed}, after {faults:?}: {well:?}");
    }
    let done = fleet.kills;
    let (found, finished, much) = fleet.judge(Duration::from_mins(1));
    assert!(
        found.is_empty(),
        "seed {seed}, {faults:?}: {} violations, first {:#?}",
        found.len(),
        &found[..found.len().min(5)]
    );
    finished.unwrap();
    eprintln!(
        "postgresql: {done} kills, {} faults, {much:?}",
        faults.len()
    );
    // A quiet run proves nothing.
    assert!(much.runs > 3 * done, "too few runs: {much:?}");
    assert!(much.tokens > 30 * done, "too few tokens: {much:?}");
    assert!(much.cut > done / 2, "too few calls were cut: {much:?}");
    Some(done)
}
