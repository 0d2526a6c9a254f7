//! Callers that leave, connections that break, a server that goes away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_run::{RunStatus, Sequence};
use weir_store::{Admit, Appended, Store, StoreError};

use crate::server::{PostgresServer, Stop};
use crate::splitmix;
use crate::support::*;

#[test]
fn callers_that_leave_at_any_moment_leave_no_transaction_open_and_nothing_half_done() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let mut seed = 7;
        let mut left = 0;
        for n in 0..150 {
            let store: Arc<dyn Store> = store.clone();
            let one = spec(n);
            let caller = tokio::spawn(async move {
                let run = admission(&one).run;
                store.admit(admission(&one)).await.ok();
                store
                    .append(vec![next(&run).started().deltas(1).append()])
                    .await
                    .ok();
                store.run("acme", run.id).await.ok();
                store
                    .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
                    .await
                    .ok();
                store.cancel("acme", run.id, NOW).await.ok();
            });
            tokio::time::sleep(Duration::from_micros(splitmix::next(&mut seed) % 6000)).await;
            left += u32::from(!caller.is_finished());
            caller.abort();
        }
        assert!(
            left > 75,
            "only {left} callers were still there to be cut off"
        );
        // Anything that is still within a transaction after a moment was left there.
        let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        assert_eq!(bed.sql(idle), "0");
        let open = store.open_runs().await.unwrap();
        let usage = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.consistent, "{usage:?}");
        assert_eq!(usage.budget.live_runs, open.len() as u64);
        for open in &open {
            let events = store.events(open.run.id, Sequence(0), 99).await.unwrap();
            assert_eq!(events.len() as u64, open.run.last_sequence.0);
        }
    });
}

#[test]
fn connections_that_are_cut_in_mid_commit_lose_nothing_and_do_nothing_twice() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let cutting = {
            let bed = bed.clone();
            tokio::task::spawn_blocking(move || {
                let until = Instant::now() + Duration::from_secs(4);
                let mut cut = 0;
                while Instant::now() < until {
                    let count = bed.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%weir.commit%'");
                    cut += count.parse::<u32>().unwrap();
                }
                cut
            })
        };
        let mut number = 0;
        let mut completed = 0_u64;
        while !cutting.is_finished() {
            number += 1;
            let one = Spec {
                request_key: Some(format!("k{number}")),
                ..spec(number)
            };
            // Whatever the answer was, the key tells what happened.
            let run = loop {
                match store.admit(admission(&one)).await {
                    Ok(Admit::Admitted) => break admission(&one).run,
                    Ok(Admit::Replayed(run)) => break *run,
                    Ok(other) => panic!("{other:?}"),
                    Err(StoreError::Away { .. }) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            let append = next(&run)
                .started()
                .deltas(3)
                .end(RunStatus::Completed)
                .append();
            loop {
                match store.append(vec![append.clone()]).await {
                    Ok(answers) => {
                        assert_eq!(answers, [Appended::Done(RunStatus::Completed)]);
                        break;
                    }
                    Err(StoreError::Away { .. }) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            completed += 1;
        }
        let cut = cutting.await.unwrap();
        assert!(cut > 3, "only {cut} connections were cut");
        println!("{completed} runs over {cut} cut connections");
        let usage = loop {
            if let Ok(usage) = store.usage("acme", vec![DAY_S], 0, u64::MAX, NOW).await {
                break usage;
            }
        };
        assert!(usage.consistent && usage.budget.live_runs == 0, "{usage:?}");
        assert_eq!(usage.by_model[0].runs.completed, completed);
        assert_eq!(usage.by_model[0].usage.output_tokens, 3 * completed);
    });
}

#[test]
fn a_server_that_crashes_and_returns_has_all_that_was_acknowledged() {
    if crate::server::bin().is_none() {
        println!("skipped: PostgreSQL is not installed (apt-get install postgresql)");
        return;
    }
    // A server of its own: this one goes away.
    let server = PostgresServer::start().unwrap();
    let bed = Bed {
        url: server.database().unwrap(),
    };
    runtime().block_on(in_time(async {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        let run = done(&*store, next(&run).started().deltas(5)).await;
        server.down(Stop::Crash).unwrap();
        let begun = Instant::now();
        let error = store.admit(admission(&spec(2))).await.unwrap_err();
        assert!(matches!(error, StoreError::Away { .. }), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "refused after {:?}",
            begun.elapsed()
        );
        let error = store.run("acme", run.id).await.unwrap_err();
        assert!(matches!(error, StoreError::Away { .. }), "{error}");
        server.up().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let append = next(&run).deltas(1).append();
        loop {
            match store.append(vec![append.clone()]).await {
                Ok(answers) => {
                    assert_eq!(answers, [Appended::Done(RunStatus::Running)]);
                    break;
                }
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let events = store.events(run.id, Sequence(0), 99).await.unwrap();
        assert_eq!(events.len(), 8);
    }));
}
