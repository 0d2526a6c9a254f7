//! The format, its bounds, and what a rebuilt log knows.

use super::*;
use crate::evidence::{Sign, Stratum, Tally};
use crate::routing::{Share, TableOrder, Thresholds};
use crate::{Limits, OnBreach, Plan, Policy, Promote, StepPlan};

fn v(version: u32) -> VersionId {
    VersionId::new(version, format!("sha256:{version:064x}"))
}

fn plan(steps: usize) -> Plan {
    let step = |index: usize| StepPlan {
        weight_percent: 5 + 9 * u32::try_from(index).unwrap(),
        bake_ms: 60_000,
        max_wait_ms: 1_800_000,
    };
    Plan {
        shadow: None,
        steps: (0..steps).map(step).collect(),
        limits: Limits {
            error_rate_ppm: 10_000,
            ttft_p95_ms: Some(500),
            inter_token_p95_ms: Some(100),
            min_requests: 50,
            false_alarm_ppm: 10_000,
            promote_risk_ppm: 50_000,
        },
        on_no_data: Policy::Hold,
        on_inconclusive: Policy::Hold,
        on_breach: OnBreach::Rollback,
        promote: Promote::Fine,
        final_bake_ms: 60_000,
        reserve: Reserve::FullThenOne,
        downtime: false,
        progress_deadline_ms: 600_000,
    }
}

fn in_step(steps: usize) -> Record {
    let table = Table {
        entries: vec![
            Share {
                id: v(2),
                weight: 95,
            },
            Share {
                id: v(3),
                weight: 5,
            },
        ],
        rollback: Some(v(2)),
        step: 1,
        attempt: Some("v3-2".into()),
        coin_salt: "ab".repeat(32),
        thresholds: Thresholds {
            ttft_edges: Some([30, 40]),
            ..Thresholds::default()
        },
        ..Table::all_to(TableOrder::new(1, 7), v(2))
    };
    Record {
        stamp: Stamp {
            epoch: 1,
            revision: 19,
        },
        at_ms: 1_700_000_000_000,
        stable: Some(v(2)),
        rollback_to: Some(v(1)),
        attempt: Some(Attempt {
            id: "v3-2".into(),
            target: v(3),
            spec_hash: "5e".repeat(32),
            plan: plan(steps),
            phase: Phase::Step,
            step: 1,
            entered_at_ms: 1_700_000_000_000,
            room: Some(Room::Beside),
            kept: Kept::default(),
            done: vec![],
            lowered: false,
            hold: None,
            overrides: vec![],
            ending: None,
        }),
        routing: Some(table),
        ..Record::empty()
    }
}

/// As much of everything as the bounds allow.
fn full() -> Record {
    let mut record = in_step(10);
    let tally = Tally {
        canary: [123_456, 1_234_567],
        stable: [234_567, 12_345_678],
    };
    let signs = [
        Sign::Errors,
        Sign::TtftLimit,
        Sign::InterTokenLimit,
        Sign::TtftMedian,
        Sign::TtftTail,
        Sign::InterTokenMedian,
        Sign::InterTokenTail,
        Sign::Output,
        Sign::Length,
        Sign::Refusal,
        Sign::FailedSoFar,
    ];
    let attempt = record.attempt.as_mut().unwrap();
    for weight in 1..=12 {
        attempt.freeze(Stratum {
            step: 1,
            weight,
            generation: 1,
            assigned: [1, 1],
            signs: signs.iter().map(|&sign| (sign, tally)).collect(),
        });
    }
    for number in 0..50_u32 {
        record
            .handled_requests
            .push(format!("0190a3c2-{number:04}-7000-8000-000000000000"));
        record.rejected.push(Rejected {
            id: v(number),
            spec_hash: "5e".repeat(32),
            reason: "GuardrailBreached".into(),
            attempt: format!("v{number}-1"),
            evidence: Some(Proof {
                guardrail: "interTokenLimit".into(),
                canary: [17, 420],
                stable: [3, 8_100],
                log_evidence_milli: 5_212,
            }),
            at_ms: 1_700_000_000_000,
        });
        record.history.push(Ended {
            attempt: format!("v{number}-1"),
            version: number,
            outcome: "GuardrailBreached".into(),
            at_ms: 1_700_000_000_000,
        });
    }
    record
}

#[test]
fn a_record_survives_its_encoding() {
    for record in [Record::empty(), in_step(3)] {
        let bytes = encode(&record).unwrap();
        assert_eq!(decode(&bytes).unwrap(), record);
        assert_eq!(encode(&decode(&bytes).unwrap()).unwrap(), bytes);
    }
}

#[test]
fn an_api_server_may_reorder_the_fields() {
    let bytes = encode(&in_step(3)).unwrap();
    let sorted: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let reordered = serde_json::to_vec(&sorted).unwrap();
    assert_eq!(encode(&decode(&reordered).unwrap()).unwrap(), bytes);
}

#[test]
fn the_fullest_record_fits_and_keeps_the_newest() {
    let bytes = encode(&full()).unwrap();
    assert!(bytes.len() <= MAX_BYTES);
    let kept = decode(&bytes).unwrap();
    assert_eq!(kept.handled_requests.len(), Record::MAX_REQUESTS);
    assert_eq!(kept.rejected.last(), full().rejected.last());
    assert!(kept.rejected.len() >= 8, "{}", kept.rejected.len());
    assert_eq!(kept.attempt, full().attempt);
}

#[test]
fn records_that_must_not_be_used_say_why() {
    let newer = br#"{"schema":2,"whatIsThis":1}"#;
    assert!(matches!(decode(newer), Err(RecordError::Newer(2))));
    assert!(matches!(decode(b"{}"), Err(RecordError::Decode(_))));
    let mut routed = in_step(3);
    let attempt = routed.attempt.as_mut().unwrap();
    (attempt.phase, attempt.step) = (Phase::RollingBack, 0);
    assert_eq!(routed.check(), Err(Broken::StillRouted(5)));
    assert!(matches!(encode(&routed), Err(RecordError::Broken(_))));
    let mut step = in_step(3);
    step.attempt.as_mut().unwrap().step = 4;
    assert_eq!(step.check(), Err(Broken::Step(4)));
    let mut pointer = in_step(3);
    pointer.rollback_to = Some(v(2));
    assert_eq!(pointer.check(), Err(Broken::Rollback));
}

#[test]
fn names_order_nothing_and_collide_for_equal_places_only() {
    let place = Stamp {
        epoch: 1,
        revision: 2,
    };
    assert_eq!(name("tiny", place), name("tiny", place));
    assert_ne!(
        name("tiny", place),
        name(
            "tiny",
            Stamp {
                epoch: 2,
                revision: 2
            }
        )
    );
    assert_ne!(name("tiny", place), name("tinier", place));
    assert_eq!("1.2".parse(), Ok(place));
    assert!("1-2".parse::<Stamp>().is_err());
}

#[test]
fn attempts_are_numbered_above_every_one_that_is_remembered() {
    let record = full();
    assert_eq!(record.next_attempt(3), 3);
    assert_eq!(record.next_attempt(49), 2);
    assert_eq!(record.next_attempt(99), 1);
}

#[test]
fn frozen_evidence_of_one_step_and_weight_adds_up() {
    let mut attempt = in_step(3).attempt.unwrap();
    let stratum = |weight, bad| Stratum {
        step: 1,
        weight,
        generation: 1,
        assigned: [10, 90],
        signs: [(
            Sign::Errors,
            Tally {
                canary: [bad, 10],
                stable: [0, 90],
            },
        )]
        .into(),
    };
    for (weight, bad) in [(5, 1), (25, 4), (5, 2)] {
        attempt.freeze(stratum(weight, bad));
    }
    let bad: Vec<u64> = attempt
        .done
        .iter()
        .map(|s| s.tally(Sign::Errors).canary[0])
        .collect();
    assert_eq!(bad, [3, 4]);
}

#[test]
fn a_log_is_rebuilt_from_any_witnesses_that_are_left() {
    let table = in_step(3).routing.unwrap();
    let child = |version, is_stable, is_rollback| ChildWitness {
        id: v(version),
        stamp: Stamp {
            epoch: 1,
            revision: 30,
        },
        is_stable,
        is_rollback,
    };
    let everything = Witnesses {
        newest: Some(in_step(3)),
        tables: vec![table.clone(), Table::all_to(TableOrder::new(1, 6), v(1))],
        children: vec![
            child(2, true, false),
            child(1, false, true),
            child(3, false, false),
        ],
        status: Some((v(2), Some(v(1)))),
        rejected: full().rejected[..1].to_vec(),
        paused: true,
        ready_production: vec![v(1), v(2)],
    };
    for subset in 0_u32..32 {
        let has = |bit: u32| subset & (1 << bit) != 0;
        let all = everything.clone();
        let some = Witnesses {
            newest: all.newest.filter(|_| has(0)),
            tables: if has(1) { all.tables } else { vec![] },
            children: if has(2) { all.children } else { vec![] },
            status: all.status.filter(|_| has(3)),
            ready_production: if has(4) { all.ready_production } else { vec![] },
            ..all
        };
        let record = rebuild(&some, 5);
        assert_eq!(record.check(), Ok(()), "{subset:05b}");
        assert_eq!(record.stable, (subset != 0).then(|| v(2)), "{subset:05b}");
        let knows_rollback = has(0) || has(2) || has(3);
        assert_eq!(
            record.rollback_to,
            knows_rollback.then(|| v(1)),
            "{subset:05b}"
        );
        assert!(
            record.attempt.is_none() && record.weight(&v(3).digest) == 0,
            "{subset:05b}"
        );
        assert!(record.paused && record.rejected.len() == 1, "{subset:05b}");
        let order = record.routing.map(|table| table.order);
        assert!(
            order.is_none_or(|order| order > table.order),
            "{subset:05b}"
        );
        assert!(
            record.stamp
                > Stamp {
                    epoch: 1,
                    revision: 30
                }
                || !has(2),
            "{subset:05b}"
        );
    }
}

#[test]
fn a_lost_head_is_noticed_by_a_higher_table_or_stamp() {
    let head = in_step(3);
    let table = |generation| Witnesses {
        tables: vec![Table::all_to(TableOrder::new(1, generation), v(2))],
        ..Witnesses::default()
    };
    let child = |revision| Witnesses {
        children: vec![ChildWitness {
            id: v(2),
            stamp: Stamp { epoch: 1, revision },
            is_stable: true,
            is_rollback: false,
        }],
        ..Witnesses::default()
    };
    let cases = [
        ("the same table", table(7), false),
        ("a higher table", table(8), true),
        ("the same stamp", child(19), false),
        ("a higher stamp", child(20), true),
    ];
    for (name, witnesses, want) in cases {
        assert_eq!(witnesses.contradict(&head), want, "{name}");
    }
    let emergency = Witnesses {
        tables: vec![head.routing.as_ref().unwrap().emergency().unwrap()],
        ..Witnesses::default()
    };
    assert!(
        !emergency.contradict(&head),
        "an emergency table is ahead of no record"
    );
}
