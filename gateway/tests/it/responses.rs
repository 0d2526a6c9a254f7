//! The Responses API: typed events with stable numbers, over the same runs.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::Client;
use crate::site::{Site, tenant, wait_for};

fn body(more: &Value) -> Value {
    let mut body = json!({"model": "tiny", "input": "hi", "max_output_tokens": 3});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The blocks of a stream: name and data, as they came.
async fn blocks(mut stream: crate::client::EventStream) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(block) = stream.block().await {
        if !block.starts_with(':') {
            all.push(block);
        }
    }
    all
}

fn data(block: &str) -> Value {
    let (name, data) = block.split_once("\ndata: ").unwrap();
    let value: Value = serde_json::from_str(data).unwrap();
    assert_eq!(name, format!("event: {}", value["type"].as_str().unwrap()));
    value
}

async fn follow(client: &Client, id: &str, after: Option<usize>) -> Vec<String> {
    let after = after.map_or(String::new(), |after| format!("&starting_after={after}"));
    let stream = client
        .get_stream(&format!("/v1/responses/{id}?stream=true{after}"))
        .await;
    blocks(stream).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_has_what_clients_read_and_is_the_run_under_another_name() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let asked = body(
        &json!({"instructions": "be brief", "metadata": {"team": "search"}, "temperature": 0.5}),
    );
    let reply = acme.post("/v1/responses", &asked).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let id = reply.body["id"].as_str().unwrap().to_owned();
    assert_eq!(id.replace("resp_", "run_"), reply.header("x-run-id"));
    let seen = &reply.body;
    assert_eq!(seen["object"], "response");
    assert_eq!(seen["status"], "incomplete");
    assert_eq!(
        seen["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
    assert_eq!(seen["temperature"], 0.5);
    assert_eq!(seen["metadata"], json!({"team": "search"}));
    assert_eq!(seen["output"][0]["content"][0]["text"], " 1 2 3");
    assert_eq!(seen["output"][0]["content"][0]["annotations"], json!([]));
    assert_eq!(
        seen["usage"],
        json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0}, "output_tokens": 3,
               "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13})
    );
    let again = acme.get(&format!("/v1/responses/{id}")).await;
    assert_eq!(
        again.body, reply.body,
        "it is the same when it is asked for"
    );
    let items = acme
        .get(&format!("/v1/responses/{id}/input_items"))
        .await
        .body;
    assert_eq!(
        items["data"][0]["content"][0],
        json!({"type": "input_text", "text": "hi"})
    );
    assert_eq!(items["has_more"], false);
    let other = site
        .client("globex")
        .get(&format!("/v1/responses/{id}"))
        .await;
    assert_eq!((other.status, other.code()), (404, "run_not_found"));
    let deleted = acme.delete(&format!("/v1/responses/{id}")).await;
    assert_eq!(
        deleted.body,
        json!({"id": id, "object": "response", "deleted": true})
    );
    let gone = acme.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((gone.status, gone.code()), (404, "run_not_found"));
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_numbered_from_zero_and_every_continuation_is_its_exact_rest() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    for background in [false, true] {
        let asked =
            body(&json!({"stream": true, "background": background, "max_output_tokens": 9}));
        let live = acme.stream("/v1/responses", &asked).await;
        let id = live.headers["x-run-id"]
            .to_str()
            .unwrap()
            .replace("run_", "resp_");
        wait_for("the run", || worker.held() == 1).await;
        worker.generate(4);
        // One that comes while it goes on, and reads what is there and what follows.
        let early = tokio::spawn({
            let (acme, id) = (acme.clone(), id.clone());
            async move { follow(&acme, &id, Some(2)).await }
        });
        worker.finish();
        let live = blocks(live).await;
        let kinds: Vec<String> = live
            .iter()
            .map(|block| data(block)["type"].as_str().unwrap().to_owned())
            .collect();
        let mut want = vec!["response.created"];
        if background {
            want.push("response.queued");
        }
        want.extend([
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]);
        want.extend(["response.output_text.delta"; 4]);
        want.extend([
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]);
        assert_eq!(kinds, want);
        for (number, block) in live.iter().enumerate() {
            assert_eq!(data(block)["sequence_number"], number, "{block}");
        }
        assert_eq!(early.await.unwrap(), live[3..], "joined while it ran");
        assert_eq!(follow(&acme, &id, None).await, live, "replayed whole");
        for after in 0..live.len() {
            let rest = follow(&acme, &id, Some(after)).await;
            assert_eq!(rest, live[after + 1..], "after {after}");
        }
        let last = data(live.last().unwrap());
        let shown = acme.get(&format!("/v1/responses/{id}")).await.body;
        assert_eq!(last["response"]["output"], shown["output"]);
        assert_eq!(last["response"]["usage"], shown["usage"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_response_goes_on_alone_and_is_cancelled_by_name() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let asked = body(&json!({"background": true, "max_output_tokens": 9}));
    let reply = acme.post("/v1/responses", &asked).await;
    assert_eq!(
        (reply.status, &reply.body["status"]),
        (200, &json!("queued"))
    );
    let id = reply.body["id"].as_str().unwrap().to_owned();
    wait_for("the run", || worker.held() == 1).await;
    worker.generate(2);
    let path = format!("/v1/responses/{id}");
    let mut shown = Value::Null;
    for _ in 0..500 {
        shown = acme.get(&path).await.body;
        if shown["output"][0]["content"][0]["text"] == " 1 2" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(shown["status"], "in_progress", "{shown}");
    let cancelled = acme.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancelled.body["status"], "cancelled", "{}", cancelled.text);
    assert_eq!(cancelled.body["output"][0]["content"][0]["text"], " 1 2");
    let again = acme.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(again.body, cancelled.body, "repeats change nothing");
    let story = follow(&acme, &id, None).await;
    let last = data(story.last().unwrap());
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["status"], "cancelled");
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_fails_is_a_failed_response() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let stream = acme
        .stream("/v1/responses", &body(&json!({"stream": true})))
        .await;
    wait_for("the run", || worker.held() == 1).await;
    worker.generate(1);
    worker.fail("device lost");
    let story = blocks(stream).await;
    let last = data(story.last().unwrap());
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    let message = last["response"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("device lost"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_goes_on_from_what_is_stored_and_says_when_it_is_not() {
    let mut short = tenant("acme");
    short.retention_ms = 1;
    let (site, worker) = Site::with(true, vec![tenant("globex"), short]).await;
    let globex = site.client("globex");
    let first = globex
        .post("/v1/responses", &body(&json!({"instructions": "sys"})))
        .await
        .body;
    let second = body(&json!({"input": "more", "previous_response_id": first["id"]}));
    let reply = globex.post("/v1/responses", &second).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let third = body(&json!({"input": "end", "previous_response_id": reply.body["id"]}));
    assert_eq!(globex.post("/v1/responses", &third).await.status, 200);
    let prompts: Vec<String> = worker
        .submits()
        .iter()
        .map(|submit| {
            submit
                .prompt
                .iter()
                .map(|byte| *byte as u8 as char)
                .collect()
        })
        .collect();
    assert_eq!(prompts, ["syshi", "hi 1 2 3more", "hi 1 2 3more 1 2 3end"]);

    globex
        .delete(&format!("/v1/responses/{}", first["id"].as_str().unwrap()))
        .await;
    let refused = globex.post("/v1/responses", &third).await;
    assert_eq!(
        (refused.status, refused.code()),
        (400, "previous_response_not_found")
    );
    let unstored = globex
        .post("/v1/responses", &body(&json!({"store": false})))
        .await
        .body;
    let after = body(&json!({"previous_response_id": unstored["id"]}));
    let refused = globex.post("/v1/responses", &after).await;
    assert_eq!(refused.code(), "previous_response_not_found");
    let foreign = site.client("acme").post("/v1/responses", &third).await;
    assert_eq!(foreign.code(), "previous_response_not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_supported_is_refused_by_its_name() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    for (field, value, code) in [
        (
            "reasoning",
            json!({"effort": "high"}),
            "unsupported_parameter",
        ),
        ("truncation", json!("auto"), "unsupported_parameter"),
        (
            "include",
            json!(["file_search_call.results"]),
            "unsupported_parameter",
        ),
        ("conversation", json!("conv_1"), "unsupported_parameter"),
        (
            "input",
            json!([{"type": "item_reference", "id": "x"}]),
            "unsupported_parameter",
        ),
        ("frobnicate", json!(1), "invalid_request"),
        ("max_output_tokens", json!(0), "invalid_request"),
    ] {
        let reply = acme
            .post("/v1/responses", &body(&json!({field: value})))
            .await;
        assert_eq!(
            (reply.status, reply.code()),
            (400, code),
            "{field}: {}",
            reply.text
        );
        assert_eq!(reply.header("x-should-retry"), "false");
    }
    let hidden = body(&json!({"background": true, "store": false}));
    assert_eq!(
        acme.post("/v1/responses", &hidden).await.code(),
        "invalid_request"
    );
    for path in [
        "/v1/audio/speech",
        "/v1/images/generations",
        "/v1/moderations",
        "/v1/fine_tuning/jobs",
        "/v1/assistants",
    ] {
        let reply = acme.post(path, &json!({})).await;
        assert_eq!(
            (reply.status, reply.code()),
            (404, "unsupported_endpoint"),
            "{path}"
        );
        assert_eq!(reply.header("x-should-retry"), "false");
    }
}

/// The hole that others have: a client that leaves at its first event, or before, leaves a run that waits for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_at_any_moment_leaves_no_run_that_waits_for_ever() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    for round in 0..30 {
        let background = round % 3 == 0;
        let text = body(&json!({"stream": true, "background": background})).to_string();
        let mut socket = tokio::net::TcpStream::connect(site.address).await.unwrap();
        let request = format!(
            "POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer acme-dev-key\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        // It leaves at once, a little later, or with the first byte of the answer.
        match round % 5 {
            4 => {
                let mut first = [0; 1];
                socket.read_exact(&mut first).await.unwrap();
            }
            some => tokio::time::sleep(Duration::from_micros(some * 300)).await,
        }
        drop(socket);
    }
    // What runs in the background is served; what nobody waits for is cancelled; nothing is left.
    for _ in 0..2000 {
        worker.finish();
        let usage = acme.get("/usage").await.body;
        if usage["liveRuns"] == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    site.assert_settled("acme").await;
}
