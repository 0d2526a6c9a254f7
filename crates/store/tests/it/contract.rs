//! Admission, request keys, writers, cancellation, replacement.

use weir_budget::Refusal;
use weir_run::{Epoch, Illegal, RunId, RunStatus, Sequence};
use weir_store::{Admit, Appended, StoreError};

use crate::support::*;

#[test]
fn an_admitted_run_is_there_with_its_event_and_work_also_after_reopening() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let spec = spec(1);
        let run = admit(&*store, &spec).await;
        assert_eq!(run, admission(&spec).run);
        let identity = store.identity();
        drop(store);
        let store = bed.open();
        assert_eq!(store.identity(), identity);
        let open = store.open_runs().await.unwrap();
        assert_eq!(open.len(), 1);
        assert_eq!(open[0].run, run);
        assert_eq!(open[0].work, admission(&spec).work);
        let events = store.events(spec.id, Sequence(0), 9).await.unwrap();
        assert_eq!(events, [event(spec.id, 1, "accepted")]);
    });
}

#[test]
fn a_request_key_joins_the_same_payload_and_refuses_another() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let first = Spec {
            request_key: Some("order-17".into()),
            ..spec(1)
        };
        let mut run = admit(&*store, &first).await;
        for ended in [false, true] {
            let again = Spec {
                id: RunId::new(NOW, 2),
                ..first.clone()
            };
            let Admit::Replayed(known) = store.admit(admission(&again)).await.unwrap() else {
                panic!("the same payload must join (ended: {ended})");
            };
            assert_eq!(*known, run);
            let other = Spec {
                payload: 2,
                ..again
            };
            let answer = store.admit(admission(&other)).await.unwrap();
            assert!(
                matches!(answer, Admit::Conflict(id) if id == first.id),
                "{answer:?}"
            );
            if !ended {
                run = done(
                    &*store,
                    next(&run).started().deltas(2).end(RunStatus::Interrupted),
                )
                .await;
            }
        }
        let theirs = Spec {
            tenant: "globex",
            payload: 2,
            id: RunId::new(NOW, 3),
            ..first.clone()
        };
        admit(&*store, &theirs).await;
        let found = store.run_by_key("acme", "order-17").await.unwrap().unwrap();
        assert_eq!(found.id, first.id);
        assert_eq!(store.run_by_key("acme", "order-18").await.unwrap(), None);
        let budget = store.budget("acme", vec![DAY_S], NOW).await.unwrap();
        assert_eq!(budget.live_runs, 0, "joins and conflicts reserve nothing");
    });
}

#[test]
fn eight_clients_that_race_one_request_key_get_one_run() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        for round in 0..25_u128 {
            let racers = (0..8).map(|n| {
                let store = store.clone();
                let key = format!("key-{round}");
                let racer = Spec {
                    request_key: Some(key),
                    ..spec(round * 8 + n)
                };
                tokio::spawn(async move { store.admit(admission(&racer)).await.unwrap() })
            });
            let mut admitted = 0;
            let mut ids = vec![];
            for racer in racers.collect::<Vec<_>>() {
                match racer.await.unwrap() {
                    Admit::Admitted => admitted += 1,
                    Admit::Replayed(run) => ids.push(run.id),
                    other => panic!("{other:?}"),
                }
            }
            ids.dedup();
            assert_eq!((admitted, ids.len()), (1, 1), "round {round}");
        }
    });
}

#[test]
fn a_refusal_leaves_no_trace() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let greedy = Spec {
            request_key: Some("k".into()),
            prompt: 9_000,
            output: 2_000,
            limits: day_of(10_000),
            ..spec(1)
        };
        let ask = admission(&greedy).ask;
        let limits = greedy.limits.clone();
        let foreseen = store.would_refuse("acme", ask, limits, NOW).await.unwrap();
        let answer = store.admit(admission(&greedy)).await.unwrap();
        let Admit::Refused(refusal) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(Some(&refusal), foreseen.as_ref());
        assert!(
            matches!(
                refusal,
                Refusal::WindowTokens {
                    largest_output_tokens: 1_000,
                    ..
                }
            ),
            "{refusal:?}"
        );
        assert_eq!(store.run("acme", greedy.id).await.unwrap(), None);
        assert_eq!(store.run_by_key("acme", "k").await.unwrap(), None);
        let smaller = Spec {
            output: 1_000,
            ..greedy
        };
        let run = admit(&*store, &smaller).await;
        assert_eq!(run.model_version, 2);
    });
}

#[test]
fn only_the_present_writer_appends_and_nothing_follows_the_end() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        let run = done(&*store, next(&run).started().deltas(1)).await;
        assert_eq!(run.status, RunStatus::Running);
        assert_eq!(run.decision.worker.as_deref(), Some("worker-1"));
        assert_eq!(store.take_over(run.id).await.unwrap(), Some(Epoch(2)));
        let late = next(&run).deltas(1).append();
        let gap = weir_store::Append {
            epoch: Epoch(2),
            ..next(&run).deltas(2).append()
        };
        let gap = weir_store::Append {
            events: gap.events[1..].to_vec(),
            ..gap
        };
        let good = weir_store::Append {
            epoch: Epoch(2),
            ..next(&run).deltas(1).append()
        };
        let unknown = weir_store::Append {
            run: RunId::new(NOW, 99),
            ..good.clone()
        };
        let answers = store.append(vec![late, gap, unknown, good]).await.unwrap();
        assert_eq!(
            answers,
            [
                Appended::Fenced(Epoch(2)),
                Appended::Refused(Illegal::Sequence {
                    expected: 4,
                    found: 5
                }),
                Appended::Unknown,
                Appended::Done(RunStatus::Running),
            ]
        );
        let run = store.run("acme", run.id).await.unwrap().unwrap();
        assert_eq!(
            (run.last_sequence, run.output_tokens, run.epoch),
            (Sequence(4), 2, Epoch(2))
        );
        drop(store);
        let store = bed.open();
        assert_eq!(store.run("acme", run.id).await.unwrap().unwrap(), run);
        let ended = done(&*store, next(&run).deltas(1).end(RunStatus::Completed)).await;
        assert_eq!(ended.cost_micros, Some(7 + 4 * 3));
        let more = next(&ended).deltas(1).append();
        let answers = store.append(vec![more]).await.unwrap();
        assert_eq!(answers, [Appended::Terminal(RunStatus::Completed)]);
        assert_eq!(store.take_over(run.id).await.unwrap(), None);
        assert_eq!(
            store.cancel("acme", run.id, NOW).await.unwrap().unwrap(),
            ended
        );
        assert!(store.open_runs().await.unwrap().is_empty());
    });
}

#[test]
fn a_cancellation_is_an_intent_that_any_repeat_and_any_restart_finds() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        for _ in 0..2 {
            let cancelled = store.cancel("acme", run.id, NOW).await.unwrap().unwrap();
            assert_eq!(cancelled.status, RunStatus::Cancelling);
        }
        drop(store);
        let store = bed.open();
        let run = store.run("acme", run.id).await.unwrap().unwrap();
        assert_eq!(run.status, RunStatus::Cancelling);
        let answers = store
            .append(vec![next(&run).started().deltas(2).append()])
            .await
            .unwrap();
        assert_eq!(
            answers,
            [Appended::Done(RunStatus::Cancelling)],
            "the writer is told"
        );
        let run = store.run("acme", run.id).await.unwrap().unwrap();
        let run = done(&*store, next(&run).end(RunStatus::Cancelled)).await;
        assert_eq!(run.cost_micros, Some(7 + 8), "what was produced is billed");
    });
}

#[test]
fn another_tenant_s_run_does_not_exist() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(
            &*store,
            &Spec {
                request_key: Some("k".into()),
                ..spec(1)
            },
        )
        .await;
        for ended in [false, true] {
            assert_eq!(store.run("globex", run.id).await.unwrap(), None);
            assert_eq!(store.cancel("globex", run.id, NOW).await.unwrap(), None);
            assert_eq!(store.run_by_key("globex", "k").await.unwrap(), None);
            let theirs = Spec {
                tenant: "globex",
                replaces: Some(run.id),
                ..spec(2)
            };
            let answer = store.admit(admission(&theirs)).await.unwrap();
            assert!(
                matches!(&answer, Admit::BadReplaces(why) if why.contains("unknown")),
                "{answer:?}"
            );
            if !ended {
                done(&*store, next(&run).end(RunStatus::Cancelled)).await;
            }
        }
        let usage = store
            .usage("globex", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.by_model.is_empty() && usage.consistent);
    });
}

#[test]
fn a_replacement_names_an_ended_run_once() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let old = admit(&*store, &spec(1)).await;
        let replacement = Spec {
            replaces: Some(old.id),
            ..spec(2)
        };
        let answer = store.admit(admission(&replacement)).await.unwrap();
        assert!(
            matches!(&answer, Admit::BadReplaces(why) if why.contains("accepted")),
            "{answer:?}"
        );
        done(&*store, next(&old).started().end(RunStatus::Interrupted)).await;
        admit(&*store, &replacement).await;
        let old = store.run("acme", old.id).await.unwrap().unwrap();
        assert_eq!(old.replaced_by, Some(replacement.id));
        let third = Spec {
            replaces: Some(old.id),
            ..spec(3)
        };
        let answer = store.admit(admission(&third)).await.unwrap();
        assert!(
            matches!(&answer, Admit::BadReplaces(why) if why.contains("already")),
            "{answer:?}"
        );
    });
}

#[test]
fn a_route_is_noted_while_the_run_lives() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        let mut decision = run.decision.clone();
        decision.worker = Some("worker-7".into());
        store.route(run.id, decision.clone()).await.unwrap();
        drop(store);
        let store = bed.open();
        let run = store.run("acme", run.id).await.unwrap().unwrap();
        assert_eq!(run.decision, decision);
    });
}

#[test]
fn an_admission_that_contradicts_itself_is_refused_and_harms_nobody() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        let mut wrong = admission(&spec(2));
        wrong.run.reserved_tokens += 1;
        let error = store.admit(wrong).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Contract(why) if why.contains("reserved tokens")),
            "{error}"
        );
        let error = store.admit(admission(&spec(1))).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Contract(why) if why.contains("exists")),
            "{error}"
        );
        let mut odd = next(&run).started().append();
        odd.events[0].kind = "begun";
        let error = store.append(vec![odd]).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Contract(why) if why.contains("begun")),
            "{error}"
        );
        done(&*store, next(&run).started().deltas(1)).await;
    });
}

#[test]
fn a_write_whose_caller_has_gone_is_done_whole_or_not_at_all() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        for n in 0..40 {
            let one = spec(n);
            let mut admitting = store.admit(admission(&one));
            // Polled once, then dropped.
            std::future::poll_fn(|cx| {
                let _ = admitting.as_mut().poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
            drop(admitting);
        }
        // A later write is behind them all.
        admit(&*store, &spec(1000)).await;
        let open = store.open_runs().await.unwrap();
        assert_eq!(open.len(), 41);
        let usage = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.consistent);
        assert_eq!(usage.budget.windows[0].reserved_tokens, 41 * 60);
    });
}
