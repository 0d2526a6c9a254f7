//! Credit, slow readers, cancellation, and the ends of a worker.

use std::time::Duration;

use weir_protocol::worker::{Row, Submit, finish::Reason, rejected::Code, worker_frame::Frame};
use weir_worker::{Ended, WorkerError};

use crate::fake::{Fault, expected};
use crate::gateway::{Gateway, Got, hello, submit};
use crate::harness::{Options, TestWorker};

const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

fn reason(row: &Row) -> Reason {
    row.finish.as_ref().unwrap().reason()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_out_of_credit_waits_and_others_go_on() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut limited = submit(1, &PROMPT, 20);
    limited.credit = 6;
    gateway.send(limited).await;
    for index in 0..6 {
        assert_eq!(gateway.row().await.index, index);
    }
    let mut other = submit(2, &PROMPT, 50);
    other.choices = 2;
    gateway.send(other).await;
    let others = gateway.rows_to_the_end().await;
    assert!(others.len() == 100 && others.iter().all(|row| row.run[0] == 2));
    let status = gateway
        .status_where(|status| status.output_tokens >= 106)
        .await;
    assert_eq!(
        status.output_tokens, 106,
        "the paused run makes nothing it may not send"
    );

    gateway.progress(1, 6, 9).await;
    for index in 6..9 {
        assert_eq!(gateway.row().await.index, index);
    }
    gateway.progress(1, 9, 1000).await;
    let rest = gateway.rows_to_the_end().await;
    assert_eq!((rest[0].index, rest.len()), (9, 11));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_does_not_read_stops_only_itself() {
    let worker = TestWorker::start().await;
    let slow = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    // Alternatives make rows large: far more than windows and outbox hold.
    for run in 0..32 {
        let mut frame = submit(run, &PROMPT, 500);
        frame.sampling.as_mut().unwrap().logprobs = Some(20);
        slow.send(frame).await;
    }
    let other = weir_protocol::worker::Hello {
        gateway: "test/other".to_owned(),
        ..hello(1)
    };
    let mut quick = Gateway::connect(&worker.socket(), other).await.unwrap();
    quick.send(submit(200, &PROMPT, 400)).await;
    assert_eq!(quick.rows_to_the_end().await.len(), 400);
    let before = quick
        .status_where(|status| status.running < 32 || status.output_tokens > 400)
        .await;
    assert!(
        before.output_tokens < 32 * 500 + 400,
        "the slow session's runs are paused"
    );

    // Once it reads, it gets everything, in order.
    let mut slow = slow;
    let mut next = [0_u64; 32];
    let mut finished = 0;
    while finished < 32 {
        let row = slow.row().await;
        let run = usize::from(row.run[0]);
        assert_eq!(row.index, next[run]);
        next[run] += 1;
        finished += usize::from(row.run_finished);
    }
    assert_eq!(next, [500; 32]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_gives_its_blocks_back_within_one_step() {
    let worker = TestWorker::start().await;
    worker.controls.hold();
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut frame = submit(1, &PROMPT, 500);
    frame.choices = 2;
    gateway.send(frame).await;
    gateway.send(submit(2, &PROMPT, 500)).await;
    // One step at a time: the engine waits inside a step for the next one to be allowed.
    let mut choices = std::collections::BTreeSet::new();
    while choices.len() < 3 {
        worker.controls.allow(1);
        let row = gateway.row().await;
        choices.insert((row.run[0], row.choice));
    }
    gateway.cancel(1, 1).await;
    gateway.cancel(2, 1).await;
    // Each row read lets one step pass, so the cancellations overtake the ends of the runs by far.
    let mut ends = Vec::new();
    while ends.len() < 3 {
        worker.controls.allow(1);
        let row = gateway.row().await;
        if row.finish.is_some() {
            assert_eq!(
                (reason(&row), row.tokens, row.text.as_str()),
                (Reason::Cancelled, 0, "")
            );
            ends.push((row.run[0], row.run_finished));
        }
    }
    ends.sort_unstable();
    assert_eq!(ends, [(1, false), (1, true), (2, true)]);
    let status = gateway
        .status_where(|status| status.running == 0 && status.waiting == 0)
        .await;
    assert_eq!(
        status.blocks_free + status.blocks_cached,
        status.blocks_total
    );
    assert!(
        status.output_tokens < 3 * 500,
        "{} tokens were made",
        status.output_tokens
    );
    // What is over stays over.
    gateway.cancel(1, 1).await;
    gateway.send(weir_protocol::worker::Ping { nonce: 5 }).await;
    assert!(matches!(gateway.next().await, Got::Frame(Frame::Pong(pong)) if pong.nonce == 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_and_a_paused_run_can_be_cancelled() {
    let options = Options {
        limits: weir_model::backend::BackendLimits {
            max_running: 1,
            ..crate::harness::LIMITS
        },
        ..Options::default()
    };
    let worker = TestWorker::start_with(options).await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut paused = submit(1, &PROMPT, 100);
    paused.credit = 2;
    gateway.send(paused).await;
    gateway.row().await;
    gateway.row().await;
    worker.controls.hold();
    gateway.send(submit(2, &PROMPT, 100)).await;
    gateway.send(submit(3, &PROMPT, 100)).await;
    gateway.cancel(3, 1).await;
    gateway.cancel(1, 1).await;
    worker.controls.release();
    gateway.progress(1, 2, 100).await;
    let mut ends = std::collections::BTreeMap::new();
    while ends.len() < 3 {
        let row = gateway.row().await;
        if row.run_finished {
            ends.insert(row.run[0], reason(&row));
        }
    }
    assert_eq!(
        ends.into_iter().collect::<Vec<_>>(),
        [
            (1, Reason::Cancelled),
            (2, Reason::Length),
            (3, Reason::Cancelled)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_what_runs_and_refuses_what_comes() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    gateway
        .send(Submit {
            credit: 1,
            ..submit(1, &PROMPT, 10)
        })
        .await;
    gateway.row().await;
    worker.shutdown.cancel();
    gateway.status_where(|status| status.draining).await;
    gateway.send(submit(2, &PROMPT, 10)).await;
    assert!(!worker.readiness.is_ready());
    gateway.progress(1, 1, 1000).await;
    let (mut rows, mut refused) = (vec![], None);
    while rows.len() < 9 || refused.is_none() {
        match gateway.next().await {
            Got::Row(row) => rows.push(row),
            Got::Frame(Frame::Rejected(rejected)) => refused = Some(rejected.code()),
            other => panic!("neither row nor rejection but {other:?}"),
        }
    }
    assert_eq!(refused, Some(Code::Draining));
    assert!(rows[8].run_finished);
    // Nobody has to acknowledge: what was sent before the session ends arrives.
    assert_eq!(worker.ended().await.unwrap(), Ended::Drained);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_at_its_deadline() {
    let worker = TestWorker::start_with(Options {
        drain: Duration::from_millis(200),
        ..Options::default()
    })
    .await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut stuck = submit(1, &PROMPT, 100);
    stuck.credit = 1;
    gateway.send(stuck).await;
    gateway.row().await;
    worker.shutdown.cancel();
    assert_eq!(worker.ended().await.unwrap(), Ended::DrainDeadline);
    // No row says how the run ended: the gateway sees the session end.
    loop {
        match gateway.next().await {
            Got::End(_) => break,
            Got::Row(row) => assert!(row.finish.is_none()),
            Got::Frame(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_engine_fails_every_run_at_once() {
    for fault in [Fault::Error, Fault::Panic] {
        let worker = TestWorker::start().await;
        worker.controls.hold();
        let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
        for run in 0..8 {
            gateway.send(submit(run, &PROMPT, 50)).await;
        }
        // Every run must have reached the engine: what is still in the ring when it dies sees only the session end.
        let mut known = std::collections::BTreeSet::new();
        while known.len() < 8 {
            worker.controls.allow(1);
            known.insert(gateway.row().await.run[0]);
        }
        worker.controls.break_with(fault);
        worker.controls.release();
        let mut failed = 0;
        loop {
            match gateway.next().await {
                Got::Row(row) if row.run_finished => {
                    assert_eq!(reason(&row), Reason::Failed);
                    assert!(row.finish.unwrap().message.contains("injected"));
                    failed += 1;
                }
                Got::Row(_) | Got::Frame(_) => {}
                Got::End(_) => break,
            }
        }
        assert_eq!(failed, 8);
        let error = worker.ended().await.unwrap_err();
        assert!(
            matches!(error, WorkerError::Engine { .. }) && !error.is_configuration(),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_after_a_pause_are_what_they_would_have_been() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut frame = submit(1, &PROMPT, 60);
    frame.credit = 1;
    gateway.send(frame).await;
    let mut tokens = vec![gateway.row().await.token_id];
    while tokens.len() < 60 {
        let made = tokens.len() as u64;
        gateway.progress(1, made, made + 1).await;
        tokens.push(gateway.row().await.token_id);
    }
    assert_eq!(tokens, expected(&PROMPT, 7, 60));
}
