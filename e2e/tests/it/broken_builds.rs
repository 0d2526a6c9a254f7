//! Deliberately broken builds of `weir`, as processes under the same load and the same faults: each is judged red under its own letter.

use std::collections::BTreeSet;
use std::path::PathBuf;

use weir_e2e::Seeded;
use weir_e2e::processes::Broken;

use crate::gateway_death::judged;

/// Breaks that kills of processes show, by the checker's letter. The fourteenth, a store that lets a fenced writer write, shows only where
/// a worker sends rows of an old epoch, which a real one never does: `gateway/tests/crash` shows it.
const BREAKS: [(&str, char); 13] = [
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

#[test]
fn a_broken_build_turns_the_kills_red_under_the_right_letter() {
    let Some(program) = broken_program() else {
        return;
    };
    let mut seeds = Seeded::announced("broken builds");
    let mut missed = Vec::new();
    for (name, letter) in BREAKS {
        let broken: Broken = Some((&program, name));
        let mut seen = BTreeSet::new();
        for _ in 0..TRIES {
            let (found, finished, _) = judged("log", seeds.number(), 6, broken);
            seen.extend(found.iter().map(|violation| violation.invariant));
            seen.extend(finished.err().map(|_| 'F'));
            if seen.contains(&letter) {
                break;
            }
        }
        eprintln!("{name}: {}", seen.iter().collect::<String>());
        if !seen.contains(&letter) {
            missed.push((name, letter));
        }
    }
    assert!(missed.is_empty(), "not found out: {missed:?}");
}
