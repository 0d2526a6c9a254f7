use proptest::prelude::*;

use super::*;

const RUN: &str = "run_01JD0000000000000000000000";

fn usage() -> Usage {
    Usage {
        prompt_tokens: 11,
        cached_tokens: 0,
        output_tokens: 2,
        cost_micros: 19,
    }
}

#[test]
fn events_are_the_bytes_of_the_contract() {
    let run_id: RunId = RUN.parse().unwrap();
    let cases = [
        (
            "accepted",
            EventKind::Accepted {
                run_id,
                model_version: 2,
                reserved_tokens: 75,
            },
            r#"{"sequence":7,"runId":"run_01JD0000000000000000000000","modelVersion":2,"reservedTokens":75}"#,
        ),
        (
            "started",
            EventKind::Started { queue_ms: 3 },
            r#"{"sequence":7,"queueMs":3}"#,
        ),
        (
            "delta",
            delta("Red", 0, None),
            r#"{"sequence":7,"text":"Red","tokens":1}"#,
        ),
        (
            "delta",
            delta("\"\n", 1, Some(FinishReason::Length)),
            r#"{"sequence":7,"text":"\"\n","tokens":1,"choice":1,"choiceFinishReason":"length"}"#,
        ),
        (
            "completed",
            EventKind::completed(FinishReason::Stop, usage()),
            r#"{"sequence":7,"status":"completed","finishReason":"stop","usage":{"promptTokens":11,"cachedTokens":0,"outputTokens":2,"costMicros":19}}"#,
        ),
        (
            "completed",
            EventKind::Completed {
                status: RunStatus::Completed,
                finish_reason: FinishReason::Length,
                usage: usage(),
                guesses: Some(Guesses {
                    drafted_tokens: 9,
                    accepted_tokens: 4,
                }),
            },
            r#"{"sequence":7,"status":"completed","finishReason":"length","usage":{"promptTokens":11,"cachedTokens":0,"outputTokens":2,"costMicros":19},"guesses":{"draftedTokens":9,"acceptedTokens":4}}"#,
        ),
        (
            "interrupted",
            EventKind::Ended {
                status: RunStatus::Interrupted,
                reason: "worker lost".into(),
                usage: usage(),
            },
            r#"{"sequence":7,"status":"interrupted","reason":"worker lost","usage":{"promptTokens":11,"cachedTokens":0,"outputTokens":2,"costMicros":19}}"#,
        ),
    ];
    for (name, kind, want) in cases {
        let event = Event {
            sequence: Sequence(7),
            kind,
        };
        assert_eq!(event.kind.name(), name);
        assert_eq!(String::from_utf8(event.encode()).unwrap(), want);
        assert_eq!(Event::decode(name, want.as_bytes()).unwrap(), event);
        assert_eq!(event_name(name), Some(name));
    }
}

#[test]
fn bytes_stored_under_another_kind_are_refused() {
    let error = Event::decode("delta", br#"{"sequence":2,"queueMs":3}"#).unwrap_err();
    assert!(matches!(
        error,
        DecodeEventError::Kind {
            found: "started",
            ..
        }
    ));
    assert!(Event::decode("delta", b"{}").is_err());
    assert_eq!(event_name("running"), None);
}

fn delta(text: &str, choice: u32, choice_finish_reason: Option<FinishReason>) -> EventKind {
    EventKind::Delta {
        text: text.into(),
        tokens: 1,
        choice,
        logprobs: None,
        prompt_logprobs: Vec::new(),
        tool_calls: Vec::new(),
        choice_finish_reason,
    }
}

fn any_logprob() -> impl Strategy<Value = TokenLogprob> {
    (
        ".{0,4}",
        proptest::collection::vec(any::<u8>(), 0..5),
        -40.0_f32..0.0,
    )
        .prop_map(|(token, bytes, logprob)| TokenLogprob {
            token,
            bytes,
            logprob,
            top: vec![],
        })
}

fn any_prompt_logprob() -> impl Strategy<Value = PromptLogprob> {
    let top = proptest::collection::vec(any_logprob(), 0..2);
    let of = (any_logprob(), any::<bool>(), top);
    of.prop_map(|(own, is_first, top)| PromptLogprob {
        token: own.token,
        bytes: own.bytes,
        logprob: (!is_first).then_some(own.logprob),
        top,
    })
}

proptest! {
    #[test]
    fn a_delta_decodes_to_what_was_encoded(
        text in ".{0,20}", tokens in 0_u32..9, choice in 0_u32..3, sequence in 1_u64..u64::MAX,
        logprobs in proptest::option::of(proptest::collection::vec(any_logprob(), 0..3)),
        prompt_logprobs in proptest::collection::vec(any_prompt_logprob(), 0..3),
    ) {
        let kind = EventKind::Delta { text, tokens, choice, logprobs, prompt_logprobs, choice_finish_reason: None, tool_calls: Vec::new() };
        let event = Event { sequence: Sequence(sequence), kind };
        let data = event.encode();
        prop_assert!(!data.contains(&b'\n'), "an SSE data line cannot hold a line break");
        prop_assert_eq!(Event::decode("delta", &data).unwrap(), event);
    }
}
