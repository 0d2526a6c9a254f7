//! What one read has shown, the next one does not take back: reads of live runs come from memory, others from the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_ledger::{Chain, UsageRecord};
use weir_run::{RunStatus, Sequence};
use weir_store::Store;

use crate::support::*;

/// The places in which a commit can be seen half are a few microseconds wide.
const RUNS: u128 = 400;

/// Follows the ledger; says of which record the run's row or its events know nothing yet. Ends when told to and nothing is left.
async fn follow(store: &dyn Store, over: &AtomicBool) -> Result<u64, String> {
    let chain = Chain::Ledger("acme".to_owned());
    let mut after = 0;
    loop {
        let last = over.load(Ordering::Acquire);
        let links = store.chain(chain.clone(), after, 64).await.unwrap();
        if links.is_empty() && last {
            return Ok(after);
        }
        for link in &links {
            after = link.number;
            let record = UsageRecord::decode(&link.body).unwrap();
            let run = store.run("acme", record.run).await.unwrap().unwrap();
            if UsageRecord::of(&run) != record {
                return Err(format!("billed, and then {:?}", run.status));
            }
        }
    }
}

/// Looks at the newest run's events and then at the run.
async fn watch(store: &dyn Store, over: &AtomicBool) -> Result<u64, String> {
    let mut seen = 0;
    while !over.load(Ordering::Acquire) {
        let open = store.open_runs().await.unwrap();
        for run in open.into_iter().map(|open| open.run) {
            let events = store.events(run.id, Sequence(0), 64).await.unwrap();
            let now = store.run("acme", run.id).await.unwrap().unwrap();
            let told = events.last().map_or(0, |event| event.sequence.0);
            if now.last_sequence.0 < told {
                let (status, row) = (now.status, now.last_sequence.0);
                return Err(format!("event {told}, and then {status:?} at {row}"));
            }
            seen += 1;
        }
    }
    Ok(seen)
}

#[test]
fn a_run_is_never_older_than_its_events_or_its_record_that_were_read_before() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let over = Arc::new(AtomicBool::new(false));
        let reader = |follows: bool| {
            let (store, over) = (store.clone(), over.clone());
            tokio::spawn(async move {
                if follows {
                    follow(&*store, &over).await
                } else {
                    watch(&*store, &over).await
                }
            })
        };
        let readers = [true, true, false].map(reader);
        for number in 0..RUNS {
            let run = admit(&*store, &spec(number)).await;
            let row = done(&*store, next(&run).started().deltas(1)).await;
            done(&*store, next(&row).end(RunStatus::Completed)).await;
        }
        over.store(true, Ordering::Release);
        let [first, second, watched] = readers;
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let watched = watched.await.unwrap();
        assert_eq!(first, Ok(u64::try_from(RUNS).unwrap()));
        assert_eq!(first, second);
        assert!(watched.is_ok(), "{watched:?}");
    });
}
