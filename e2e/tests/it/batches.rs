//! `kill -9` of the gateway in the middle of a batch, again and again: one result for each line, each billed once.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Seeded, Signal, Site, Tenant, send, wait_for};

const LINES: u32 = 40;
const TOKENS: u64 = 6;

/// A share of the kills of the whole suite: each costs a start of everything and a lease that runs out.
fn kills() -> u64 {
    let all = std::env::var("WEIR_KILLS").ok();
    all.and_then(|text| text.parse::<u64>().ok())
        .map_or(3, |all| (all / 10).max(3))
}

fn lines() -> String {
    let line = |n: u64| {
        json!({
            "custom_id": format!("line-{n}"), "method": "POST", "url": "/v1/completions",
            "body": {"model": "random", "prompt": format!("this is line {n}"), "max_tokens": TOKENS, "ignore_eos": true},
        })
        .to_string()
    };
    (0..u64::from(LINES))
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn names(client: &Client, file: &Value) -> Vec<String> {
    let Some(id) = file.as_str() else {
        return Vec::new();
    };
    let reply = client.get(&format!("/v1/files/{id}/content")).unwrap();
    let text = match &reply.body {
        Value::String(text) => text.clone(),
        // A file of one line is JSON by itself.
        one => one.to_string(),
    };
    text.lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            record["custom_id"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[test]
fn a_batch_survives_kills_of_the_gateway_with_one_result_for_each_line() {
    let mut random = Seeded::announced("batches");
    let tenant = Tenant {
        name: "acme",
        spec: json!({"windows": [{"period": "24h", "tokens": 100_000_000}]}),
    };
    let site = Site::random(RandomModel::default(), &[tenant]).unwrap();
    let mut weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let file = client.upload(&lines()).unwrap();
    assert_eq!(file.status, 200, "{file:?}");
    let batch = client
        .post(
            "/v1/batches",
            &json!({"input_file_id": file.body["id"], "endpoint": "/v1/completions", "completion_window": "1h"}),
        )
        .unwrap();
    let path = format!("/v1/batches/{}", batch.body["id"].as_str().unwrap());
    let mut last = 0;
    for round in 0..kills() {
        // Somewhere on: after a moment, or after another few lines.
        let wanted = last + random.below(u64::from(LINES) / kills().max(1)) + 1;
        let client = weir.client("acme-dev-key");
        wait_for("more lines", 60, || {
            let batch = client.get(&path).ok()?.body;
            last = batch["request_counts"]["completed"].as_u64()?;
            (last >= wanted || batch["status"] == "completed").then_some(())
        })
        .unwrap();
        std::thread::sleep(Duration::from_millis(random.below(30)));
        let with_workers = random.below(2) == 1;
        if with_workers {
            weir.worker_pids()
                .into_iter()
                .for_each(|pid| send(pid, Signal::KILL));
        }
        weir.kill().unwrap();
        if !with_workers {
            // Dropping would kill the workers that shall outlive their gateway.
            std::mem::forget(weir);
        }
        eprintln!("kill {round} after {last} lines, workers too: {with_workers}");
        weir = site.up().unwrap();
    }
    let client = weir.client("acme-dev-key");
    let batch = wait_for("the end of the batch", 120, || {
        let batch = client.get(&path).ok()?.body;
        (batch["status"] == "completed").then_some(batch)
    })
    .unwrap();
    let output = names(&client, &batch["output_file_id"]);
    let errors = names(&client, &batch["error_file_id"]);
    let all: BTreeSet<&String> = output.iter().chain(&errors).collect();
    assert_eq!(output.len() + errors.len(), LINES as usize, "{batch}");
    assert_eq!(
        all.len(),
        LINES as usize,
        "no line has two results: {batch}"
    );
    let counts = &batch["request_counts"];
    assert_eq!(counts["completed"], output.len());
    assert_eq!(counts["failed"], errors.len());
    // Only what a killed worker had begun may have no answer.
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(usage["consistent"], true, "{usage}");
    let runs = &usage["byModel"][0]["runs"];
    assert_eq!(runs["completed"], output.len(), "billed once: {usage}");
    assert_eq!(
        runs["completed"].as_u64().unwrap() + runs["interrupted"].as_u64().unwrap(),
        u64::from(LINES),
        "no line was run twice: {usage}"
    );
    eprintln!("{} results, {} errors", output.len(), errors.len());
}
