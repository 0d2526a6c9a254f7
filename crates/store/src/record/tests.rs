use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_budget::{KeyHold, Reservation};
use weir_run::{
    Decision, DecisionReason, Epoch, FinishReason, Phase, PolicyAction, Price, Progress, Run,
    RunId, RunStatus, Sequence, Verdict, WorkOrder,
};

use super::*;
use crate::EventRecord;

fn any_status() -> impl Strategy<Value = RunStatus> {
    let live = [
        RunStatus::Accepted,
        RunStatus::Running,
        RunStatus::Cancelling,
    ];
    proptest::sample::select([&live[..], &RunStatus::TERMINAL[..]].concat())
}

fn any_progress() -> impl Strategy<Value = Progress> {
    let times = (any::<Option<u64>>(), any::<Option<u64>>());
    (any_status(), any::<[u64; 5]>(), times).prop_map(|(status, n, times)| Progress {
        status,
        epoch: Epoch(n[0]),
        cached_tokens: n[1],
        output_tokens: n[2],
        output_index: n[3],
        last_sequence: Sequence(n[4]),
        started_at_ms: times.0,
        first_token_at_ms: times.1,
    })
}

fn verdict() -> Verdict {
    Verdict {
        policy: "secrets".into(),
        version: 1,
        rule: "aws_access_key".into(),
        phase: Phase::After,
        action: PolicyAction::Redact,
        count: 2,
    }
}

#[expect(clippy::too_many_lines, reason = "one literal")]
fn any_run() -> impl Strategy<Value = Run> {
    let text = || ".{0,12}";
    let names = (proptest::option::of(text()), text(), text(), text(), text());
    let options = (
        any::<[Option<u64>; 3]>(),
        any::<Option<u128>>(),
        any::<Option<u128>>(),
    );
    let rest = (
        proptest::option::of(text()),
        proptest::collection::btree_map(text(), text(), 0..3),
    );
    let numbers = (any::<[u64; 8]>(), any::<[u32; 2]>(), any::<[u8; 32]>());
    (any_progress(), names, options, rest, numbers, 0_u8..4).prop_map(
        |(
            progress,
            names,
            (times, replaces, replaced_by),
            (error, metadata),
            (n, small, hash),
            reason,
        )| {
            let mut run = Run {
                id: RunId::new(n[0], 5),
                tenant: "acme".into(),
                request_key: names.0,
                payload_hash: hash,
                model: names.1.clone(),
                model_version: small[0],
                manifest_digest: names.2,
                pool: names.3,
                decision: Decision {
                    requested: names.4,
                    reason: DecisionReason::Fallback,
                    worker: error.clone(),
                    expected: weir_run::Expected {
                        estimate_ms: times[0],
                        predicted_ms: times[1],
                        ..weir_run::Expected::default()
                    },
                },
                status: RunStatus::Accepted,
                epoch: Epoch(0),
                choices: small[1],
                prompt_tokens: n[1],
                cached_tokens: 0,
                output_tokens: 0,
                output_index: 0,
                reserved_tokens: n[2],
                reserved_micros: n[3],
                price: Price {
                    prompt_micros_per_token: n[4],
                    cached_micros_per_token: n[5],
                    output_micros_per_token: n[6],
                },
                cost_micros: times[0],
                last_sequence: Sequence(0),
                created_at_ms: n[7],
                started_at_ms: None,
                first_token_at_ms: None,
                finished_at_ms: times[1],
                deadline_ms: times[2],
                finish_reason: match reason {
                    0 => None,
                    1 => Some(FinishReason::Stop),
                    2 => Some(FinishReason::Length),
                    _ => Some(FinishReason::ContentFilter),
                },
                error,
                replaces: replaces.map(|id| RunId::new(3, id)),
                replaced_by: replaced_by.map(|id| RunId::new(4, id)),
                events_expire_at_ms: n[0],
                metadata: metadata.into_iter().collect::<BTreeMap<_, _>>(),
                caller: (reason > 1).then(|| "ci".to_owned()),
                verdicts: vec![verdict(); usize::from(reason % 2)],
            };
            run.set_progress(progress);
            run
        },
    )
}

proptest! {
    #[test]
    fn a_run_decodes_to_what_was_encoded(run in any_run()) {
        let payload = run::encode(&run);
        prop_assert_eq!(run::decode(&run.tenant, run.id, &payload).unwrap(), run);
    }

    #[test]
    fn a_chunk_decodes_to_its_events_and_progress(
        progress in any_progress(), first in 1_u64..1_000_000, skip in 0_u64..9,
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8),
    ) {
        let events: Vec<EventRecord> = (first..).zip(&texts).map(|(n, text)| EventRecord {
            sequence: Sequence(n), kind: "delta", data: text.clone().into(),
        }).collect();
        let payload = chunk::encode(&progress, &events);
        prop_assert_eq!(chunk::progress(&payload).unwrap(), progress);
        let after = Sequence(first + skip);
        let want: Vec<_> = events.into_iter().filter(|e| e.sequence > after).collect();
        prop_assert_eq!(chunk::events(Sequence(first), &payload, after).unwrap(), want);
    }

    #[test]
    fn reservations_and_work_orders_decode_to_what_was_encoded(
        n in any::<[u64; 3]>(), periods_s in proptest::collection::vec(any::<u64>(), 0..4),
        prompt in proptest::collection::vec(any::<u32>(), 0..50), submit in proptest::collection::vec(any::<u8>(), 0..50),
        priority in any::<u8>(), max_queue_ms in any::<Option<u64>>(), attended in any::<bool>(), pool in ".{0,9}",
        key in proptest::option::of((".{0,9}", proptest::collection::vec(any::<u64>(), 0..3))),
    ) {
        let key = key.map(|(name, periods_s)| KeyHold { name, periods_s });
        let held = Reservation { tokens: n[0], micros: n[1], pool, accepted_at_ms: n[2], periods_s, key };
        prop_assert_eq!(run::decode_reservation(&run::encode_reservation(&held)).unwrap(), held);
        let work = WorkOrder { prompt, submit, priority, max_queue_ms, attended };
        prop_assert_eq!(run::decode_work(&run::encode_work(&work)).unwrap(), work);
    }

    #[test]
    fn no_bytes_make_a_decoder_panic_or_take_much_memory(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let id = RunId::new(1, 1);
        let _ = run::decode("acme", id, &bytes);
        let _ = run::decode_reservation(&bytes);
        let _ = run::decode_work(&bytes);
        let _ = chunk::events(Sequence(u64::MAX), &bytes, Sequence(0));
        let _ = ledger::Entry::decode(&bytes);
    }

    #[test]
    fn any_flipped_bit_and_any_other_key_breaks_the_seal(
        key in proptest::collection::vec(any::<u8>(), 1..20), payload in proptest::collection::vec(any::<u8>(), 0..50), bit in any::<usize>(),
    ) {
        let sealed = seal(&key, payload.clone());
        prop_assert_eq!(unseal(&key, &sealed).unwrap(), &payload[..]);
        let mut other = sealed.clone();
        let bit = bit % (other.len() * 8);
        other[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(unseal(&key, &other).is_err());
        let mut moved = key.clone();
        moved[0] ^= 1;
        prop_assert!(unseal(&moved, &sealed).is_err());
    }
}
