//! The event log: paging, packing, replay after a restart.

use weir_run::{RunStatus, Sequence};

use crate::support::*;

#[test]
fn any_page_of_a_log_is_what_was_appended_however_it_was_packed() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let one = spec(1);
        let mut run = admit(&*store, &one).await;
        run = done(&*store, next(&run).started()).await;
        for count in [1, 3, 1, 7, 2] {
            run = done(&*store, next(&run).deltas(count)).await;
        }
        run = done(&*store, next(&run).deltas(5).end(RunStatus::Completed)).await;
        assert_eq!(run.last_sequence, Sequence(22));
        let whole: Vec<_> = (1..=22)
            .map(|n| {
                let kind = match n {
                    1 => "accepted",
                    2 => "started",
                    22 => "completed",
                    _ => "delta",
                };
                event(one.id, n, kind)
            })
            .collect();
        drop(store);
        let store = bed.open();
        for after in 0..=23_usize {
            for limit in [1, 2, 5, 100] {
                let got = store
                    .events(one.id, Sequence(after as u64), limit)
                    .await
                    .unwrap();
                let from = whole.len().min(after);
                let to = whole.len().min(from + limit);
                assert_eq!(got, whole[from..to], "after {after} limit {limit}");
            }
        }
    });
}

#[test]
fn appends_to_one_run_in_one_call_follow_each_other() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let one = spec(1);
        let run = admit(&*store, &one).await;
        let other = admit(&*store, &spec(2)).await;
        let first = next(&run).started().deltas(1);
        let mut second = next(&run).started().deltas(3).append();
        second.events.drain(..2);
        second.started = None;
        second.output_tokens = 2;
        let appends = vec![first.append(), next(&other).started().append(), second];
        let answers = store.append(appends).await.unwrap();
        assert!(
            answers
                .iter()
                .all(|a| *a == weir_store::Appended::Done(RunStatus::Running)),
            "{answers:?}"
        );
        drop(store);
        let store = bed.open();
        let run = store.run("acme", one.id).await.unwrap().unwrap();
        assert_eq!(
            (run.last_sequence, run.output_tokens, run.output_index),
            (Sequence(5), 3, 3)
        );
        let events = store.events(one.id, Sequence(2), 9).await.unwrap();
        let want: Vec<_> = (3..=5).map(|n| event(one.id, n, "delta")).collect();
        assert_eq!(events, want);
    });
}

#[test]
fn a_run_can_live_and_end_within_one_commit() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        // Queued together, so that the writer finds them together.
        let one = spec(1);
        let row = admission(&one).run;
        let admitting = store.admit(admission(&one));
        let appending = store.append(vec![
            next(&row)
                .started()
                .deltas(2)
                .end(RunStatus::Completed)
                .append(),
        ]);
        let (admitted, appended) = tokio::join!(admitting, appending);
        admitted.unwrap();
        assert_eq!(
            appended.unwrap(),
            [weir_store::Appended::Done(RunStatus::Completed)]
        );
        let cancelled = store.cancel("acme", one.id, NOW).await.unwrap().unwrap();
        assert_eq!(cancelled.status, RunStatus::Completed);
        let events = store.events(one.id, Sequence(0), 99).await.unwrap();
        assert_eq!(events.len(), 5);
        let usage = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.consistent);
    });
}
