//! Any log, cut anywhere.

use proptest::prelude::*;
use serde_json::Value;
use weir_run::{EventKind, FinishReason, RunId, RunStatus, TokenLogprob, Usage};

use super::Events;
use crate::http::sse::Shape;
use crate::hub::{Frame, encode};
use crate::openai::responses::record::Record;
use crate::openai::responses::story::Story;

fn delta(text: &str, logprobs: bool) -> EventKind {
    let token = TokenLogprob {
        token: text.to_owned(),
        bytes: text.as_bytes().to_vec(),
        logprob: -0.5,
        top: Vec::new(),
    };
    EventKind::Delta {
        text: text.to_owned(),
        tokens: 1,
        choice: 0,
        logprobs: logprobs.then(|| vec![token]),
        prompt_logprobs: Vec::new(),
        tool_calls: Vec::new(),
        choice_finish_reason: None,
    }
}

fn end(how: u8) -> EventKind {
    let usage = Usage::default();
    match how {
        0 => EventKind::completed(FinishReason::Stop, usage),
        1 => EventKind::completed(FinishReason::Length, usage),
        other => EventKind::Ended {
            status: if other == 2 {
                RunStatus::Cancelled
            } else {
                RunStatus::Interrupted
            },
            reason: "why".to_owned(),
            usage,
        },
    }
}

prop_compose! {
    /// A run's log: perhaps never started, texts of which some are empty, and one of all ends.
    fn log()(
        started in any::<bool>(),
        texts in proptest::collection::vec("[a-c\\n]{0,3}", 0..9),
        logprobs in any::<bool>(),
        how in 0_u8..4,
    ) -> Vec<Frame> {
        let mut kinds = vec![EventKind::Accepted { run_id: RunId::new(7, 7), model_version: 1, reserved_tokens: 9 }];
        if started {
            kinds.push(EventKind::Started { queue_ms: 1 });
            kinds.extend(texts.iter().map(|text| delta(text, logprobs)));
        }
        kinds.push(end(if started { how } else { 2 + how % 2 }));
        kinds.iter().zip(1..).map(|(kind, sequence)| encode(sequence, kind)).collect()
    }
}

/// What a client gets, as one text.
fn told(log: &[Frame], background: bool, after: Option<u64>) -> String {
    let record = Record {
        background,
        logprobs: Some(0),
        ..Record::default()
    };
    let mut events = Events::new(Story::new(RunId::new(7, 7), "m", 1000, record), after);
    let bytes = log.iter().filter_map(|frame| events.event(frame));
    bytes
        .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
        .collect()
}

fn split(text: &str) -> Vec<String> {
    text.split_inclusive("\n\n").map(str::to_owned).collect()
}

proptest! {
    #[test]
    fn any_beginning_and_its_continuation_are_the_whole_stream(log in log(), background in any::<bool>()) {
        let whole = told(&log, background, None);
        let events = split(&whole);
        for (number, event) in events.iter().enumerate() {
            let (_, data) = event.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            prop_assert_eq!(data["sequence_number"].as_u64(), Some(number as u64));
            let rest = told(&log, background, Some(number as u64));
            prop_assert_eq!(events[..=number].concat() + &rest, whole.clone());
        }
    }

    #[test]
    fn the_deltas_are_the_text_and_every_item_that_begins_ends(log in log()) {
        let events = split(&told(&log, false, None));
        let data = |event: &String| -> Value { serde_json::from_str(event.split_once("\ndata: ").unwrap().1).unwrap() };
        let all: Vec<Value> = events.iter().map(data).collect();
        let of = |kind: &str| -> Vec<&Value> { all.iter().filter(|event| event["type"] == kind).collect() };
        let deltas: String = of("response.output_text.delta").iter().map(|event| event["delta"].as_str().unwrap()).collect();
        let begun = of("response.output_item.added").len();
        prop_assert_eq!(begun, of("response.output_item.done").len());
        prop_assert!(begun <= 1);
        if let Some(done) = of("response.output_text.done").first() {
            prop_assert_eq!(done["text"].as_str(), Some(deltas.as_str()));
        }
        let last = all.last().unwrap();
        prop_assert_eq!(last["response"]["output"].as_array().unwrap().len(), begun);
    }
}
