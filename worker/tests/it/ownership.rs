//! Who may have a run, and what they get of it.

use std::time::Duration;

use weir_protocol::worker::{Hello, Submit, rejected::Code, worker_frame::Frame};

use crate::fake::expected;
use crate::gateway::{Gateway, Got, hello, id, submit};
use crate::harness::TestWorker;

const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

async fn rejection(gateway: &mut Gateway) -> (Code, u8) {
    match gateway.next().await {
        Got::Frame(Frame::Rejected(rejected)) => (rejected.code(), rejected.run[0]),
        other => panic!("no rejection but {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_returning_gateway_gets_exactly_the_rows_it_misses() {
    let worker = TestWorker::start().await;
    worker.controls.hold();
    let mut first = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    first.send(submit(1, &PROMPT, 40)).await;
    worker.controls.allow(20);
    let mut seen: Vec<_> = Vec::new();
    while seen.len() < 20 {
        seen.push(first.row().await);
    }
    first.progress(1, 10, 1 << 20).await;
    first.vanish();
    // The run goes on without a session.
    worker.controls.release();

    let mut second = Gateway::connect(&worker.socket(), hello(2)).await.unwrap();
    let held = second.welcome.held.clone();
    assert_eq!(
        (held.len(), held[0].run.clone(), held[0].epoch),
        (1, id(1), 1)
    );
    assert!(
        held[0].first_index <= 10,
        "rows nobody acknowledged are kept"
    );
    // Only twelve of the twenty were durable when the first one died.
    second.attach(1, 2, 12).await;
    let rest = second.rows_to_the_end().await;
    assert_eq!(
        rest.iter().map(|row| row.index).collect::<Vec<_>>(),
        (12..40).collect::<Vec<_>>()
    );
    assert!(rest.iter().all(|row| row.epoch == 2));
    let tokens: Vec<_> = seen[..12]
        .iter()
        .chain(&rest)
        .map(|row| row.token_id)
        .collect();
    assert_eq!(tokens, expected(&PROMPT, 7, 40));
    let status = second
        .status_where(|status| status.running == 0 && status.output_tokens >= 40)
        .await;
    assert_eq!(status.output_tokens, 40, "nothing was generated twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_run_is_held_until_it_is_acknowledged() {
    let worker = TestWorker::start().await;
    let mut first = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    first.send(submit(1, &PROMPT, 4)).await;
    first.rows_to_the_end().await;
    first.vanish();

    let mut second = Gateway::connect(&worker.socket(), hello(2)).await.unwrap();
    assert!(second.welcome.held[0].finished && second.welcome.held[0].next_index == 4);
    second.attach(1, 2, 1).await;
    assert_eq!(second.rows_to_the_end().await.len(), 3);
    second.progress(1, 4, 1 << 20).await;
    second.attach(1, 3, 4).await;
    assert_eq!(rejection(&mut second).await, (Code::UnknownRun, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_epoch_is_refused_and_a_newer_one_takes_the_run_away() {
    let worker = TestWorker::start().await;
    let mut older = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    // Little credit keeps it from ending.
    older
        .send(Submit {
            credit: 3,
            ..submit(1, &PROMPT, 10)
        })
        .await;
    for _ in 0..3 {
        older.row().await;
    }
    let mut newer = Gateway::connect(
        &worker.socket(),
        Hello {
            replica: "b".to_owned(),
            ..hello(1)
        },
    )
    .await
    .unwrap();
    for (epoch, name) in [(0, "lower"), (1, "equal, while the other has it")] {
        newer.attach(1, epoch, 0).await;
        assert_eq!(rejection(&mut newer).await, (Code::StaleEpoch, 1), "{name}");
    }
    newer.attach(1, 2, 0).await;
    match older.next().await {
        Got::Frame(Frame::Detached(detached)) => assert_eq!(detached.run, id(1)),
        other => panic!("not detached but {other:?}"),
    }
    let rows = newer.rows_to_the_end().await;
    assert_eq!((rows.len(), rows[0].index, rows[9].epoch), (10, 0, 2));
    // The older session has nothing to say any more.
    older.cancel(1, 1).await;
    assert_eq!(rejection(&mut older).await, (Code::StaleEpoch, 1));
    older.attach(1, 1, 0).await;
    assert_eq!(rejection(&mut older).await, (Code::StaleEpoch, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_repeated_starts_nothing() {
    let worker = TestWorker::start().await;
    worker.controls.hold();
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    for _ in 0..3 {
        gateway.send(submit(1, &PROMPT, 5)).await;
    }
    worker.controls.release();
    let rows = gateway.rows_to_the_end().await;
    assert_eq!(rows.len(), 5);
    // Again, in a session that does not know what became of the first try.
    gateway.vanish();
    let mut again = Gateway::connect(&worker.socket(), hello(2)).await.unwrap();
    again.send(submit(1, &PROMPT, 5)).await;
    assert_eq!(again.rows_to_the_end().await.len(), 5);
    let status = again
        .status_where(|status| status.running == 0 && status.output_tokens >= 5)
        .await;
    assert_eq!(status.output_tokens, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_gateways_learn_nothing_of_a_run() {
    let worker = TestWorker::start().await;
    let owner = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    owner
        .send(Submit {
            credit: 1,
            ..submit(1, &PROMPT, 5)
        })
        .await;
    let mut other = Gateway::connect(
        &worker.socket(),
        Hello {
            gateway: "test/store-2".to_owned(),
            ..hello(9)
        },
    )
    .await
    .unwrap();
    assert!(other.welcome.held.is_empty());
    other.attach(1, 99, 0).await;
    assert_eq!(rejection(&mut other).await, (Code::UnknownRun, 1));
    other.cancel(1, 99).await;
    assert_eq!(rejection(&mut other).await, (Code::UnknownRun, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_session_closes_the_older_and_a_stale_one_is_refused() {
    let worker = TestWorker::start().await;
    let mut older = Gateway::connect(&worker.socket(), hello(5)).await.unwrap();
    let _newer = Gateway::connect(&worker.socket(), hello(6)).await.unwrap();
    match older.next().await {
        Got::End(Some(status)) => assert_eq!(status.code(), tonic::Code::Aborted),
        other => panic!("not closed but {other:?}"),
    }
    let refused = Gateway::connect(&worker.socket(), hello(6))
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_run_are_rejected_by_code() {
    let limits = weir_model::backend::BackendLimits {
        blocks: 8,
        ..crate::harness::LIMITS
    };
    let options = crate::harness::Options {
        limits,
        max_waiting: 2,
        ..Default::default()
    };
    let worker = TestWorker::start_with(options).await;
    worker.controls.hold();
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let long: Vec<u32> = (0..256).cycle().take(400).collect();
    let mut wrong_version = submit(2, &PROMPT, 5);
    wrong_version.version_digest = "sha256:ff".to_owned();
    for (frame, want) in [
        (submit(1, &long, 10), (Code::TooLarge, 1)),
        (wrong_version, (Code::UnknownVersion, 2)),
        (submit(3, &[], 5), (Code::Invalid, 3)),
    ] {
        gateway.send(frame).await;
        assert_eq!(rejection(&mut gateway).await, want);
    }
    gateway.attach(9, 1, 0).await;
    assert_eq!(rejection(&mut gateway).await, (Code::UnknownRun, 9));
    gateway.cancel(9, 1).await;
    assert_eq!(rejection(&mut gateway).await, (Code::UnknownRun, 9));
    // Two wait; three choices are one too many, and none of them is queued.
    let mut three = submit(4, &PROMPT, 5);
    three.choices = 3;
    gateway.send(three).await;
    assert_eq!(rejection(&mut gateway).await, (Code::QueueFull, 4));
    gateway.send(submit(5, &PROMPT, 5)).await;
    worker.controls.release();
    assert_eq!(gateway.rows_to_the_end().await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_any_session_ends_after_its_grace() {
    let options = crate::harness::Options {
        orphan_grace: Some(Duration::from_millis(300)),
        ..Default::default()
    };
    let worker = TestWorker::start_with(options).await;
    let gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut watching = gateway;
    // A session keeps it alive for longer than the grace: statuses come once a second.
    for _ in 0..2 {
        watching.status_where(|_| true).await;
    }
    watching.vanish();
    assert_eq!(worker.ended().await.unwrap(), weir_worker::Ended::Orphaned);
}
