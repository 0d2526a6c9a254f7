//! What is dropped, and when.

use weir_run::{RunId, RunStatus, Sequence};

use crate::support::*;

#[test]
fn events_go_when_their_retention_is_over_and_the_row_a_week_after_the_end() {
    const DAY_MS: u64 = DAY_S * 1000;
    on_every_engine(|bed| async move {
        let store = bed.open();
        let keyed = Spec {
            request_key: Some("k".into()),
            ..spec(1)
        };
        let run = admit(&*store, &keyed).await;
        let live = admit(&*store, &spec(2)).await;
        // Ends two days after it was accepted: a retention of a day counts from there.
        let end_ms = NOW + 2 * DAY_MS;
        let run = done(
            &*store,
            next(&run)
                .started()
                .deltas(3)
                .end(RunStatus::Completed)
                .at(end_ms),
        )
        .await;
        assert_eq!(run.events_expire_at_ms, end_ms + DAY_MS);
        assert_eq!(store.expire(end_ms + DAY_MS - 1, 9).await.unwrap(), 0);
        assert_eq!(
            store.events(run.id, Sequence(0), 99).await.unwrap().len(),
            6
        );
        assert_eq!(store.expire(end_ms + DAY_MS, 9).await.unwrap(), 1);
        assert!(
            store
                .events(run.id, Sequence(0), 99)
                .await
                .unwrap()
                .is_empty()
        );
        assert_eq!(store.run("acme", run.id).await.unwrap().unwrap(), run);
        assert_eq!(store.expire(end_ms + 7 * DAY_MS - 1, 9).await.unwrap(), 0);
        assert!(store.run_by_key("acme", "k").await.unwrap().is_some());
        assert_eq!(store.expire(end_ms + 7 * DAY_MS, 9).await.unwrap(), 1);
        assert_eq!(store.run("acme", run.id).await.unwrap(), None);
        let again = Spec {
            id: RunId::new(NOW, 3),
            payload: 2,
            ..keyed
        };
        admit(&*store, &again).await;
        let usage = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.consistent);
        assert_eq!(usage.by_model[0].runs.completed, 1, "the ledger stays");
        assert_eq!(
            store.events(live.id, Sequence(0), 99).await.unwrap().len(),
            1
        );
    });
}

#[test]
fn no_more_runs_expire_in_one_call_than_asked_for() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        for n in 0..5 {
            let run = admit(&*store, &spec(n)).await;
            done(&*store, next(&run).end(RunStatus::Cancelled)).await;
        }
        let later = NOW + 2 * DAY_S * 1000;
        let mut dropped = vec![];
        for _ in 0..4 {
            dropped.push(store.expire(later, 2).await.unwrap());
        }
        assert_eq!(dropped, [2, 2, 1, 0]);
    });
}
