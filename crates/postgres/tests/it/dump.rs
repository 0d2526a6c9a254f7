//! Everything in a database, record by record, while gateways are at work.

use serde_json::Value;
use weir_run::RunStatus;

use crate::support::*;

#[test]
fn a_dump_tells_of_every_record_once_and_of_one_moment() {
    let Some(bed) = Bed::new() else { return };
    let many = 1_205_u128;
    runtime().block_on(in_time(async {
        let store = bed.open();
        // More than a page of rows, and of chunks.
        for group in (0..many).collect::<Vec<_>>().chunks(100) {
            let admitted = group.iter().map(|n| {
                let (store, one) = (store.clone(), spec(*n));
                tokio::spawn(async move { admit(&*store, &one).await })
            });
            for run in admitted.collect::<Vec<_>>() {
                let run = run.await.unwrap();
                if run.id == spec(7).id {
                    let run = done(&*store, next(&run).started().deltas(2)).await;
                    done(&*store, next(&run).end(RunStatus::Completed)).await;
                }
            }
        }
    }));
    let mut records: Vec<Value> = vec![];
    weir_postgres::dump(&bed.url, NOW, &mut |record| records.push(record)).unwrap();
    let count = |kind: &str| records.iter().filter(|r| r["record"] == kind).count() as u128;
    assert_eq!(count("run"), many);
    assert_eq!(count("reservation"), many - 1);
    assert_eq!((count("ledger"), count("account")), (1, 1));
    let events = records.iter().filter(|r| r["record"] == "events");
    let events: usize = events.map(|r| r["events"].as_array().unwrap().len()).sum();
    assert_eq!(events as u128, many + 4);
    let of_seven = |r: &&Value| r["record"] == "run" && r["runId"] == spec(7).id.to_string();
    let seven = records.iter().find(of_seven).unwrap();
    assert_eq!(
        (&seven["status"], &seven["outputTokens"]),
        (&"completed".into(), &2.into())
    );
    let account = records.iter().find(|r| r["record"] == "account").unwrap();
    assert_eq!(account["liveRuns"], u64::try_from(many - 1).unwrap());
}

#[test]
fn a_dump_of_what_is_no_store_says_so_and_makes_none() {
    let Some(bed) = Bed::new() else { return };
    let error = weir_postgres::dump(&bed.url, NOW, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("version 0"), "{error}");
    assert_eq!(
        bed.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'weir'"),
        "0"
    );
}
