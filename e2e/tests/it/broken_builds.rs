//! Deliberately broken builds of `weir`, as processes under the same load and the same faults: each is judged red under its own letter.

use std::path::PathBuf;
use std::time::Duration;

use weir_e2e::Seeded;
use weir_e2e::postgres::bin;
use weir_e2e::processes::Broken;

use crate::fleet::{Fault, Fleet};
use crate::gateway_death::judged;

/// Breaks that kills of one gateway show, by the checker's letter.
const ALONE: [(&str, char); 13] = [
    ("over-limit", 'B'),
    ("key-twice", 'U'),
    ("early-publish", 'D'),
    ("replay-twice", 'S'),
    ("re-encode", 'S'),
    ("regenerate", 'S'),
    ("settle-twice", 'T'),
    ("keep-reservation", 'T'),
    ("wrong-bill", 'L'),
    ("lose-last", 'D'),
    ("cross-tenant", 'I'),
    ("never-end", 'F'),
    ("leak", 'M'),
];

/// What shows only where two gateways may write to one run.
const TOGETHER: [(&str, char); 1] = [("skip-fence", 'S')];

/// Chance decides when a break shows.
const TRIES: usize = 5;

/// `WEIR_BROKEN_BIN` names a `weir` with the feature `faults`; `cargo xtask test --full` builds it.
fn broken_program() -> Option<PathBuf> {
    let program = std::env::var_os("WEIR_BROKEN_BIN").map(PathBuf::from);
    if program.is_none() {
        eprintln!("skipped: WEIR_BROKEN_BIN is not set (the full tests set it)");
    }
    program
}

/// Fails for the breaks that never turn red under their letter; `judge` gives the letters that it sees.
fn each_is_found_out(breaks: &[(&str, char)], mut judge: impl FnMut(&str) -> Vec<char>) {
    let mut missed = Vec::new();
    for (name, letter) in breaks {
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            seen.extend(judge(name));
            if seen.contains(letter) {
                break;
            }
        }
        seen.sort_unstable();
        seen.dedup();
        eprintln!("{name}: {}", seen.iter().collect::<String>());
        if !seen.contains(letter) {
            missed.push((*name, *letter));
        }
    }
    assert!(missed.is_empty(), "not found out: {missed:?}");
}

#[test]
fn a_broken_build_turns_the_kills_red_under_the_right_letter() {
    let Some(program) = broken_program() else {
        return;
    };
    let mut seeds = Seeded::announced("broken builds");
    each_is_found_out(&ALONE, |name| {
        let broken: Broken = Some((&program, name));
        let (found, finished, _) = judged("log", seeds.number(), 6, broken);
        let letters = found.iter().map(|violation| violation.invariant);
        letters.chain(finished.err().map(|_| 'F')).collect()
    });
}

#[test]
fn a_build_that_lets_fenced_writers_write_turns_frozen_gateways_red() {
    let Some(program) = broken_program().filter(|_| bin().is_some()) else {
        return;
    };
    let mut seeds = Seeded::announced("broken fleets");
    each_is_found_out(&TOGETHER, |name| {
        let broken: Broken = Some((&program, name));
        let Some(mut fleet) = Fleet::start(seeds.number(), broken) else {
            return vec![];
        };
        for fault in [Fault::Frozen(0), Fault::Frozen(1), Fault::Gateway(0)] {
            if fleet.suffer(fault).is_err() {
                return vec!['F'];
            }
        }
        let (found, finished, _) = fleet.judge(Duration::from_secs(20));
        let letters = found.iter().map(|violation| violation.invariant);
        letters.chain(finished.err().map(|_| 'F')).collect()
    });
}
