//! A child process writes with a schedule of its own and says what was acknowledged; the parent kills it at random points and checks that
//! everything acknowledged is there, that nothing is torn, and that the budgets add up.

mod check;
mod child;
mod random;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use check::Known;
use random::Random;
use weir_store::Engine;

use crate::support::{ENGINES, runtime};

/// Carries engine, folder and seed to the child.
pub(crate) const CHILD: &str = "WEIR_STORE_CRASH_CHILD";
/// How often the child is killed; the full run sets more.
const KILLS: &str = "WEIR_STORE_KILLS";

/// Does nothing unless the crash test has started this process as its child.
#[test]
fn crash_child() {
    if let Ok(arguments) = std::env::var(CHILD) {
        child::run(&arguments);
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_torn_by_kill_9() {
    let kills = std::env::var(KILLS).map_or(30, |text| text.parse().unwrap());
    let seed = std::env::var("WEIR_SEED").map_or_else(|_| rand_seed(), |s| s.parse().unwrap());
    println!("WEIR_SEED={seed}");
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let mut random = Random(seed);
        let mut known = Known::default();
        for round in 0..kills {
            let killed_at = one_life(folder.path(), engine, &mut random, &mut known);
            let place = format!("{engine:?} seed {seed} round {round} after {killed_at} lines");
            runtime().block_on(known.check(folder.path(), engine, &place));
        }
        println!("{engine:?}: {kills} kills, {known}");
        // A quiet run proves nothing.
        assert!(
            known.acknowledged > 20 * kills,
            "too little traffic: {known}"
        );
        assert!(
            known.in_flight > kills,
            "too few kills met work in flight: {known}"
        );
    }
}

fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// Starts a child, reads what it says, kills it after a random number of lines and a moment more; how many lines.
fn one_life(
    folder: &std::path::Path,
    engine: Engine,
    random: &mut Random,
    known: &mut Known,
) -> u64 {
    let arguments = format!("{}|{}|{}", engine.as_str(), random.next(), folder.display());
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::crash_child", "--nocapture"])
        .env(CHILD, arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Some are killed while they still open the store.
    let wanted = if random.below(6) == 0 {
        0
    } else {
        20 + random.below(400)
    };
    let mut read = 0;
    while read < wanted {
        let line = lines
            .next()
            .expect("the child does not end by itself")
            .unwrap();
        known.hear(&line);
        read += 1;
    }
    // Not a wait for something: the moment of the kill is what is varied.
    std::thread::sleep(Duration::from_micros(random.below(15_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    // What it said before it died counts too; a last line without its end was not said.
    for line in lines {
        known.hear(&line.unwrap());
    }
    wanted
}
