//! The native calls, as the contract shows them.

use http::Method;
use serde_json::json;

use crate::site::{Site, ask};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_looks_as_the_contract_shows_it() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut body = ask(64);
    body["metadata"] = json!({"team": "search"});
    let accepted = acme.post("/inference", &body).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    assert_eq!(accepted.body["status"], "accepted");
    assert_eq!(accepted.body["modelVersion"], 2);
    assert_eq!(accepted.body["promptTokens"], 5);
    assert_eq!(accepted.body["reservedTokens"], 69);
    assert_eq!(accepted.header("x-model-version"), "2");
    let run = accepted.run();
    assert_eq!(accepted.header("x-run-id"), run);
    assert!(accepted.header("x-request-id").starts_with("req_"));
    assert_eq!(accepted.body["events"], format!("/runs/{run}/events"));

    let mut stream = acme.events(&run, 0).await;
    crate::site::wait_for("the run on its worker", || worker.held() == 1).await;
    worker.generate(1);
    let first = stream.take(3).await;
    assert_eq!(
        (first[0].id, first[0].kind.as_str(), &first[0].data),
        (
            1,
            "accepted",
            &json!({"sequence": 1, "runId": run, "modelVersion": 2, "reservedTokens": 69})
        )
    );
    assert_eq!((first[1].id, first[1].kind.as_str()), (2, "started"));
    assert_eq!(
        first[2].data,
        json!({"sequence": 3, "text": " 1", "tokens": 1})
    );
    let running = acme.get(&format!("/runs/{run}")).await.body;
    assert_eq!(
        (&running["status"], &running["lastSequence"]),
        (&json!("running"), &json!(3)),
        "{running}"
    );
    worker.finish();
    let rest = stream.rest().await;
    assert_eq!(
        rest[0].data,
        json!({"sequence": 4, "text": "", "tokens": 1})
    );
    assert_eq!(
        rest[1].data,
        json!({"sequence": 5, "status": "completed", "finishReason": "stop",
               "usage": {"promptTokens": 5, "cachedTokens": 2, "outputTokens": 2, "costMicros": 11}})
    );
    assert_eq!(rest.len(), 2);

    let row = acme.get(&format!("/runs/{run}")).await.body;
    assert_eq!(row["costMicros"], 11, "{row}");
    let decision = &row["decision"];
    assert_eq!(
        (
            &decision["requested"],
            &decision["reason"],
            &decision["worker"]
        ),
        (&json!("tiny"), &json!("stable"), &json!("w0"))
    );
    assert_eq!(row["metadata"], json!({"team": "search"}));
    assert_eq!(row["manifestDigest"], "sha256:1111");
    let usage = acme.get("/usage?groupBy=model").await.body;
    assert_eq!(
        usage["byModel"],
        json!([{"model": "tiny", "version": 2, "runs": {"completed": 1, "cancelled": 0, "interrupted": 0, "failed": 0, "expired": 0},
                "promptTokens": 5, "cachedTokens": 2, "outputTokens": 2, "costMicros": 11, "costPerCompletedRunMicros": 11}])
    );
    site.assert_settled("acme").await;
    crate::site::wait_for("the worker to forget the run", || worker.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_stream_goes_on_after_the_last_event_seen_and_replays_the_same() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(37)).await;
    let run = stream.headers["x-run-id"].to_str().unwrap().to_owned();
    assert_eq!(stream.headers["x-accel-buffering"], "no");
    assert_eq!(stream.headers["cache-control"], "no-store");
    let first = stream.take(35).await;
    drop(stream);
    acme.wait_status(&run, &["completed"]).await;
    let sampled = worker.sampled();
    let rest = acme.all_events(&run, 35).await;
    assert_eq!(
        rest.iter().map(|e| e.id).collect::<Vec<_>>(),
        [36, 37, 38, 39, 40]
    );
    assert_eq!(acme.all_events(&run, 0).await, [first, rest].concat());
    let header = [("last-event-id", "39")];
    let by_header = acme
        .call(Method::GET, &format!("/runs/{run}/events"), None, &header)
        .await;
    assert!(
        by_header.text.starts_with("id: 40\nevent: completed\n"),
        "{by_header:?}"
    );
    let nothing = acme.get(&format!("/runs/{run}/events?after=40")).await;
    assert_eq!((nothing.status, nothing.text.as_str()), (200, ""));
    assert_eq!(worker.sampled(), sampled, "replay computes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_key_names_one_run_for_one_payload() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    let mut body = ask(3);
    body["requestKey"] = json!("order-17");
    let first = acme.post("/inference", &body).await;
    body["deadline"] = json!("2999-01-01T00:00:00.000Z");
    body["priority"] = json!(null);
    let again = acme.post("/inference", &body).await;
    assert_eq!(
        (again.status, again.run(), &again.body["replayed"]),
        (200, first.run(), &json!(true))
    );
    let streamed = acme.stream("/inference", &body).await.rest().await;
    assert_eq!(streamed.len(), 6);
    assert_eq!(streamed[0].data["runId"], json!(first.run()));
    body["maxOutputTokens"] = json!(4);
    let other = acme.post("/inference", &body).await;
    assert_eq!(
        (other.status, other.code()),
        (409, "request_key_conflict"),
        "{other:?}"
    );
    assert_eq!(other.header("x-should-retry"), "false");
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]});
    let key = [("idempotency-key", "order-17")];
    let crossed = acme
        .call(Method::POST, "/v1/chat/completions", Some(&chat), &key)
        .await;
    assert_eq!(
        crossed.code(),
        "request_key_conflict",
        "one namespace for both kinds of calls"
    );
    assert_eq!(worker.submits().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_race_one_key_share_one_run() {
    let (site, worker) = Site::new(true).await;
    for round in 0..40 {
        let mut body = ask(2);
        body["requestKey"] = json!(format!("race-{round}"));
        let racers = (0..8).map(|_| {
            let (client, body) = (site.client("acme"), body.clone());
            tokio::spawn(async move { client.stream("/inference", &body).await.rest().await })
        });
        let mut runs = std::collections::BTreeSet::new();
        for racer in racers.collect::<Vec<_>>() {
            let events = racer.await.unwrap();
            assert_eq!(events.len(), 5, "{events:?}");
            runs.insert(events[0].data["runId"].to_string());
        }
        assert_eq!(runs.len(), 1, "round {round}");
    }
    assert_eq!(worker.submits().len(), 40);
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_choices_are_one_run_with_a_finish_for_each() {
    let (site, _worker) = Site::new(true).await;
    let mut body = ask(2);
    body["n"] = json!(2);
    let accepted = site.client("acme").post("/inference", &body).await;
    assert_eq!(
        accepted.body["reservedTokens"], 9,
        "prompt and two ceilings"
    );
    let events = site.client("acme").all_events(&accepted.run(), 0).await;
    let deltas: Vec<_> = events.iter().filter(|e| e.kind == "delta").collect();
    assert_eq!(deltas.len(), 4);
    assert_eq!(deltas[1].data["choice"], 1);
    assert_eq!(deltas[3].data["choiceFinishReason"], "length");
    assert_eq!(events.last().unwrap().data["usage"]["outputTokens"], 4);
}
