//! Ends that are announced and places that are taken: SIGTERM, a second start, a worker that hangs.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_e2e::{Client, RandomModel, Signal, Site, Tenant, Weir, send, wait_for, weir_command};

/// Slow enough that a stream lasts for seconds.
fn slow() -> RandomModel {
    RandomModel {
        hidden: 256,
        layers: 8,
        intermediate: 1024,
        ..RandomModel::default()
    }
}

fn long(key: &str, tokens: u32) -> serde_json::Value {
    json!({"model": "random", "input": "hello", "maxOutputTokens": tokens, "requestKey": key,
        "sampling": {"temperature": 0.0, "ignoreEos": true}})
}

#[test]
fn a_gateway_that_was_told_to_end_says_so_until_its_streams_are_done() {
    let site = Site::random(slow(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let mut stream = weir
        .client("acme-dev-key")
        .stream(&long("open", 400))
        .unwrap();
    stream.next_event().unwrap().expect("it begins");
    send(weir.pid(), Signal::TERM);
    let admin = Client::new(&weir.admin, "");
    wait_for("readiness to turn false", 5, || {
        admin
            .get("/readyz")
            .ok()
            .filter(|reply| reply.status == 503)
    })
    .unwrap();
    // New connections are told, with what a client needs to know to go elsewhere.
    let newcomer = weir.client("acme-dev-key");
    let refused = wait_for("the listener to refuse", 5, || {
        let reply = newcomer.post("/inference", &long("late", 5)).ok()?;
        (reply.status == 503).then_some(reply)
    })
    .unwrap();
    assert_eq!(refused.code(), "draining", "{refused:?}");
    assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
    assert_eq!(refused.header("connection"), Some("close"), "{refused:?}");
    let events = stream.to_end().unwrap();
    assert_eq!(events.last().unwrap().kind, "completed");
    assert!(weir.ended(30).unwrap().success());
}

#[test]
fn a_second_start_on_one_data_folder_ends_with_a_clear_message() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let second = weir_command()
        .arg("up")
        .arg(site.manifests())
        .args([
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--data",
        ])
        .arg(site.data())
        .output()
        .unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("in use by another process"), "{said}");
    let client = weir.client("acme-dev-key");
    assert_eq!(
        client.get("/usage").unwrap().status,
        200,
        "the first goes on"
    );
}

#[test]
fn a_worker_that_hangs_loses_its_runs_and_what_it_says_later_changes_nothing() {
    let site = Site::random(slow(), &[Tenant::unlimited("acme")]).unwrap();
    let weir: Weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let mut stream = client.stream(&long("hung", 1_500)).unwrap();
    let mut events = Vec::new();
    while events.len() < 10 {
        events.push(stream.next_event().unwrap().expect("a long run"));
    }
    let workers = weir.worker_pids();
    for pid in &workers {
        send(*pid, Signal::STOP);
    }
    let stopped = Instant::now();
    events.extend(stream.to_end().unwrap());
    let took = stopped.elapsed();
    let end = events.last().unwrap();
    assert_eq!(end.kind, "interrupted", "{end:?}");
    assert!(
        took < Duration::from_secs(30),
        "the end came after {took:?}"
    );
    for pid in &workers {
        send(*pid, Signal::CONT);
    }
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    wait_for("a worker to take runs again", 30, || {
        let reply = client.post("/inference", &long("after", 3)).ok()?;
        let events = client.all_events(&reply.run_id(), 0).ok()?;
        (events.last()?.kind == "completed").then_some(())
    })
    .unwrap();
    assert_eq!(
        client.all_events(&run, 0).unwrap(),
        events,
        "what the worker computed while it hung is fenced off"
    );
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0))
    );
}
