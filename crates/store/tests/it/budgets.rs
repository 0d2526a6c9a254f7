//! The account, the ledger, and that they agree.

use weir_run::{RunStatus, Usage};
use weir_store::{Admit, BudgetWindow, RunCounts};

use crate::support::*;

#[test]
fn what_is_consumed_is_billed_and_the_rest_is_given_back() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let ends = [
            RunStatus::Completed,
            RunStatus::Cancelled,
            RunStatus::Interrupted,
            RunStatus::Failed,
            RunStatus::Expired,
        ];
        for (n, end) in (0_u64..).zip(ends) {
            let run = admit(&*store, &spec(u128::from(n))).await;
            done(&*store, next(&run).started().deltas(n).end(end)).await;
        }
        let queued = admit(&*store, &spec(10)).await;
        done(&*store, next(&queued).end(RunStatus::Expired)).await;
        admit(&*store, &spec(11)).await;
        for reopened in [false, true] {
            let store = if reopened { bed.open() } else { store.clone() };
            let usage = store
                .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
                .await
                .unwrap();
            let window = BudgetWindow {
                period_s: DAY_S,
                start_ms: NOW / (DAY_S * 1000) * DAY_S * 1000,
                used_tokens: 5 * 10 + 10,
                reserved_tokens: 60,
                used_micros: 5 * 7 + 4 * 10,
                reserved_micros: 210,
            };
            assert_eq!(usage.budget.windows, [window]);
            assert_eq!(usage.budget.live_runs, 1);
            assert!(usage.consistent);
            let [model] = &usage.by_model[..] else {
                panic!("{usage:?}");
            };
            let counts = RunCounts {
                completed: 1,
                cancelled: 1,
                interrupted: 1,
                failed: 1,
                expired: 2,
            };
            assert_eq!(model.runs, counts);
            let sum = Usage {
                prompt_tokens: 50,
                cached_tokens: 15,
                output_tokens: 10,
                cost_micros: 75,
            };
            assert_eq!(model.usage, sum);
            if !reopened {
                store
                    .close(std::time::Duration::from_secs(5))
                    .await
                    .unwrap();
            }
        }
    });
}

#[test]
fn a_run_is_billed_in_the_window_it_was_accepted_in() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        let tomorrow = NOW + DAY_S * 1000;
        let end = next(&run)
            .started()
            .deltas(4)
            .end(RunStatus::Completed)
            .at(tomorrow);
        done(&*store, end).await;
        let today = store.budget("acme", vec![DAY_S], NOW).await.unwrap();
        assert_eq!(today.windows[0].used_tokens, 14);
        let later = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, tomorrow)
            .await
            .unwrap();
        assert_eq!(later.budget.windows[0].used_tokens, 0);
        assert!(later.consistent);
        let none = store
            .usage("acme", vec![DAY_S], NOW + 1, u64::MAX, tomorrow)
            .await
            .unwrap();
        assert!(none.by_model.is_empty(), "accepted before the range");
    });
}

#[test]
fn parallel_admissions_never_pass_the_limit() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let asks = (0..64).map(|n| {
            let store = store.clone();
            let one = Spec {
                limits: day_of(600),
                ..spec(n)
            };
            tokio::spawn(async move { store.admit(admission(&one)).await.unwrap() })
        });
        let mut admitted = 0;
        for ask in asks.collect::<Vec<_>>() {
            match ask.await.unwrap() {
                Admit::Admitted => admitted += 1,
                Admit::Refused(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(admitted, 10, "600 tokens hold ten runs of 60");
        let budget = store.budget("acme", vec![DAY_S], NOW).await.unwrap();
        assert_eq!(budget.windows[0].reserved_tokens, 600);
    });
}
