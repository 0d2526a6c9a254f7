//! Several gateways on one store.

use std::time::Duration;

use weir_run::{Epoch, RunStatus, Sequence};
use weir_store::{Admit, Appended, Change, Replicas, Store};

use crate::support::*;

#[test]
fn gateways_that_race_one_request_key_get_one_run() {
    on_every_engine(|bed| async move {
        let gateways = [bed.gateway(Some("a")), bed.gateway(Some("b"))];
        for round in 0..40_u128 {
            let racers = (0..6_u128).map(|n| {
                let store = gateways[usize::try_from(n % 2).unwrap()].clone();
                let racer = Spec {
                    request_key: Some(format!("key-{round}")),
                    ..spec(round * 8 + n)
                };
                tokio::spawn(async move { store.admit(admission(&racer)).await.unwrap() })
            });
            let (mut admitted, mut joined) = (0, vec![]);
            for racer in racers.collect::<Vec<_>>() {
                match racer.await.unwrap() {
                    Admit::Admitted => admitted += 1,
                    Admit::Replayed(run) => joined.push(run.id),
                    other => panic!("{other:?}"),
                }
            }
            joined.dedup();
            assert_eq!((admitted, joined.len()), (1, 1), "round {round}");
        }
    });
}

#[test]
fn gateways_together_never_pass_a_limit() {
    on_every_engine(|bed| async move {
        let gateways = [
            bed.gateway(Some("a")),
            bed.gateway(Some("b")),
            bed.gateway(Some("c")),
        ];
        let asks = (0..90_u128).map(|n| {
            let store = gateways[usize::try_from(n % 3).unwrap()].clone();
            let mut one = Spec {
                limits: day_of(1200),
                ..spec(n)
            };
            one.limits.requests_per_minute = Some(15);
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
        assert_eq!(admitted, 15, "requests a minute hold over gateways");
        let races: u64 = gateways.iter().map(|gateway| gateway.races()).sum();
        assert!(races > 0, "a test in which nobody raced shows nothing");
        let usage = gateways[0]
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(
            usage.consistent && usage.budget.windows[0].reserved_tokens == 900,
            "{usage:?}"
        );
    });
}

#[test]
fn a_cancellation_at_one_gateway_reaches_the_writer_at_another() {
    on_every_engine(|bed| async move {
        let (a, b) = (bed.gateway(Some("a")), bed.gateway(Some("b")));
        let mut hints = a.changes();
        let run = admit(&*a, &spec(1)).await;
        let run = done(&*a, next(&run).started().deltas(1)).await;
        hear(&mut hints, None).await;
        let cancelled = b.cancel("acme", run.id, NOW).await.unwrap().unwrap();
        assert_eq!(cancelled.status, RunStatus::Cancelling);
        assert_eq!(a.beat().await.unwrap().cancelling, [run.id]);
        assert_eq!(
            hear(&mut hints, Some(Change::Cancelled(run.id))).await,
            Some(Change::Cancelled(run.id))
        );
        // The writer has not read the row since; its next append is told all the same.
        let answer = a.append(vec![next(&run).deltas(1).append()]).await.unwrap();
        assert_eq!(answer, [Appended::Done(RunStatus::Cancelling)]);
        let run = a.run("acme", run.id).await.unwrap().unwrap();
        done(&*a, next(&run).end(RunStatus::Cancelled)).await;
        assert!(a.beat().await.unwrap().cancelling.is_empty());
    });
}

#[test]
fn a_cancellation_and_an_append_that_race_are_both_there_afterwards() {
    on_every_engine(|bed| async move {
        let (a, b) = (bed.gateway(Some("a")), bed.gateway(Some("b")));
        for n in 0..30 {
            let run = admit(&*a, &spec(n)).await;
            let run = done(&*a, next(&run).started()).await;
            let (appended, cancelled) = tokio::join!(
                a.append(vec![next(&run).deltas(1).append()]),
                b.cancel("acme", run.id, NOW)
            );
            assert!(matches!(appended.unwrap()[..], [Appended::Done(_)]));
            assert_eq!(cancelled.unwrap().unwrap().status, RunStatus::Cancelling);
            let after = b.run("acme", run.id).await.unwrap().unwrap();
            assert_eq!(
                (after.status, after.output_tokens),
                (RunStatus::Cancelling, 1),
                "round {n}"
            );
        }
    });
}

#[test]
fn the_runs_of_a_dead_gateway_are_adopted_once_and_it_cannot_write_to_them_any_more() {
    on_every_engine(|bed| async move {
        let (dead, b, c) = (
            bed.gateway(Some("dead")),
            bed.gateway(Some("b")),
            bed.gateway(Some("c")),
        );
        let mut runs = vec![];
        for n in 0..20 {
            let run = admit(&*dead, &spec(n)).await;
            runs.push(done(&*dead, next(&run).started().deltas(2)).await);
        }
        let boot = dead.me().boot;
        let peers = b.beat().await.unwrap().peers;
        let seen = peers.iter().find(|peer| peer.boot == boot).unwrap();
        assert_eq!(seen.name, "dead");
        assert!(seen.silent_ms.is_some());
        let ids = b.runs_of(&boot, 99).await.unwrap();
        assert_eq!(ids, runs.iter().map(|run| run.id).collect::<Vec<_>>());
        let mut adopted = 0;
        for run in &runs {
            let (one, other) = tokio::join!(b.adopt(run.id, &boot), c.adopt(run.id, &boot));
            let both = [one.unwrap(), other.unwrap()];
            let open: Vec<_> = both.iter().flatten().collect();
            assert_eq!(open.len(), 1, "one of the two");
            assert_eq!(
                (open[0].run.epoch, open[0].run.last_sequence),
                (Epoch(2), Sequence(4))
            );
            assert_eq!(open[0].work, admission(&spec(0)).work);
            adopted += 1;
        }
        assert_eq!(adopted, 20);
        assert!(b.runs_of(&boot, 9).await.unwrap().is_empty());
        let late = dead
            .append(vec![next(&runs[0]).deltas(1).append()])
            .await
            .unwrap();
        assert_eq!(late, [Appended::Fenced(Epoch(2))]);
        let run = b.run("acme", runs[0].id).await.unwrap().unwrap();
        assert_eq!((run.last_sequence, run.output_tokens), (Sequence(4), 2));
    });
}

#[test]
fn only_runs_that_somebody_follows_are_hinted_at() {
    on_every_engine(|bed| async move {
        let (a, b) = (bed.gateway(Some("a")), bed.gateway(Some("b")));
        let mut hints = b.changes();
        let (one, two) = (admit(&*a, &spec(1)).await, admit(&*a, &spec(2)).await);
        b.follow(vec![two.id]).await.unwrap();
        hear(&mut hints, None).await;
        done(&*a, next(&one).started()).await;
        done(&*a, next(&two).started()).await;
        assert_eq!(
            hear(&mut hints, Some(Change::Grown(two.id))).await,
            Some(Change::Grown(two.id))
        );
    });
}

#[test]
fn a_gateway_that_leaves_says_so_and_is_forgotten() {
    on_every_engine(|bed| async move {
        let (a, b) = (bed.gateway(Some("a")), bed.gateway(Some("b")));
        let boot = a.me().boot;
        a.close(Duration::from_secs(5)).await.unwrap();
        let peer = b
            .beat()
            .await
            .unwrap()
            .peers
            .into_iter()
            .find(|peer| peer.boot == boot);
        assert_eq!(peer.unwrap().silent_ms, None);
        b.forget(&boot).await.unwrap();
        assert!(
            b.beat()
                .await
                .unwrap()
                .peers
                .iter()
                .all(|peer| peer.boot != boot)
        );
    });
}

/// Waits for a hint; with `None`, until the listener is surely there.
async fn hear(
    hints: &mut tokio::sync::broadcast::Receiver<Change>,
    wanted: Option<Change>,
) -> Option<Change> {
    let Some(wanted) = wanted else {
        tokio::time::sleep(Duration::from_millis(300)).await;
        return None;
    };
    let heard = async {
        loop {
            let hint = hints.recv().await.unwrap();
            if hint == wanted {
                return hint;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), heard)
        .await
        .ok()
}
