//! Outputs with a grammar.

use serde_json::{Value, json};
use weir_protocol::worker::grammar::Kind;
use weir_protocol::worker::{
    Attach, Grammar, Row, Submit, finish::Reason, rejected::Code, worker_frame::Frame,
};

use crate::gateway::{Gateway, Got, hello, id, submit};
use crate::harness::{LIMITS, Options, TestWorker};

fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "list"],
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 30},
            "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "minItems": 2, "maxItems": 6},
        },
    })
}

fn constrained(run: u8, kind: Kind, text: &str, most: u32) -> Submit {
    let prompt: Vec<u32> = (1..20).map(|at| at + u32::from(run)).collect();
    Submit {
        grammar: Some(Grammar {
            kind: kind.into(),
            text: text.to_owned(),
        }),
        ..submit(run, &prompt, most)
    }
}

fn with_schema(run: u8) -> Submit {
    constrained(run, Kind::JsonSchema, &schema().to_string(), 300)
}

fn text(rows: &[Row]) -> String {
    rows.iter().map(|row| row.text.as_str()).collect()
}

fn ending(rows: &[Row]) -> (Reason, String) {
    let finish = rows.last().unwrap().finish.as_ref().unwrap();
    (finish.reason(), finish.message.clone())
}

fn check_document(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let length = value["name"].as_str().unwrap().chars().count();
    assert!((3..=30).contains(&length), "{text}");
    let list = value["list"].as_array().unwrap();
    assert!((2..=6).contains(&list.len()), "{text}");
    assert!(
        list.iter().all(|item| item.as_u64().unwrap() <= 9999),
        "{text}"
    );
    assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
}

async fn rows_of(gateway: &mut Gateway, submit: Submit) -> Vec<Row> {
    gateway.send(submit).await;
    gateway.rows_to_the_end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_s_output_is_a_document_of_it_and_the_same_for_the_same_seed() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut seen = Vec::new();
    for run in 0..6 {
        let rows = rows_of(&mut gateway, with_schema(run)).await;
        check_document(&text(&rows));
        assert_eq!(ending(&rows).0, Reason::Stop);
        seen.push(text(&rows));
    }
    let again = Submit {
        run: id(77),
        ..with_schema(3)
    };
    assert_eq!(text(&rows_of(&mut gateway, again).await), seen[3]);
    seen.dedup();
    assert!(seen.len() > 3, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_choice_follows_the_grammar_on_its_own() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let rows = rows_of(
        &mut gateway,
        Submit {
            choices: 4,
            ..with_schema(1)
        },
    )
    .await;
    for choice in 0..4 {
        let of_it: Vec<Row> = rows
            .iter()
            .filter(|row| row.choice == choice)
            .cloned()
            .collect();
        check_document(&text(&of_it));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_cuts_the_document_and_says_so() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let cut = constrained(1, Kind::JsonSchema, &schema().to_string(), 8);
    let rows = rows_of(&mut gateway, cut).await;
    assert_eq!(ending(&rows).0, Reason::Length);
    assert!(text(&rows).starts_with('{'));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_tools_come_apart_from_text() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let tools = json!({"format": "hermes", "choice": "required", "parallel": true, "tools": [
        {"name": "look_up", "parameters": schema()}, {"name": "ask", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}]});
    for run in 0..4 {
        let rows = rows_of(
            &mut gateway,
            constrained(run, Kind::Tools, &tools.to_string(), 400),
        )
        .await;
        assert_eq!(text(&rows), "");
        let mut calls: Vec<(String, String, String)> = Vec::new();
        for piece in rows.iter().flat_map(|row| &row.tool_calls) {
            if piece.name.is_empty() {
                let call = &mut calls[piece.index as usize];
                call.2.push_str(&piece.arguments);
            } else {
                assert_eq!(piece.index as usize, calls.len());
                calls.push((piece.id.clone(), piece.name.clone(), String::new()));
            }
        }
        assert!(!calls.is_empty());
        let whole = ending(&rows).0 == Reason::Stop;
        let last = calls.len() - 1;
        for (at, (id, name, arguments)) in calls.iter().enumerate() {
            assert!(id.starts_with("call_"), "{id}");
            if !whole && at == last {
                continue;
            }
            match name.as_str() {
                "look_up" => check_document(arguments),
                "ask" => assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({})),
                other => panic!("{other}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preempted_outputs_go_on_where_they_stood() {
    let alone = {
        let worker = TestWorker::start().await;
        let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
        let mut texts = Vec::new();
        for run in 0..8 {
            texts.push(text(&rows_of(&mut gateway, with_schema(run)).await));
        }
        texts
    };
    // Room for about two of them at a time.
    let mut limits = LIMITS;
    limits.blocks = 26;
    let worker = TestWorker::start_with(Options {
        limits,
        ..Options::default()
    })
    .await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    for run in 0..8 {
        gateway.send(with_schema(run)).await;
    }
    let mut texts = vec![String::new(); 8];
    let mut finished = 0;
    while finished < 8 {
        let row = gateway.row().await;
        texts[usize::from(row.run[0])].push_str(&row.text);
        finished += usize::from(row.run_finished);
    }
    assert_eq!(texts, alone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_returns_in_the_middle_of_a_string_gets_the_rest_of_the_document() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    gateway
        .send(Submit {
            credit: 14,
            ..with_schema(5)
        })
        .await;
    let mut begun = String::new();
    for _ in 0..14 {
        begun.push_str(&gateway.row().await.text);
    }
    drop(gateway);
    let mut gateway = Gateway::connect(&worker.socket(), hello(2)).await.unwrap();
    gateway
        .send(Attach {
            run: id(5),
            epoch: 2,
            from_index: 14,
            credit: 1 << 20,
        })
        .await;
    let rows = gateway.rows_to_the_end().await;
    check_document(&(begun + &text(&rows)));
}

#[tokio::test(flavor = "multi_thread")]
async fn grammars_that_cannot_be_used_start_nothing() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut ignoring = with_schema(3);
    ignoring.sampling.as_mut().unwrap().ignore_eos = true;
    let cases = [
        constrained(1, Kind::JsonSchema, "{\"type\": \"objekt\"}", 9),
        constrained(2, Kind::Regex, "a(", 9),
        ignoring,
        constrained(4, Kind::Unspecified, "", 9),
    ];
    for case in cases {
        let run = case.run.clone();
        gateway.send(case).await;
        loop {
            match gateway.next().await {
                Got::Frame(Frame::Rejected(rejected)) => {
                    assert_eq!((rejected.code(), &rejected.run), (Code::Invalid, &run));
                    assert!(
                        rejected.message.starts_with("grammar_error: "),
                        "{rejected:?}"
                    );
                    break;
                }
                Got::Frame(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    check_document(&text(&rows_of(&mut gateway, with_schema(9)).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_samples_what_the_grammar_forbids_fails_the_run_and_shows_none_of_it() {
    let worker = TestWorker::start().await;
    worker.controls.ignore_masks();
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let rows = rows_of(&mut gateway, with_schema(1)).await;
    let (reason, message) = ending(&rows);
    assert_eq!(reason, Reason::Failed);
    assert!(message.starts_with("grammar_error: "), "{message}");
    assert_eq!((rows.len(), text(&rows)), (1, String::new()));
}
