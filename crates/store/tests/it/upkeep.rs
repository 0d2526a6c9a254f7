//! Audit lines, repair, deletion of content: of every store.

use bytes::Bytes;
use weir_ledger::{Actor, Chain, Verifier};
use weir_run::{RunId, RunStatus, Sequence};
use weir_store::{Expect, Note, Noted, ObjectWrite, Purge, Repair, StoreError};

use crate::support::*;

fn write(name: &str, expect: Expect, data: Option<&str>) -> ObjectWrite {
    ObjectWrite {
        space: "alert",
        owner: String::new(),
        name: name.to_owned(),
        expect,
        data: data.map(|text| Bytes::copy_from_slice(text.as_bytes())),
    }
}

fn note(lines: &[&str], writes: Vec<ObjectWrite>) -> Note {
    Note {
        lines: lines.iter().map(|line| line.as_bytes().to_vec()).collect(),
        writes,
        now_ms: NOW,
    }
}

#[test]
fn a_note_is_written_whole_when_its_objects_are_as_expected_and_not_at_all_otherwise() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let first = note(
            &["{\"n\":1}", "{\"n\":2}"],
            vec![
                write("a", Expect::Absent, Some("x")),
                write("b", Expect::Absent, Some("y")),
            ],
        );
        assert_eq!(store.note(first.clone()).await.unwrap(), Noted::Written(2));
        assert_eq!(store.note(first).await.unwrap(), Noted::Conflict(0));
        let half = note(
            &["{\"n\":3}"],
            vec![
                write("a", Expect::Version(1), Some("z")),
                write("b", Expect::Version(9), None),
            ],
        );
        assert_eq!(store.note(half).await.unwrap(), Noted::Conflict(1));
        let rest = note(&["{\"n\":3}"], vec![write("a", Expect::Version(1), None)]);
        assert_eq!(store.note(rest).await.unwrap(), Noted::Written(3));
        let odd = store.note(note(&["two\nlines"], vec![])).await;
        assert!(matches!(odd, Err(StoreError::Contract(_))), "{odd:?}");
        drop(store);
        let store = bed.open();
        assert_eq!(store.object("alert", "", "a").await.unwrap(), None);
        assert_eq!(
            &store.object("alert", "", "b").await.unwrap().unwrap().data[..],
            b"y"
        );
        let mut verifier = Verifier::new(&Chain::Audit);
        for link in store.chain(Chain::Audit, 0, 9).await.unwrap() {
            verifier.follow(&link).unwrap();
        }
        assert_eq!(
            verifier.head(),
            store.chain_head(Chain::Audit).await.unwrap()
        );
        assert_eq!(verifier.head().number, 3);
    });
}

#[test]
fn of_eight_that_race_to_note_the_same_one_does() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        for round in 0..20 {
            let racers: Vec<_> = (0..8)
                .map(|n| {
                    let store = store.clone();
                    let raised = write(&round.to_string(), Expect::Absent, Some("raised"));
                    let mine = note(&[&format!("{{\"by\":{n}}}")], vec![raised]);
                    tokio::spawn(async move { store.note(mine).await.unwrap() })
                })
                .collect();
            let mut written = 0;
            for racer in racers {
                written += u32::from(matches!(racer.await.unwrap(), Noted::Written(_)));
            }
            assert_eq!(written, 1, "round {round}");
        }
        let head = store.chain_head(Chain::Audit).await.unwrap();
        assert_eq!(head.number, 20);
    });
}

#[test]
fn a_sound_account_needs_no_repair() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        for n in 0..6 {
            let run = admit(&*store, &spec(n)).await;
            if n % 2 == 0 {
                done(
                    &*store,
                    next(&run).started().deltas(3).end(RunStatus::Completed),
                )
                .await;
            }
        }
        let repair = Repair {
            tenant: "acme".into(),
            actor: Actor::new("command", "root"),
            apply: true,
            now_ms: NOW,
        };
        let repaired = store.repair(repair).await.unwrap();
        assert_eq!((repaired.changes.len(), repaired.applied), (0, false));
        assert_eq!(store.chain_head(Chain::Audit).await.unwrap().number, 0);
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in full")]
fn a_purge_drops_events_and_labels_of_ended_runs_and_keeps_key_row_usage_and_ledger() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let keyed = Spec {
            request_key: Some("k".into()),
            ..spec(1)
        };
        let run = admit(&*store, &keyed).await;
        let ended = done(
            &*store,
            next(&run).started().deltas(3).end(RunStatus::Completed),
        )
        .await;
        let live = admit(&*store, &spec(2)).await;
        let late = Spec {
            now_ms: NOW + 10,
            id: RunId::new(NOW + 10, 3),
            ..spec(3)
        };
        let late = admit(&*store, &late).await;
        done(&*store, next(&late).end(RunStatus::Cancelled).at(NOW + 11)).await;
        let before = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        let chain = store
            .chain(Chain::Ledger("acme".into()), 0, 9)
            .await
            .unwrap();
        let (mut after, mut runs, mut alive) = (None, 0, 0);
        loop {
            let purge = Purge {
                tenant: "acme".into(),
                before_ms: NOW + 10,
                after,
                limit: 1,
                now_ms: NOW + 20,
            };
            let purged = store.purge(purge).await.unwrap();
            runs += purged.runs;
            alive += purged.live;
            match purged.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!((runs, alive), (1, 1));
        assert!(
            store
                .events(ended.id, Sequence(0), 9)
                .await
                .unwrap()
                .is_empty()
        );
        assert_eq!(
            store.events(live.id, Sequence(0), 9).await.unwrap().len(),
            1
        );
        assert_eq!(
            store.events(late.id, Sequence(0), 9).await.unwrap().len(),
            2
        );
        let row = store.run("acme", ended.id).await.unwrap().unwrap();
        assert!(row.metadata.is_empty());
        assert_eq!(row.events_expire_at_ms, NOW + 20);
        assert_eq!(
            (row.usage(), row.last_sequence),
            (ended.usage(), ended.last_sequence)
        );
        assert_eq!(
            store.run_by_key("acme", "k").await.unwrap().unwrap().id,
            ended.id
        );
        let usage = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert_eq!(usage, before);
        assert_eq!(
            store
                .chain(Chain::Ledger("acme".into()), 0, 9)
                .await
                .unwrap(),
            chain
        );
    });
}
