//! A worker that is killed in mid-stream.

use serde_json::json;
use weir_e2e::{RandomModel, Signal, Site, Tenant, send, wait_for};

#[test]
fn a_killed_worker_interrupts_its_runs_and_bills_what_they_consumed() {
    let shape = RandomModel {
        hidden: 256,
        layers: 8,
        intermediate: 1024,
        ..RandomModel::default()
    };
    let tenant = Tenant {
        name: "acme",
        spec: json!({"windows": [{"period": "24h", "tokens": 100_000}]}),
    };
    let site = Site::random(shape, &[tenant]).unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 1_500, "requestKey": "k",
        "sampling": {"temperature": 0.0, "ignoreEos": true}});
    let mut stream = client.stream(&body).unwrap();
    let mut events = Vec::new();
    while events.len() < 12 {
        events.push(stream.next_event().unwrap().expect("a long run"));
    }
    for pid in weir.worker_pids() {
        send(pid, Signal::KILL);
    }
    events.extend(stream.to_end().unwrap());
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    assert_eq!(
        events.last().unwrap().kind,
        "interrupted",
        "{:?}",
        events.last()
    );
    assert_eq!(
        client.all_events(&run, 0).unwrap(),
        events,
        "the partial output replays"
    );

    let deltas: u64 = events
        .iter()
        .filter(|e| e.kind == "delta")
        .map(|e| e.json()["tokens"].as_u64().unwrap())
        .sum();
    let row = client.get(&format!("/runs/{run}")).unwrap().body;
    assert_eq!(row["outputTokens"], deltas, "{row}");
    let prompt = row["promptTokens"].as_u64().unwrap();
    assert_eq!(
        row["costMicros"],
        prompt + 4 * deltas,
        "consumed tokens are billed: {row}"
    );
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(
        usage["windows"][0]["usedTokens"],
        prompt + deltas,
        "{usage}"
    );
    assert_eq!(
        usage["windows"][0]["reservedTokens"], 0,
        "the rest is released: {usage}"
    );
    assert_eq!(usage["consistent"], true, "{usage}");

    let same = client.post("/inference", &body).unwrap();
    assert_eq!(
        (same.status, same.run_id()),
        (200, run.clone()),
        "the same key is the interrupted run: {same:?}"
    );
    assert_eq!(same.body["status"], "interrupted");

    // The worker comes back by itself; a replacement is a new run that names the old one.
    let mut replacement = body.clone();
    replacement["requestKey"] = json!("k2");
    replacement["replaces"] = json!(run);
    replacement["maxOutputTokens"] = json!(5);
    let new = wait_for("a worker to take runs again", 30, || {
        client
            .post("/inference", &replacement)
            .ok()
            .filter(|reply| reply.status == 202)
    })
    .unwrap();
    assert_ne!(new.run_id(), run);
    assert_eq!(
        client
            .all_events(&new.run_id(), 0)
            .unwrap()
            .last()
            .unwrap()
            .kind,
        "completed"
    );
    assert_eq!(
        client.get(&format!("/runs/{}", new.run_id())).unwrap().body["replaces"],
        json!(run)
    );
    assert_eq!(
        client.get(&format!("/runs/{run}")).unwrap().body["replacedBy"],
        json!(new.run_id())
    );
}
