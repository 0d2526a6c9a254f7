//! Clients that race for one request key.

use std::collections::BTreeSet;
use std::sync::Barrier;

use serde_json::json;
use weir_e2e::{RandomModel, Site, Tenant};

const CLIENTS: usize = 8;
const KEYS: usize = 1_000;

#[test]
fn eight_clients_that_race_for_a_key_get_one_run() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let barrier = Barrier::new(CLIENTS);
    let runs: Vec<Vec<String>> = std::thread::scope(|scope| {
        let race = || {
            let client = weir.client("acme-dev-key");
            let mut runs = Vec::with_capacity(KEYS);
            for key in 0..KEYS {
                barrier.wait();
                let body = json!({"model": "random", "input": "hi", "maxOutputTokens": 1, "requestKey": format!("key-{key}")});
                let reply = client.post("/inference", &body).unwrap();
                assert!(matches!(reply.status, 200 | 202), "{reply:?}");
                assert_eq!(
                    reply.status == 200,
                    reply.body["replayed"] == true,
                    "{reply:?}"
                );
                runs.push(reply.run_id());
            }
            runs
        };
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(race)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for key in 0..KEYS {
        let distinct: BTreeSet<_> = runs.iter().map(|of_client| &of_client[key]).collect();
        assert_eq!(
            distinct.len(),
            1,
            "key {key} made several runs: {distinct:?}"
        );
    }
    let all: BTreeSet<_> = runs[0].iter().collect();
    assert_eq!(all.len(), KEYS, "different keys are different runs");

    let client = weir.client("acme-dev-key");
    let other = json!({"model": "random", "input": "something else", "maxOutputTokens": 1, "requestKey": "key-0"});
    let conflict = client.post("/inference", &other).unwrap();
    assert_eq!(
        (conflict.status, conflict.code()),
        (409, "request_key_conflict"),
        "{conflict:?}"
    );
    assert_eq!(conflict.header("x-should-retry"), Some("false"));
    for run in all {
        client.all_events(run, 0).unwrap();
    }
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(usage["byModel"][0]["runs"]["completed"], KEYS, "{usage}");
    assert_eq!(usage["consistent"], true);
}
