//! What was streamed is replayed byte for byte, and replay costs no computation.

use serde_json::json;
use weir_e2e::{RandomModel, Site, Tenant, wait_for};

#[test]
fn a_stream_cut_after_event_35_of_40_goes_on_with_exactly_36_to_40() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    // accepted, started, 37 deltas, completed: 40 events.
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 37, "requestKey": "forty",
        "sampling": {"temperature": 0.0, "ignoreEos": true}});
    let mut stream = client.stream(&body).unwrap();
    let run = stream
        .headers
        .iter()
        .find(|(name, _)| name == "x-run-id")
        .expect("x-run-id")
        .1
        .clone();
    let mut first = Vec::new();
    while first.len() < 35 {
        first.push(stream.next_event().unwrap().expect("40 events"));
    }
    drop(stream);
    client.all_events(&run, 0).unwrap();

    // Workers report their counters ten times a second.
    let settled = || {
        weir.metric("weir_worker_output_tokens_total")
            .ok()
            .filter(|tokens| *tokens == 37.0)
    };
    let tokens = wait_for("37 sampled tokens in the metrics", 5, settled).unwrap();
    let rest = client.all_events(&run, 35).unwrap();
    assert_eq!(
        rest.iter().map(|event| event.id).collect::<Vec<_>>(),
        [36, 37, 38, 39, 40]
    );
    let whole = client.all_events(&run, 0).unwrap();
    assert_eq!(
        whole,
        [first, rest].concat(),
        "replay equals what was streamed"
    );
    assert_eq!(whole[39].json()["finishReason"], "length");

    // The same request again is the same run, not a new one.
    let again = client.post("/inference", &body).unwrap();
    assert_eq!(
        (again.status, &again.body["replayed"], again.run_id()),
        (200, &json!(true), run.clone()),
        "{again:?}"
    );
    let mut by_header = client
        .call(
            "GET",
            &format!("/runs/{run}/events"),
            None,
            &[("last-event-id", "39")],
        )
        .unwrap();
    assert!(
        by_header
            .body
            .take()
            .as_str()
            .unwrap()
            .starts_with("id: 40\n")
    );
    // One more token, of another run: once it shows, whatever came before it would show too.
    let marker = json!({"model": "random", "input": "x", "maxOutputTokens": 1});
    client.post("/inference", &marker).unwrap();
    let more = || {
        weir.metric("weir_worker_output_tokens_total")
            .ok()
            .filter(|now| *now > tokens)
    };
    let after = wait_for("the marker's token in the metrics", 5, more).unwrap();
    assert_eq!(after, tokens + 1.0, "replays generated nothing");
}

#[test]
fn a_restart_in_between_changes_nothing_about_a_finished_run() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let accepted = client
        .post(
            "/inference",
            &json!({"model": "random", "input": "hello", "maxOutputTokens": 20}),
        )
        .unwrap();
    let before = client.all_events(&accepted.run_id(), 0).unwrap();
    assert!(weir.stop(30).unwrap().success(), "SIGTERM ends it well");
    let weir = site.up().unwrap();
    assert_eq!(
        weir.client("acme-dev-key")
            .all_events(&accepted.run_id(), 0)
            .unwrap(),
        before
    );
}
