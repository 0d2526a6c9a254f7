//! `OpenAI`'s calls, byte for byte where its clients look.

use http::Method;
use serde_json::{Value, json};

use crate::site::{Site, ask, wait_for};

fn chat() -> Value {
    json!({"model": "tiny", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], "max_tokens": 3})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = chat();
    body[field] = value;
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_answer_has_what_clients_read() {
    let (site, _worker) = Site::new(true).await;
    let reply = site
        .client("acme")
        .post("/v1/chat/completions", &chat())
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body["object"], "chat.completion");
    assert!(reply.body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(reply.body["model"], "tiny");
    assert_eq!(
        reply.body["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": " 1 2 3", "refusal": null}, "logprobs": null, "finish_reason": "length"}])
    );
    assert_eq!(
        reply.body["usage"],
        json!({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 2},
               "completion_tokens_details": {"reasoning_tokens": 0}})
    );
    assert!(reply.header("x-run-id").starts_with("run_"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_stream_ends_with_a_finish_chunk_usage_where_asked_for_and_done() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut body = with("stream", json!(true));
    let stream = acme.stream("/v1/chat/completions", &body).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.generate(2);
    worker.finish();
    let data = stream.data().await;
    let chunks: Vec<Value> = data[..data.len() - 1]
        .iter()
        .map(|d| serde_json::from_str(d).unwrap())
        .collect();
    assert_eq!(data.last().unwrap(), "[DONE]");
    assert!(
        chunks
            .iter()
            .all(|c| c.get("usage").is_none() && c["object"] == "chat.completion.chunk")
    );
    assert_eq!(
        chunks
            .iter()
            .map(|c| c["choices"][0]["delta"].clone())
            .collect::<Vec<_>>(),
        [
            json!({"role": "assistant", "content": " 1"}),
            json!({"content": " 2"}),
            json!({})
        ]
    );
    assert_eq!(
        chunks
            .iter()
            .map(|c| c["choices"][0]["finish_reason"].clone())
            .collect::<Vec<_>>(),
        [json!(null), json!(null), json!("stop")]
    );

    body["stream_options"] = json!({"include_usage": true});
    let stream = acme.stream("/v1/chat/completions", &body).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.generate(3);
    let data = stream.data().await;
    let usage: Value = serde_json::from_str(&data[data.len() - 2]).unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 3);
    let first: Value = serde_json::from_str(&data[0]).unwrap();
    assert_eq!(first["usage"], json!(null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_run_breaks_says_so_in_the_form_clients_raise() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let stream = acme
        .stream("/v1/chat/completions", &with("stream", json!(true)))
        .await;
    wait_for("the run", || worker.held() == 1).await;
    worker.generate(1);
    worker.fail("device lost");
    let data = stream.data().await;
    let error: Value = serde_json::from_str(&data[1]).unwrap();
    assert_eq!(error["error"]["code"], "failed");
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("device lost")
    );
    assert_eq!(data.last().unwrap(), "[DONE]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_come_in_each_calls_own_form() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let mut body = with("logprobs", json!(true));
    body["top_logprobs"] = json!(2);
    let reply = acme.post("/v1/chat/completions", &body).await;
    let content = reply.body["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(content.len(), 3);
    assert_eq!(content[0]["token"], " 1");
    assert_eq!(content[0]["bytes"], json!([32, 49]));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let body = json!({"model": "tiny", "prompt": "hi", "max_tokens": 2, "logprobs": 1});
    let reply = acme.post("/v1/completions", &body).await;
    assert_eq!(reply.body["object"], "text_completion");
    assert_eq!(reply.body["choices"][0]["text"], " 1 2");
    let logprobs = &reply.body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!([" 1", " 2"]));
    assert_eq!(logprobs["text_offset"], json!([0, 2]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"alt0": -1.0}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_echoed_prompt_comes_first_with_what_the_model_expected_of_it() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let body =
        json!({"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2, "logprobs": 1, "echo": true});
    let reply = acme.post("/v1/completions", &body).await;
    let choice = &reply.body["choices"][0];
    assert_eq!(choice["text"], "<5><6><7> 1 2", "{}", reply.text);
    let whole = json!({
        "tokens": ["<5>", "<6>", "<7>", " 1", " 2"],
        "token_logprobs": [null, -1.0, -2.0, -0.5, -0.5],
        "top_logprobs": [null, {"alt0": -1.0}, {"alt0": -1.0}, {"alt0": -1.0}, {"alt0": -1.0}],
        "text_offset": [0, 3, 6, 9, 11],
    });
    assert_eq!(choice["logprobs"], whole);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let data = acme.stream("/v1/completions", &streamed).await.data().await;
    let (mut text, mut tokens, mut offsets) = (String::new(), Vec::new(), Vec::new());
    for data in data.iter().filter(|data| data.as_str() != "[DONE]") {
        let chunk: Value = serde_json::from_str(data).unwrap();
        let choice = &chunk["choices"][0];
        text.push_str(choice["text"].as_str().unwrap());
        let list = |name: &str| {
            choice["logprobs"][name]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        tokens.extend(list("tokens"));
        offsets.extend(list("text_offset"));
    }
    assert_eq!(text, "<5><6><7> 1 2");
    assert_eq!(
        (json!(tokens), json!(offsets)),
        (whole["tokens"].clone(), whole["text_offset"].clone())
    );
    // Without log-probabilities a text is what the client wrote, and the worker is asked for nothing.
    let plain = json!({"model": "tiny", "prompt": "once", "max_tokens": 1, "echo": true});
    let reply = acme.post("/v1/completions", &plain).await;
    assert_eq!(reply.body["choices"][0]["text"], "once 1");
    assert_eq!(reply.body["choices"][0]["logprobs"], Value::Null);
    // In a conversation a part of the prompt is not the client's.
    let native = json!({"model": "tiny", "input": "hi", "sampling": {"promptLogprobs": 1}});
    let refused = acme.post("/inference", &native).await;
    assert_eq!(
        (refused.status, refused.code()),
        (400, "invalid_request"),
        "{}",
        refused.text
    );
    let several = json!({"model": "tiny", "prompt": [5, 6], "max_tokens": 2, "logprobs": 1, "echo": true, "n": 2});
    let refused = acme.post("/v1/completions", &several).await;
    assert_eq!(
        (refused.status, &refused.body["error"]["param"]),
        (400, &json!("echo"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_supported_is_refused_unless_it_asks_for_nothing() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    for (field, neutral, asking) in [
        ("logit_bias", json!({}), json!({"5": 10})),
        ("tools", json!([]), json!([{"type": "web_search"}])),
        (
            "response_format",
            json!({"type": "text"}),
            json!({"type": "xml"}),
        ),
        ("store", json!(false), json!(true)),
        ("modalities", json!(["text"]), json!(["audio"])),
    ] {
        let fine = acme
            .post("/v1/chat/completions", &with(field, neutral))
            .await;
        assert_eq!(fine.status, 200, "{field}: {}", fine.text);
        let refused = acme
            .post("/v1/chat/completions", &with(field, asking))
            .await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, "unsupported_parameter"),
            "{field}"
        );
        let param = refused.body["error"]["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(field), "{param}");
        assert_eq!(refused.body["error"]["type"], "invalid_request_error");
    }
    let cases = [
        (with("frobnicate", json!(1)), "frobnicate"),
        (with("temperature", json!(2.5)), "temperature"),
        (with("messages", json!([])), "messages"),
        (
            with(
                "messages",
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
            ),
            "messages[0].content",
        ),
        (with("top_logprobs", json!(2)), "top_logprobs"),
        (
            with("stream_options", json!({"include_usage": true})),
            "stream_options",
        ),
    ];
    for (body, param) in cases {
        let reply = acme.post("/v1/chat/completions", &body).await;
        assert_eq!(reply.status, 400, "{param}: {}", reply.text);
        assert_eq!(reply.body["error"]["param"], param);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_with_its_key_gets_the_same_answer() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    let key = [("idempotency-key", "once"), ("x-weir-priority", "batch")];
    let first = acme
        .call(Method::POST, "/v1/chat/completions", Some(&chat()), &key)
        .await;
    let again = acme
        .call(Method::POST, "/v1/chat/completions", Some(&chat()), &key)
        .await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.text, again.text);
    assert_eq!(worker.submits().len(), 1);
    assert_eq!(worker.submits()[0].priority, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_lists_what_the_key_may_use() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let list = acme.get("/v1/models").await.body;
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "tiny");
    assert_eq!(list["data"][0]["object"], "model");
    assert_eq!(acme.get("/v1/models/tiny").await.body["id"], "tiny");
    let other = acme.get("/v1/models/gpt-4").await;
    assert_eq!((other.status, other.code()), (403, "model_not_permitted"));
}

/// Tokens guessed ahead are told in the run's last event, in an answer and at the end of a stream, and change nothing of what is billed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_are_told_where_clients_look_and_not_billed() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    let mut body = with("stream", json!(true));
    body["stream_options"] = json!({"include_usage": true});
    let stream = acme.stream("/v1/chat/completions", &body).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.generate(2);
    worker.end_with_guesses(9, 4);
    let data = stream.data().await;
    let last: Value = serde_json::from_str(&data[data.len() - 2]).unwrap();
    let details = json!({"reasoning_tokens": 0, "accepted_prediction_tokens": 4, "rejected_prediction_tokens": 5});
    assert_eq!(last["usage"]["completion_tokens_details"], details);
    assert_eq!(last["usage"]["completion_tokens"], 3);
    let run = acme.post("/inference", &ask(8)).await.run();
    wait_for("the second run", || worker.submits().len() == 2).await;
    worker.generate(1);
    worker.end_with_guesses(2, 0);
    let events = acme.all_events(&run, 0).await;
    let end = &events.last().unwrap().data;
    assert_eq!(
        end["guesses"],
        json!({"draftedTokens": 2, "acceptedTokens": 0})
    );
    assert_eq!(end["usage"]["outputTokens"], 2);
}
