//! One request key, two gateways, eight clients at once: one run, and nobody is told of another one.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Duration;

use serde_json::json;
use weir_e2e::Seeded;
use weir_e2e::checker::{Call, What};

use crate::fleet::Fleet;

const CLIENTS: usize = 8;

/// How many keys; `cargo xtask test --full` asks for ten thousand.
fn keys() -> usize {
    let set = std::env::var("WEIR_RACE_KEYS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(200)
}

#[test]
fn a_key_that_two_gateways_are_asked_for_at_once_is_one_run_and_another_payload_is_refused() {
    let mut seeds = Seeded::announced("key_race");
    let Some(fleet) = Fleet::start(seeds.number(), None) else {
        return;
    };
    for gateway in &fleet.gateways {
        gateway.serves().unwrap();
    }
    let bases = [0, 1].map(|place| fleet.gateways[place].listen.clone());
    let together = Barrier::new(CLIENTS);
    let count = keys();
    let calls: Vec<Call> = std::thread::scope(|scope| {
        let race = |place: usize| {
            let client = fleet.load.history.client(&bases[place % 2], "acme");
            let together = &together;
            move || {
                let mut calls = vec![];
                for number in 0..count {
                    // One in eight means something else by the key.
                    let input = if place == number % CLIENTS {
                        "odd"
                    } else {
                        "count"
                    };
                    let body = json!({"model": "random", "input": input, "maxOutputTokens": 1,
                        "requestKey": format!("race-{number}"), "sampling": {"temperature": 0.0, "ignoreEos": true}});
                    together.wait();
                    calls.push(client.submit(&body));
                }
                calls
            }
        };
        let threads: Vec<_> = (0..CLIENTS).map(|place| scope.spawn(race(place))).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut by_key: BTreeMap<&str, BTreeMap<u16, usize>> = BTreeMap::new();
    for call in &calls {
        if let What::Submit { key: Some(key), .. } = &call.what {
            let of_key = by_key.entry(key).or_default();
            *of_key.entry(call.status).or_default() += 1;
        }
    }
    assert_eq!(by_key.len(), count);
    let mut odd_won = 0;
    for (key, statuses) in &by_key {
        let of = |status| statuses.get(&status).copied().unwrap_or(0);
        // The first one is let in; seven of a payload, or the odd one, are refused.
        let (admitted, joined, refused) = (of(202), of(200), of(409));
        odd_won += usize::from(refused == CLIENTS - 1);
        let wanted = [(1, CLIENTS - 2, 1), (1, 0, CLIENTS - 1)];
        assert!(
            wanted.contains(&(admitted, joined, refused)),
            "{key}: {statuses:?}"
        );
    }
    let (found, finished, much) = fleet.judge(Duration::from_mins(2));
    assert!(found.is_empty(), "{:#?}", &found[..found.len().min(5)]);
    finished.unwrap();
    assert_eq!(much.runs, count as u64 + 2, "one run a key");
    eprintln!("{count} keys raced for, the odd payload was first {odd_won} times");
}
