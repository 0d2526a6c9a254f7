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
    Attach, EngineLimits, Finish, GatewayFrame, HeldRun, LoadedModel, Pong, Rejected, Row, Started,
    StepOutput, Submit, Welcome, WorkerFrame, WorkerStatus, finish::Reason, gateway_frame,
    rejected::Code,
};

use super::pace::{TICK, Wheel};
use super::text;

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

struct Run {
    id: Bytes,
    epoch: u64,
    /// Index of the next row, and how many there will be.
    next: u64,
    limit: u64,
    credit: u64,
    acknowledged: u64,
    /// Out of credit: in no slot of the wheel.
    starved: bool,
}

/// Runs of one gateway process.
struct Held {
    runs: Vec<Option<Run>>,
    free: Vec<u32>,
    by_id: HashMap<Bytes, u32>,
    wheel: Wheel,
    session: u64,
}

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

impl Held {
    fn new(interval: Duration) -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            wheel: Wheel::new(interval),
            session: 0,
        }
    }

    fn of(&mut self, id: &[u8]) -> Option<(u32, &mut Run)> {
        let place = *self.by_id.get(id)?;
        self.runs[place as usize].as_mut().map(|run| (place, run))
    }

    fn submit(&mut self, submit: Submit) {
        let run = Run {
            id: submit.run.clone(),
            epoch: submit.epoch,
            next: 0,
            limit: u64::from(submit.max_output_tokens),
            credit: submit.credit,
            acknowledged: 0,
            starved: false,
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() as u32 - 1
        });
        self.runs[place as usize] = Some(run);
        self.by_id.insert(submit.run, place);
        self.wheel.soon(place);
    }

    /// Rows from there on are made again, with other times: nobody has seen them.
    fn attach(&mut self, attach: &Attach) -> bool {
        let Some((_, run)) = self.of(&attach.run) else {
            return false;
        };
        (run.epoch, run.next, run.credit) = (attach.epoch, attach.from_index, attach.credit);
        true
    }

    fn progress(&mut self, id: &[u8], acknowledged: u64, credit: u64) {
        let Some((place, run)) = self.of(id) else {
            return;
        };
        run.acknowledged = run.acknowledged.max(acknowledged);
        run.credit = run.credit.max(credit);
        let (done, starved) = (run.acknowledged >= run.limit, run.starved);
        run.starved = false;
        if done {
            self.by_id.remove(id);
            self.runs[place as usize] = None;
            self.free.push(place);
        } else if starved {
            self.wheel.soon(place);
        }
    }

    /// The next row of a run, as far as its credit goes; whether there will be more.
    fn row(run: &mut Run) -> Row {
        let index = run.next;
        run.next += 1;
        let last = run.next == run.limit;
        Row {
            run: run.id.clone(),
            epoch: run.epoch,
            index,
            tokens: 1,
            token_id: 100,
            text: text(index),
            finish: last.then(|| Finish {
                reason: Reason::Length.into(),
                ..Finish::default()
            }),
            run_finished: last,
            started: (index == 0).then(Started::default),
            ..Row::default()
        }
    }

    /// Rows of the streams that are due.
    fn step(&mut self, due: Vec<u32>, all_at_once: bool) -> Vec<Row> {
        let mut rows = Vec::with_capacity(due.len());
        for place in due {
            let Some(run) = self.runs[place as usize].as_mut() else {
                continue;
            };
            while run.next < run.limit && run.next < run.credit {
                rows.push(Self::row(run));
                if !all_at_once {
                    break;
                }
            }
            if run.next >= run.limit {
                continue;
            }
            run.starved = run.next >= run.credit;
            if !run.starved {
                self.wheel.again(place);
            }
        }
        rows
    }
}

impl Service {
    fn welcome(&self, held: &Held) -> Welcome {
        let runs = held.runs.iter().flatten().map(|run| HeldRun {
            run: run.id.clone(),
            epoch: run.epoch,
            first_index: run.acknowledged,
            next_index: run.next,
            finished: run.next == run.limit,
        });
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
            held: runs.collect(),
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
            let Some((place, run)) = held.of(&cancel.run) else {
                return Some(unknown(cancel.run, cancel.epoch));
            };
            let row = Row {
                run: run.id.clone(),
                epoch: run.epoch,
                index: run.next,
                finish: Some(Finish {
                    reason: Reason::Cancelled.into(),
                    ..Finish::default()
                }),
                run_finished: true,
                ..Row::default()
            };
            held.by_id.remove(&cancel.run);
            held.runs[place as usize] = None;
            held.free.push(place);
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
async fn keep_pace(held: Arc<Mutex<Held>>, session: u64, outbound: Outbound, all_at_once: bool) {
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
                let Some(due) = held.wheel.due() else { break };
                held.step(due, all_at_once)
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
        let all_at_once = interval.is_zero();
        tokio::spawn(keep_pace(
            Arc::clone(&held),
            session,
            outbound.clone(),
            all_at_once,
        ));
        tokio::spawn(async move {
            while let Ok(Some(frame)) = inbound.message().await {
                let answer = obey(&mut lock(&held), frame);
                if let Some(answer) = answer
                    && outbound.send(Ok(answer)).await.is_err()
                {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}
