//! `kill -9` at random points under load, with every store of one machine: of the gateway alone, of its workers, of both. The independent
//! checker judges what clients saw and what the store holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use weir_e2e::checker::{Dump, Rules, check, intensity};
use weir_e2e::load::Load;
use weir_e2e::{RandomModel, Seeded, Signal, Site, Tenant, Weir, send, weir_command};

const CLIENTS: u64 = 5;
/// Lives of one data folder between two verdicts.
const LIVES: u64 = 20;
const DAY_S: u64 = 86_400;
const ACME_TOKENS: u64 = 100_000_000;
const GLOBEX_TOKENS: u64 = 20_000;

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

fn site() -> Site {
    let tenant = |name, tokens| Tenant {
        name,
        spec: json!({"windows": [{"period": "24h", "tokens": tokens}]}),
    };
    let tenants = [tenant("acme", ACME_TOKENS), tenant("globex", GLOBEX_TOKENS)];
    Site::random(RandomModel::default(), &tenants).unwrap()
}

fn start(site: &Site, engine: &str) -> Weir {
    let more = ["--store", engine];
    let mut weir = Weir::spawn(&site.manifests(), &site.data(), "127.0.0.1:0", &more).unwrap();
    weir.wait_ready().unwrap();
    weir
}

fn one_folder(engine: &str, seed: u64, lives: u64) {
    let mut random = Seeded(seed);
    let site = site();
    let load = Load::new("random", 48, ["acme", "globex"]);
    for _ in 0..lives {
        let mut weir = start(&site, engine);
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
    let weir = start(&site, engine);
    load.ask_again(&weir.listen);
    let finished = load.finish(&weir.listen, Duration::from_mins(1), 300);
    assert!(weir.stop(30).unwrap().success(), "SIGTERM ends it well");
    let dump = dump(&site, engine);
    let history = load.history.calls();
    let limits = [("acme", ACME_TOKENS), ("globex", GLOBEX_TOKENS)];
    let limits: BTreeMap<_, _> = limits
        .map(|(tenant, limit)| ((tenant.to_owned(), DAY_S), limit))
        .into();
    let rules = Rules {
        limits,
        price: (1, 0, 4),
        deterministic: true,
        quiet: true,
        answer_within_ms: Some(60_000),
        ..Rules::default()
    };
    let found = check(&history, &dump, &[], &rules);
    assert!(
        found.is_empty(),
        "{engine}, seed {seed}, {lives} kills: {} violations, first {:#?}",
        found.len(),
        &found[..found.len().min(5)]
    );
    finished.unwrap();
    let much = intensity(&history, &dump);
    eprintln!("{engine}: {lives} kills, {much:?}");
    // A quiet run proves nothing.
    assert!(much.runs > 3 * lives, "too few runs: {much:?}");
    assert!(much.tokens > 30 * lives, "too few tokens: {much:?}");
    assert!(much.cut > lives, "too few calls were cut: {much:?}");
}

fn dump(site: &Site, engine: &str) -> Dump {
    let mut command = weir_command();
    command.args(["dump", "--store", engine, "--data"]);
    let output = command.arg(site.data()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Dump::parse(&String::from_utf8(output.stdout).unwrap()).unwrap()
}
