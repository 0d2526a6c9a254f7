//! `kill -9` of the gateway at random points under load, alone and together with its workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use weir_e2e::{Client, Event, RandomModel, Seeded, Signal, Site, Tenant, Weir, send, wait_for};

/// What the clients of one life of the gateway saw: run, its request key, and the events that arrived before the end.
type Seen = Mutex<BTreeMap<String, Vec<Event>>>;

const STREAMS: usize = 6;

fn kills() -> u64 {
    std::env::var("WEIR_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(30)
}

#[test]
fn no_acknowledged_event_is_lost_or_doubled_when_the_gateway_is_killed() {
    let mut random = Seeded::announced("gateway_death");
    let tenant = Tenant {
        name: "acme",
        spec: json!({"windows": [{"period": "24h", "tokens": 100_000_000}]}),
    };
    let site = Site::random(RandomModel::default(), &[tenant]).unwrap();
    let seen = Seen::default();
    let ended: Mutex<BTreeMap<String, Vec<Event>>> = Mutex::default();
    let counter = AtomicU64::new(0);
    let mut interrupted = 0;
    for round in 0..kills() {
        let with_workers = random.below(2) == 1;
        let mut weir = site.up().unwrap();
        check(&weir, &seen, &ended, &mut interrupted);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..STREAMS {
                scope.spawn(|| load(&weir.client("acme-dev-key"), &stop, &counter, &seen));
            }
            std::thread::sleep(Duration::from_millis(20 + random.below(400)));
            if with_workers {
                weir.worker_pids()
                    .into_iter()
                    .for_each(|pid| send(pid, Signal::KILL));
            }
            send(weir.pid(), Signal::KILL);
            stop.store(true, Ordering::Relaxed);
        });
        weir.kill().unwrap();
        // Dropping would kill the workers that shall outlive their gateway.
        if !with_workers {
            std::mem::forget(weir);
        }
        eprintln!(
            "kill {round}: {} runs acknowledged so far",
            counter.load(Ordering::Relaxed)
        );
    }
    let weir = site.up().unwrap();
    check(&weir, &seen, &ended, &mut interrupted);
    let ended = ended.into_inner().unwrap();
    assert!(
        ended.len() as u64 >= kills() * 2,
        "a quiet run proves nothing: {} runs",
        ended.len()
    );
    let tokens = tokens_by_key(&weir.client("acme-dev-key"), counter.into_inner(), &ended);
    let usage = weir.client("acme-dev-key").get("/usage").unwrap().body;
    assert_eq!(
        usage["windows"][0]["usedTokens"], tokens,
        "every run is billed once: {usage}"
    );
    eprintln!(
        "{} runs, {interrupted} of them interrupted, {tokens} tokens",
        ended.len()
    );
}

/// Asks with every key that was ever used again: a key that a killed gateway had accepted names the same run, whether or not its
/// client heard of it. The tokens of all of them.
fn tokens_by_key(client: &Client, keys: u64, ended: &BTreeMap<String, Vec<Event>>) -> u64 {
    let mut tokens = 0;
    let mut found = BTreeSet::new();
    for key in 0..keys {
        let reply = client.post("/inference", &request(key)).unwrap();
        assert!(matches!(reply.status, 200 | 202), "{reply:?}");
        let events = client.all_events(&reply.run_id(), 0).unwrap();
        let usage = events.last().unwrap().json()["usage"].clone();
        tokens += usage["promptTokens"].as_u64().unwrap() + usage["outputTokens"].as_u64().unwrap();
        assert!(
            found.insert(reply.run_id()),
            "two keys have one run: {}",
            reply.run_id()
        );
    }
    assert!(
        ended.keys().all(|run| found.contains(run)),
        "a run that a client saw has lost its key"
    );
    tokens
}

fn request(key: u64) -> serde_json::Value {
    json!({"model": "random", "input": "count", "maxOutputTokens": 60, "requestKey": format!("key-{key}"),
        "sampling": {"temperature": 0.0, "ignoreEos": true}})
}

/// Starts runs and reads their streams until told to stop, or until the gateway is gone.
fn load(client: &Client, stop: &AtomicBool, counter: &AtomicU64, seen: &Seen) {
    while !stop.load(Ordering::Relaxed) {
        let body = request(counter.fetch_add(1, Ordering::Relaxed));
        let Ok(mut stream) = client.stream(&body) else {
            return;
        };
        while let Ok(Some(event)) = stream.next_event() {
            let run = stream
                .headers
                .iter()
                .find(|(name, _)| name == "x-run-id")
                .expect("x-run-id")
                .1
                .clone();
            seen.lock().unwrap().entry(run).or_default().push(event);
        }
    }
}

/// After a restart: every run that a client ever heard of ends, what was seen is a prefix of what is kept, sequences have no gap,
/// billed tokens are the tokens in the log, ended runs never change, and the account adds up.
fn check(
    weir: &Weir,
    seen: &Seen,
    ended: &Mutex<BTreeMap<String, Vec<Event>>>,
    interrupted: &mut u64,
) {
    let client = weir.client("acme-dev-key");
    for (run, acknowledged) in std::mem::take(&mut *seen.lock().unwrap()) {
        let events = client.all_events(&run, 0).unwrap();
        assert!(
            events.starts_with(&acknowledged),
            "{run}: {} acknowledged events are not what is kept: {:?} / {:?}",
            acknowledged.len(),
            acknowledged.last(),
            events.get(acknowledged.len().saturating_sub(1))
        );
        for (index, event) in events.iter().enumerate() {
            assert_eq!(event.id, index as u64 + 1, "{run}: a gap");
            assert_eq!(
                event.is_terminal(),
                index + 1 == events.len(),
                "{run}: one end, at the end"
            );
        }
        let last = events.last().unwrap();
        let deltas: u64 = events
            .iter()
            .filter(|e| e.kind == "delta")
            .map(|e| e.json()["tokens"].as_u64().unwrap())
            .sum();
        assert_eq!(
            last.json()["usage"]["outputTokens"],
            deltas,
            "{run}: billed what is in the log"
        );
        if last.kind == "completed" {
            assert_eq!(deltas, 60, "{run}");
        } else {
            assert_eq!(last.kind, "interrupted", "{run}");
            *interrupted += 1;
        }
        ended.lock().unwrap().insert(run, events);
    }
    let again = ended.lock().unwrap();
    if let Some((run, events)) = again.iter().next_back() {
        assert_eq!(
            &client.all_events(run, 0).unwrap(),
            events,
            "{run}: an ended run never changes"
        );
    }
    drop(again);
    let usage = wait_for("all runs to end", 30, || {
        let usage = client.get("/usage").ok()?.body;
        (usage["windows"][0]["reservedTokens"] == 0).then_some(usage)
    })
    .unwrap();
    assert_eq!(usage["consistent"], true, "{usage}");
    let window = &usage["windows"][0];
    let sum = window["usedTokens"].as_i64().unwrap() + window["availableTokens"].as_i64().unwrap();
    assert_eq!(sum, window["limitTokens"].as_i64().unwrap(), "{usage}");
}
