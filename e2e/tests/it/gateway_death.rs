//! `kill -9` at random points under load, with every store of one machine: of the gateway alone, of its workers, of both. The independent
//! checker judges what clients saw and what the store holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use weir_e2e::checker::{Dump, Intensity, Violation, check, intensity};
use weir_e2e::load::Load;
use weir_e2e::processes::{Broken, program, resident_bytes};
use weir_e2e::{RandomModel, Seeded, Signal, Site, Tenant, Weir, send, weir_command};

use crate::fleet::rules;

const CLIENTS: u64 = 5;
/// Lives of one data folder between two verdicts.
const LIVES: u64 = 20;
const ACME_TOKENS: u64 = 100_000_000;
const GLOBEX_TOKENS: u64 = 1_200;

fn kills() -> u64 {
    let set = std::env::var("WEIR_KILLS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(30)
}

#[test]
fn killed_gateways_and_workers_break_no_invariant_on_the_log() {
    survive("log");
}

#[test]
fn killed_gateways_and_workers_break_no_invariant_on_redb() {
    survive("redb");
}

#[test]
fn killed_gateways_and_workers_break_no_invariant_on_sled() {
    survive("sled");
}

fn survive(engine: &str) {
    let mut seeds = Seeded::announced(&format!("gateway_death on {engine}"));
    let mut left = kills();
    while left > 0 {
        let lives = left.min(LIVES);
        one_folder(engine, seeds.number(), lives);
        left -= lives;
    }
}

fn site(globex_tokens: u64) -> Site {
    let tenant = |name, tokens| Tenant {
        name,
        spec: json!({"windows": [{"period": "24h", "tokens": tokens}]}),
    };
    let tenants = [tenant("acme", ACME_TOKENS), tenant("globex", globex_tokens)];
    Site::random(RandomModel::default(), &tenants).unwrap()
}

fn start(site: &Site, engine: &str, broken: Broken) -> anyhow::Result<Weir> {
    let more = ["--store", engine, "--drain-s", "10"];
    let (manifests, data) = (site.manifests(), site.data());
    let mut weir = Weir::spawn_as(program(broken), &manifests, &data, "127.0.0.1:0", &more)?;
    weir.wait_ready()?;
    Ok(weir)
}

/// A store that cannot be opened or read has lost something.
fn lost(why: impl std::fmt::Display) -> (Vec<Violation>, anyhow::Result<()>, Intensity) {
    let what = why.to_string();
    let invariant = 'D';
    (
        vec![Violation { invariant, what }],
        Ok(()),
        Intensity::default(),
    )
}

fn one_folder(engine: &str, seed: u64, lives: u64) {
    let (found, finished, much) = judged(engine, seed, lives, None);
    assert!(
        found.is_empty(),
        "{engine}, seed {seed}, {lives} kills: {} violations, first {:#?}",
        found.len(),
        &found[..found.len().min(5)]
    );
    finished.unwrap();
    eprintln!("{engine}: {lives} kills, {much:?}");
    // A quiet run proves nothing.
    assert!(much.runs > 3 * lives, "too few runs: {much:?}");
    assert!(much.tokens > 30 * lives, "too few tokens: {much:?}");
    assert!(much.cut > lives, "too few calls were cut: {much:?}");
}

/// What does not hold after so many lives, whether every run has ended, and how much happened.
pub(crate) fn judged(
    engine: &str,
    seed: u64,
    lives: u64,
    broken: Broken,
) -> (Vec<Violation>, anyhow::Result<()>, Intensity) {
    // A broken one need not be waited for.
    let patience = Duration::from_secs(if broken.is_some() { 5 } else { 60 });
    let mut random = Seeded(seed);
    // A broken one has to meet its limit within a few lives.
    let globex_tokens = if broken.is_some() { 150 } else { GLOBEX_TOKENS };
    let site = site(globex_tokens);
    let load = Load::new("random", 48, ["acme", "globex"]);
    let mut memory = vec![];
    for _ in 0..lives {
        let mut weir = match start(&site, engine, broken) {
            Ok(weir) => weir,
            Err(error) => return lost(error),
        };
        let stop = AtomicBool::new(false);
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| random.number()).collect();
        let with_workers = random.below(2) == 1;
        std::thread::scope(|scope| {
            for seed in seeds {
                let (load, stop, base) = (&load, &stop, &weir.listen);
                scope.spawn(move || load.act(base, seed, stop));
            }
            // Not a wait for something: the moment of the kill is what is varied.
            std::thread::sleep(Duration::from_millis(20 + random.below(300)));
            memory.push(resident_bytes(weir.pid()));
            if with_workers {
                for pid in weir.worker_pids() {
                    send(pid, Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(random.below(30)));
            }
            send(weir.pid(), Signal::KILL);
            stop.store(true, Ordering::Relaxed);
        });
        weir.kill().unwrap();
        // Dropping would kill the workers that shall outlive their gateway.
        if !with_workers {
            std::mem::forget(weir);
        }
    }
    let weir = match start(&site, engine, broken) {
        Ok(weir) => weir,
        Err(error) => return lost(error),
    };
    load.ask_again(&weir.listen);
    let finished = load.finish(&weir.listen, patience, 300);
    // A broken one may have runs that never end.
    let ended = weir.stop(60).unwrap();
    assert!(ended.success() || broken.is_some(), "SIGTERM ends it well");
    let dump = match dump(&site, engine) {
        Ok(dump) => dump,
        Err(error) => return lost(error),
    };
    let history = load.history.calls();
    let found = check(&history, &dump, &memory, &rules(globex_tokens));
    (found, finished, intensity(&history, &dump))
}

fn dump(site: &Site, engine: &str) -> anyhow::Result<Dump> {
    let mut command = weir_command();
    command.args(["dump", "--store", engine, "--data"]);
    let output = command.arg(site.data()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{said}");
    Dump::parse(&String::from_utf8(output.stdout)?)
}
