//! A worker of the real protocol without a model: every run gets one row in each interval, or all its rows at once.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use weir_protocol::frames::{MAX_MESSAGE_BYTES, PROTOCOL, STREAM_WINDOW_BYTES};
use weir_protocol::worker::worker_server::{Worker, WorkerServer};
use weir_protocol::worker::{
    EngineLimits, Finish, GatewayFrame, LoadedModel, Pong, Rejected, Row, StepOutput, Welcome,
    WorkerFrame, WorkerStatus, finish::Reason, gateway_frame, rejected::Code,
};

use super::held::Held;
use super::pace::TICK;

#[derive(Args)]
pub(crate) struct WorkerArgs {
    /// Socket to listen on.
    #[arg(long)]
    listen: PathBuf,
    /// Digest of the version it says it serves.
    #[arg(long)]
    digest: String,
    /// Milliseconds between two rows of a run; 0: all at once.
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    /// Runs it takes at once.
    #[arg(long, default_value_t = 200_000)]
    max_running: u32,
}

/// Frames that wait for a gateway that reads slowly; with more, time stands still here as it does in an engine.
const OUTBOX: usize = 16;
/// Rows in one step.
const STEP_ROWS: usize = 1024;

type Outbound = mpsc::Sender<Result<WorkerFrame, Status>>;

struct Service {
    digest: String,
    interval: Duration,
    max_running: u32,
    boot: String,
    held: Mutex<HashMap<String, Arc<Mutex<Held>>>>,
}

/// Serves until it is killed.
pub(crate) fn run(args: &WorkerArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        std::fs::remove_file(&args.listen).ok();
        let listener = UnixListener::bind(&args.listen)
            .with_context(|| format!("cannot listen on {}", args.listen.display()))?;
        let service = Service {
            digest: args.digest.clone(),
            interval: Duration::from_millis(args.interval_ms),
            max_running: args.max_running,
            boot: format!("{}", crate::net::now_ns()),
            held: Mutex::default(),
        };
        let service = WorkerServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(STREAM_WINDOW_BYTES)
            .serve_with_incoming_shutdown(
                service,
                UnixListenerStream::new(listener),
                std::future::pending(),
            )
            .await?;
        Ok(())
    })
}

impl Service {
    fn welcome(&self, held: &Held) -> Welcome {
        Welcome {
            worker: "fake".to_owned(),
            boot: self.boot.clone(),
            protocol: PROTOCOL,
            models: vec![LoadedModel {
                version_digest: self.digest.clone(),
                ..LoadedModel::default()
            }],
            limits: Some(EngineLimits {
                max_running: self.max_running,
                max_batch_tokens: 1 << 20,
                block_tokens: 16,
                blocks_total: u32::MAX,
                kv_bytes: 1 << 40,
            }),
            held: held.all(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a gateway says, to what is answered at once.
fn obey(held: &mut Held, frame: GatewayFrame) -> Option<WorkerFrame> {
    match frame.frame? {
        gateway_frame::Frame::Submit(submit) => held.submit(submit),
        gateway_frame::Frame::Attach(attach) => {
            if !held.attach(&attach) {
                return Some(unknown(attach.run, attach.epoch));
            }
        }
        gateway_frame::Frame::Cancel(cancel) => {
            let Some((epoch, next)) = held.drop_run(&cancel.run) else {
                return Some(unknown(cancel.run, cancel.epoch));
            };
            let row = Row {
                run: cancel.run,
                epoch,
                index: next,
                finish: Some(Finish {
                    reason: Reason::Cancelled.into(),
                    ..Finish::default()
                }),
                run_finished: true,
                ..Row::default()
            };
            return Some(
                StepOutput {
                    step: 1,
                    rows: vec![row],
                }
                .into(),
            );
        }
        gateway_frame::Frame::Progress(progress) => {
            for run in progress.runs {
                held.progress(&run.run, run.acknowledged, run.credit);
            }
        }
        gateway_frame::Frame::Ping(ping) => return Some(Pong { nonce: ping.nonce }.into()),
        gateway_frame::Frame::Hello(_) => {}
    }
    None
}

fn unknown(run: Bytes, epoch: u64) -> WorkerFrame {
    let message = "not held".to_owned();
    Rejected {
        run,
        epoch,
        code: Code::UnknownRun.into(),
        message,
    }
    .into()
}

/// Sends what is due until the session is over or another has taken its place.
async fn keep_pace(held: Arc<Mutex<Held>>, session: u64, outbound: Outbound) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut step = 0;
    loop {
        ticks.tick().await;
        loop {
            let rows = {
                let mut held = lock(&held);
                if held.session != session {
                    return;
                }
                let Some(rows) = held.due() else { break };
                rows
            };
            let mut rows = rows.into_iter().peekable();
            while rows.peek().is_some() {
                step += 1;
                let rows = rows.by_ref().take(STEP_ROWS).collect();
                if outbound
                    .send(Ok(StepOutput { step, rows }.into()))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
    }
}

#[tonic::async_trait]
impl Worker for Service {
    type SessionStream = ReceiverStream<Result<WorkerFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<GatewayFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.and_then(|first| first.frame);
        let Some(gateway_frame::Frame::Hello(hello)) = first else {
            return Err(Status::invalid_argument("no hello"));
        };
        let name = format!("{}/{}", hello.gateway, hello.replica);
        let interval = self.interval;
        let held = Arc::clone(
            lock(&self.held)
                .entry(name)
                .or_insert_with(|| Arc::new(Mutex::new(Held::new(interval)))),
        );
        let (outbound, frames) = mpsc::channel(OUTBOX);
        let (welcome, session) = {
            let mut held = lock(&held);
            held.session += 1;
            (self.welcome(&held), held.session)
        };
        let status = WorkerStatus {
            loaded_digests: vec![self.digest.clone()],
            ..WorkerStatus::default()
        };
        for frame in [WorkerFrame::from(welcome), status.into()] {
            outbound
                .send(Ok(frame))
                .await
                .map_err(|_| Status::aborted("left"))?;
        }
        if !interval.is_zero() {
            tokio::spawn(keep_pace(Arc::clone(&held), session, outbound.clone()));
        }
        tokio::spawn(async move {
            while let Ok(Some(frame)) = inbound.message().await {
                let (answer, rows) = {
                    let mut held = lock(&held);
                    (obey(&mut held, frame), held.at_once())
                };
                let rows = (!rows.is_empty()).then(|| StepOutput { step: 1, rows }.into());
                for frame in answer.into_iter().chain(rows) {
                    if outbound.send(Ok(frame)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}
