//! Formats on real processes: the gateway dies in the middle of a JSON string, and the document is whole all the same.

use serde_json::{Value, json};
use weir_e2e::{RandomModel, Signal, Site, Tenant, send, wait_for};

fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["text", "list"],
        "properties": {
            "text": {"type": "string", "minLength": 150, "maxLength": 160},
            "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
        },
    })
}

fn text_of(events: &[weir_e2e::Event]) -> String {
    events
        .iter()
        .filter(|event| event.kind == "delta")
        .map(|event| event.json()["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_gateway_killed_in_the_middle_of_a_string_continues_to_a_valid_document() {
    let shape = RandomModel {
        hidden: 256,
        layers: 8,
        intermediate: 1024,
        ..RandomModel::default()
    };
    let site = Site::random(shape, &[Tenant::unlimited("acme")]).unwrap();
    let mut weir = site.up().unwrap();
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 1_000, "requestKey": "k",
        "responseFormat": {"type": "json_schema", "schema": schema()}, "sampling": {"seed": 3}});
    let mut stream = weir.client("acme-dev-key").stream(&body).unwrap();
    let mut seen = Vec::new();
    while text_of(&seen).len() < 40 {
        seen.push(stream.next_event().unwrap().expect("a long document"));
    }
    send(weir.pid(), Signal::KILL);
    weir.kill().unwrap();
    // Dropping would kill the worker that shall outlive its gateway.
    std::mem::forget(weir);

    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let run = seen[0].json()["runId"].as_str().unwrap().to_owned();
    let events = client.all_events(&run, 0).unwrap();
    let last = events.last().unwrap();
    assert_eq!(last.kind, "completed", "{last:?}");
    assert_eq!(last.json()["finishReason"], "stop");
    assert_eq!(
        events[..seen.len()],
        seen,
        "the beginning replays byte by byte"
    );
    let document: Value = serde_json::from_str(&text_of(&events)).unwrap();
    let length = document["text"].as_str().unwrap().chars().count();
    assert!((150..=160).contains(&length), "{document}");
    assert!(
        (2..=4).contains(&document["list"].as_array().unwrap().len()),
        "{document}"
    );
}

#[test]
fn calls_are_in_the_log_and_the_log_alone_tells_them() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["at"],
        "properties": {"at": {"type": "integer", "minimum": 0, "maximum": 99}}});
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 600, "requestKey": "k", "sampling": {"seed": 1},
        "tools": [{"type": "function", "function": {"name": "look", "parameters": parameters}}],
        "toolChoice": "required", "parallelToolCalls": false});
    let stream = client.stream(&body).unwrap();
    let live = stream.to_end().unwrap();
    let run = live[0].json()["runId"].as_str().unwrap().to_owned();
    assert_eq!(client.all_events(&run, 0).unwrap(), live);
    assert_eq!(text_of(&live), "");
    let mut arguments = String::new();
    let mut names = Vec::new();
    for event in live.iter().filter(|event| event.kind == "delta") {
        for piece in event.json()["toolCalls"].as_array().into_iter().flatten() {
            assert_eq!(piece["index"], 0);
            names.extend(piece["name"].as_str().map(str::to_owned));
            arguments.push_str(piece["arguments"].as_str().unwrap());
        }
    }
    assert_eq!(names, ["look"]);
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    assert!((0..=99).contains(&arguments["at"].as_u64().unwrap()));
    wait_for("the run to be terminal", 10, || {
        let row = client.get(&format!("/runs/{run}")).ok()?.body;
        (row["status"] == "completed").then_some(())
    })
    .unwrap();
}
