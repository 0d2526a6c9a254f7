//! Workers that stop getting things done.

use std::time::Duration;

use super::*;
use crate::snapshot::WorkerAddress;

fn handle() -> Arc<LinkHandle> {
    let endpoint = WorkerEndpoint {
        name: "w0".to_owned(),
        pool: "small".to_owned(),
        address: WorkerAddress::Tcp("nowhere:1".to_owned()),
        version: None,
    };
    let (handle, _) = LinkHandle::new(endpoint);
    handle.connected.store(true, Ordering::Release);
    let mut facts = handle.facts.lock();
    facts.digests = vec!["v1".to_owned()];
    facts.limits.max_running = 8;
    facts.limits.max_batch_tokens = 512;
    // 2 ms a step, 0.1 ms a token: a full step takes 53 ms.
    for (steps, tokens) in [(10, 5_000), (40, 320)] {
        facts
            .pace
            .observe(steps, tokens, steps * 2_000 + tokens * 100);
    }
    drop(facts);
    handle
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_taken_out_by_its_progress_and_comes_back_after_it() {
    let handle = handle();
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(handle.takes("v1"), "it has nothing to do");
    handle.occupy("acme", 100);
    tokio::time::advance(Duration::from_millis(4_900)).await;
    assert!(handle.takes("v1"));
    assert!(!handle.progressed());
    tokio::time::advance(Duration::from_millis(5_100)).await;
    assert!(!handle.takes("v1"), "its port is open and it does nothing");
    assert!(handle.serves("v1"), "the session is there");
    assert!(handle.progressed(), "it had counted as stalled");
    assert!(handle.takes("v1"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_runs_were_taken_back_stays_out_until_it_does_something() {
    let handle = handle();
    handle.occupy("acme", 100);
    tokio::time::advance(Duration::from_secs(11)).await;
    handle.suspect();
    handle.vacate("acme", 100);
    assert!(
        !handle.takes("v1"),
        "that it has nothing now proves nothing"
    );
    assert!(handle.progressed());
    assert!(handle.takes("v1"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_steps_are_long_is_given_longer() {
    let handle = handle();
    handle.facts.lock().limits.max_batch_tokens = 16_384;
    handle.occupy("acme", 100);
    tokio::time::advance(Duration::from_secs(12)).await;
    assert!(handle.takes("v1"), "eight full steps take thirteen seconds");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(!handle.takes("v1"));
}

#[tokio::test]
async fn runs_go_only_where_they_could_fit() {
    let handle = handle();
    assert!(handle.could_hold("v1", 1_000_000), "it did not say");
    {
        let mut facts = handle.facts.lock();
        facts.contexts.insert("v1".to_owned(), 4_096);
        facts.limits.blocks_total = 100;
        facts.limits.block_tokens = 16;
    }
    assert!(handle.could_hold("v1", 1_600));
    assert!(!handle.could_hold("v1", 1_601), "its memory");
    handle.facts.lock().limits.blocks_total = 10_000;
    assert!(!handle.could_hold("v1", 4_097), "its context");
}
