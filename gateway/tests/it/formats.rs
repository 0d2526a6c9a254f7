//! Formats and tools at the gateway's door.

use serde_json::{Value, json};

use crate::site::Site;

fn chat(field: &str, value: Value) -> Value {
    let mut body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
    body[field] = value;
    body
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}}])
}

/// The fake worker knows nothing of grammars, like one of an older build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_enforce_a_format_never_gets_the_run() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    let body = chat("response_format", json!({"type": "json_object"}));
    let reply = acme.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 500, "{reply:?}");
    assert_eq!(reply.body["error"]["code"], "failed");
    let message = reply.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("grammar_error"), "{message}");
    assert_eq!(worker.held(), 0);
    let row = acme
        .get(&format!("/runs/{}", reply.header("x-run-id")))
        .await;
    assert_eq!(
        (&row.body["status"], &row.body["outputTokens"]),
        (&json!("failed"), &json!(0))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_honoured_is_refused_by_its_place_before_anything_is_reserved() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let cases = [
        (
            chat(
                "response_format",
                schema(json!({"type": "object", "properties": {"a": {"uniqueItems": true}}})),
            ),
            422,
            "response_format",
            "#/properties/a/uniqueItems",
        ),
        (
            chat("response_format", schema(json!({"$ref": "#"}))),
            422,
            "response_format",
            "",
        ),
        (
            chat(
                "response_format",
                json!({"type": "regex", "pattern": "(?=a)b"}),
            ),
            422,
            "response_format",
            "",
        ),
        (
            chat(
                "response_format",
                json!({"type": "grammar", "grammar": "start: %json {}"}),
            ),
            422,
            "response_format",
            "",
        ),
        (
            chat("response_format", json!({"type": "xml"})),
            400,
            "response_format.type",
            "",
        ),
        (
            chat(
                "tools",
                json!([{"type": "function", "function": {"name": "a b"}}]),
            ),
            422,
            "tools",
            "#",
        ),
        (
            chat("tools", json!([{"type": "web_search"}])),
            400,
            "tools[0].type",
            "",
        ),
        (
            chat("tool_choice", json!("required")),
            400,
            "tool_choice",
            "",
        ),
    ];
    for (body, status, param, pointer) in cases {
        let reply = acme.post("/v1/chat/completions", &body).await;
        assert_eq!(
            (reply.status, reply.body["error"]["param"].as_str()),
            (status, Some(param)),
            "{body}: {reply:?}"
        );
        if status == 422 {
            assert_eq!(reply.body["error"]["code"], "schema_error");
        }
        if !pointer.is_empty() {
            assert_eq!(
                reply.body["error"]["details"]["pointer"], pointer,
                "{reply:?}"
            );
        }
    }
    let native = json!({"model": "tiny", "input": {"tokens": [1, 2]}, "tools": tools()});
    assert_eq!(acme.post("/inference", &native).await.status, 400);
    let usage = acme.get("/usage").await;
    assert_eq!(usage.body["byModel"], json!([]), "{usage:?}");
}
