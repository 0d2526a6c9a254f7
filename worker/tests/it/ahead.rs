//! A device that is given the step after the one it computes: the same rows, nothing billed that nobody sees.

use std::collections::BTreeMap;

use weir_protocol::worker::{Row, finish::Reason};

use crate::drafts::four_runs;
use crate::fake::{Fault, expected};
use crate::gateway::{Gateway, Got, hello, submit};
use crate::harness::{Options, TestWorker};

/// What each choice of each run says: token, text, and how it ended.
type Said = BTreeMap<(u8, u32), Vec<(u32, String, Option<i32>)>>;

async fn start(runs_ahead: bool) -> TestWorker {
    TestWorker::start_with(Options {
        runs_ahead,
        draft_tokens: 0,
        ..Options::default()
    })
    .await
}

/// Gives all runs at once; returns what they said, and how many steps were started ahead.
async fn said(runs_ahead: bool) -> (Said, u64) {
    let worker = start(runs_ahead).await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    for run in four_runs() {
        gateway.send(run).await;
    }
    let (mut said, mut left, mut tokens) = (Said::new(), 4, 0);
    while left > 0 {
        let row = gateway.row().await;
        left -= u32::from(row.run_finished);
        tokens += u64::from(row.tokens);
        let finish = row.finish.as_ref().map(|finish| finish.reason);
        said.entry((row.run[0], row.choice))
            .or_default()
            .push((row.token_id, row.text, finish));
    }
    let status = gateway
        .status_where(|status| status.output_tokens >= tokens && status.running == 0)
        .await;
    assert_eq!(
        status.output_tokens, tokens,
        "a step for nothing is not billed"
    );
    (said, worker.controls.steps_ahead())
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_started_ahead_change_no_row() {
    let (plain, none) = said(false).await;
    let (ahead, steps) = said(true).await;
    assert_eq!(plain, ahead);
    assert_eq!(none, 0);
    assert!(steps > 50, "{steps} steps were started ahead");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_started_ahead_makes_no_row_beyond_a_run_s_credit() {
    let worker = start(true).await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let prompt = [1, 2, 3, 4, 5];
    let mut frame = submit(1, &prompt, 100);
    frame.credit = 41;
    gateway.send(frame).await;
    let mut tokens = Vec::new();
    for _ in 0..41 {
        tokens.push(gateway.row().await.token_id);
    }
    gateway.send(submit(2, &[9, 8, 7], 5)).await;
    assert_eq!(gateway.rows_to_the_end().await.len(), 5);
    let status = gateway
        .status_where(|status| status.output_tokens >= 46)
        .await;
    assert_eq!(status.output_tokens, 46);
    assert!(worker.controls.steps_ahead() > 30);
    gateway.progress(1, 41, 1000).await;
    let rest = gateway.rows_to_the_end().await;
    tokens.extend(rest.iter().map(|row| row.token_id));
    assert_eq!(tokens, expected(&prompt, 7, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_and_a_dead_device_end_runs_as_without() {
    let worker = start(true).await;
    worker.controls.hold();
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    gateway.send(submit(1, &[1, 2, 3], 400)).await;
    gateway.send(submit(2, &[4, 5, 6], 400)).await;
    let reason = |row: &Row| row.finish.as_ref().unwrap().reason();
    // No more than a step for each row of the first run, so that no run ends by itself before it is cancelled; the second may come late.
    worker.controls.allow(3);
    let mut rows = 0;
    let last = loop {
        let row = gateway.row().await;
        worker.controls.allow(u64::from(row.run[0] == 1));
        rows += 1;
        if row.run_finished {
            break row;
        }
        if rows == 40 {
            gateway.cancel(1, 1).await;
        }
    };
    assert_eq!((last.run[0], reason(&last)), (1, Reason::Cancelled));
    assert!(worker.controls.steps_ahead() > 0);
    worker.controls.break_with(Fault::Error);
    worker.controls.release();
    loop {
        match gateway.next().await {
            Got::Row(row) if row.run_finished => {
                assert_eq!((row.run[0], reason(&row)), (2, Reason::Failed));
            }
            Got::Row(_) | Got::Frame(_) => {}
            Got::End(_) => break,
        }
    }
    assert!(worker.ended().await.is_err());
}
