//! A worker that does what a test says. What it holds survives its sessions, as in a real one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use weir_protocol::worker::worker_server::{Worker, WorkerServer};
use weir_protocol::worker::{
    Attach, EngineLimits, Finish, GatewayFrame, Guesses, HeldRun, LoadedModel, Logprob, Pong,
    PromptToken, Rejected, Row, Started, StepOutput, Submit, Welcome, WorkerFrame, WorkerStatus,
    finish::Reason, gateway_frame, logprob::Top, rejected::Code,
};

type Outbound = mpsc::UnboundedSender<Result<WorkerFrame, Status>>;

/// A handle to the worker, for the test.
pub(crate) struct FakeWorker {
    pub(crate) path: PathBuf,
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    boot: String,
    digests: Vec<String>,
    auto: bool,
    max_running: u32,
    runs: BTreeMap<Vec<u8>, Run>,
    session: Option<Outbound>,
    submits: Vec<Submit>,
    cancels: usize,
    attaches: Vec<Attach>,
    sampled: u64,
    reject: Option<Code>,
}

struct Run {
    submit: Submit,
    epoch: u64,
    rows: Vec<Row>,
    sent: u64,
    credit: u64,
    acknowledged: u64,
    finished: bool,
}

#[derive(Clone)]
struct Service(Arc<Mutex<State>>);

impl FakeWorker {
    /// Listens on a socket in `folder`. With `auto`, every run is generated to its ceiling at once.
    pub(crate) fn start(folder: &Path, name: &str, digest: &str, auto: bool) -> Self {
        let path = folder.join(format!("{name}.sock"));
        std::fs::remove_file(&path).ok();
        let state = Arc::new(Mutex::new(State {
            boot: format!("{:?}", std::time::Instant::now()),
            digests: vec![digest.to_owned()],
            auto,
            max_running: 64,
            ..State::default()
        }));
        let listener = UnixListener::bind(&path).unwrap();
        let service = WorkerServer::new(Service(Arc::clone(&state)));
        let server = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .ok();
        });
        Self {
            path,
            state,
            server,
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    /// `kill -9`: the process and all it held are gone.
    pub(crate) fn kill(self) {
        self.server.abort();
        self.with(|state| {
            state.session = None;
            state.runs.clear();
        });
        std::fs::remove_file(&self.path).ok();
    }

    /// The connection breaks; the process lives on.
    pub(crate) fn break_session(&self) {
        self.with(|state| {
            if let Some(session) = state.session.take() {
                session.send(Err(Status::unavailable("cut"))).ok();
            }
        });
    }

    /// The process dies and is there again at once, with nothing of what it held.
    pub(crate) fn crash(&self) {
        self.with(|state| {
            state.boot.push('!');
            state.runs.clear();
        });
        self.break_session();
    }

    pub(crate) fn max_running(&self, max: u32) {
        self.with(|state| state.max_running = max);
    }

    pub(crate) fn reject(&self, code: Option<Code>) {
        self.with(|state| state.reject = code);
    }

    pub(crate) fn submits(&self) -> Vec<Submit> {
        self.with(|state| state.submits.clone())
    }

    pub(crate) fn attaches(&self) -> usize {
        self.with(|state| state.attaches.len())
    }

    /// Rows that wait for credit or a session.
    pub(crate) fn unsent(&self) -> usize {
        self.with(|state| {
            let left = state
                .runs
                .values()
                .map(|run| run.rows.len() - run.sent as usize);
            left.sum()
        })
    }

    /// Forgets every run.
    pub(crate) fn forget(&self) {
        self.with(|state| state.runs.clear());
    }

    pub(crate) fn cancels(&self) -> usize {
        self.with(|state| state.cancels)
    }

    pub(crate) fn sampled(&self) -> u64 {
        self.with(|state| state.sampled)
    }

    /// Rows sent so far, over all runs it holds.
    pub(crate) fn sent(&self) -> u64 {
        self.with(|state| state.runs.values().map(|run| run.sent).sum())
    }

    /// Runs it has begun and not ended.
    pub(crate) fn unfinished(&self) -> Vec<Vec<u8>> {
        self.with(|state| {
            let runs = state.runs.iter().filter(|(_, run)| !run.finished);
            runs.map(|(id, _)| id.clone()).collect()
        })
    }

    pub(crate) fn held(&self) -> usize {
        self.with(|state| state.runs.len())
    }

    /// Every live run gets `count` more tokens, with the text ` 1`, ` 2` and so on.
    pub(crate) fn generate(&self, count: u32) {
        self.with(|state| {
            let runs: Vec<Vec<u8>> = state.runs.keys().cloned().collect();
            for run in runs {
                state.generate(&run, count);
            }
            state.pump();
        });
    }

    /// Makes rows with these texts for every live run, a token each; the last one ends the run where `end`.
    pub(crate) fn say(&self, texts: &[&str], end: bool) {
        self.with(|state| {
            for (id, run) in &mut state.runs {
                for (place, text) in texts.iter().enumerate() {
                    let last = end && place + 1 == texts.len();
                    run.rows.push(Row {
                        run: id.clone().into(),
                        index: run.rows.len() as u64,
                        tokens: 1,
                        text: (*text).to_owned(),
                        finish: last.then(|| Finish {
                            reason: Reason::Stop.into(),
                            ..Finish::default()
                        }),
                        run_finished: last,
                        started: (run.rows.is_empty()).then(Started::default),
                        ..Row::default()
                    });
                    run.finished |= last;
                }
            }
            state.pump();
        });
    }

    /// Makes one more row of a choice for every live run.
    pub(crate) fn choice(&self, choice: u32, text: &str, end: Option<Reason>, last: bool) {
        self.with(|state| {
            for (id, run) in &mut state.runs {
                run.rows.push(Row {
                    run: id.clone().into(),
                    index: run.rows.len() as u64,
                    choice,
                    tokens: 1,
                    text: text.to_owned(),
                    finish: end.map(|reason| Finish {
                        reason: reason.into(),
                        ..Finish::default()
                    }),
                    run_finished: last,
                    started: (run.rows.is_empty()).then(Started::default),
                    ..Row::default()
                });
                run.finished |= last;
            }
            state.pump();
        });
    }

    /// Makes the last row of every live run, and says how many of its tokens were guessed ahead.
    pub(crate) fn end_with_guesses(&self, drafted: u64, accepted: u64) {
        self.with(|state| {
            for (id, run) in state.runs.iter_mut().filter(|(_, run)| !run.finished) {
                run.rows.push(Row {
                    run: id.clone().into(),
                    index: run.rows.len() as u64,
                    tokens: 1,
                    finish: Some(Finish {
                        reason: Reason::Stop.into(),
                        ..Finish::default()
                    }),
                    run_finished: true,
                    started: (run.rows.is_empty()).then(Started::default),
                    guesses: Some(Guesses { drafted, accepted }),
                    ..Row::default()
                });
                run.finished = true;
            }
            state.pump();
        });
    }

    /// Ends every live run with an end token.
    pub(crate) fn finish(&self) {
        self.with(|state| {
            let runs: Vec<Vec<u8>> = state.runs.keys().cloned().collect();
            for run in runs {
                state.end(&run, Reason::Stop, "", true);
            }
            state.pump();
        });
    }

    pub(crate) fn fail(&self, message: &str) {
        self.with(|state| {
            let runs: Vec<Vec<u8>> = state.runs.keys().cloned().collect();
            for run in runs {
                state.end(&run, Reason::Failed, message, false);
            }
            state.pump();
        });
    }

    /// A row from an epoch that is over.
    pub(crate) fn send_stale_row(&self) {
        self.with(|state| {
            let rows = state.runs.iter().map(|(id, run)| Row {
                run: id.clone().into(),
                epoch: run.epoch - 1,
                index: run.rows.len() as u64,
                tokens: 1,
                text: "STALE".to_owned(),
                ..Row::default()
            });
            let rows = rows.collect();
            state.send(StepOutput { step: 0, rows });
        });
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl State {
    fn send(&mut self, frame: impl Into<WorkerFrame>) {
        if let Some(session) = &self.session {
            session.send(Ok(frame.into())).ok();
        }
    }

    fn generate(&mut self, id: &[u8], count: u32) {
        let Some(run) = self.runs.get_mut(id) else {
            return;
        };
        let choices = run.submit.choices.max(1);
        let limit = u64::from(run.submit.max_output_tokens * choices);
        let logprobs = run.submit.sampling.as_ref().and_then(|s| s.logprobs);
        for _ in 0..count {
            let index = run.rows.len() as u64;
            if run.finished || index >= limit {
                return;
            }
            let text = format!(" {}", index + 1);
            let last = index + 1 == limit;
            let choice = (index % u64::from(choices)) as u32;
            let ends = index + u64::from(choices) >= limit;
            run.rows.push(Row {
                run: id.to_vec().into(),
                index,
                choice,
                tokens: 1,
                token_id: 100 + index as u32,
                logprob: logprobs.map(|top| logprob(&text, top)),
                prompt_logprobs: said_of_prompt(&run.submit, index),
                text,
                finish: ends.then(|| Finish {
                    reason: Reason::Length.into(),
                    ..Finish::default()
                }),
                run_finished: last,
                started: (index == 0).then_some(Started {
                    queue_ms: 0,
                    cached_tokens: 2,
                }),
                ..Row::default()
            });
            run.finished = last;
            self.sampled += 1;
        }
    }

    fn end(&mut self, id: &[u8], reason: Reason, message: &str, token: bool) {
        let Some(run) = self.runs.get_mut(id).filter(|run| !run.finished) else {
            return;
        };
        let index = run.rows.len() as u64;
        run.rows.push(Row {
            run: id.to_vec().into(),
            index,
            tokens: u32::from(token),
            finish: Some(Finish {
                reason: reason.into(),
                message: message.to_owned(),
                ..Finish::default()
            }),
            run_finished: true,
            started: (index == 0 && token).then(Started::default),
            ..Row::default()
        });
        run.finished = true;
    }

    /// Sends what credit allows, all runs' rows in one step.
    fn pump(&mut self) {
        if self.session.is_none() {
            return;
        }
        let mut rows = Vec::new();
        for run in self.runs.values_mut() {
            let until = run.credit.min(run.rows.len() as u64);
            while run.sent < until {
                let mut row = run.rows[run.sent as usize].clone();
                row.epoch = run.epoch;
                rows.push(row);
                run.sent += 1;
            }
        }
        if !rows.is_empty() {
            self.send(StepOutput { step: 1, rows });
        }
    }

    fn receive(&mut self, frame: GatewayFrame) {
        match frame.frame {
            Some(gateway_frame::Frame::Submit(submit)) => self.submit(submit),
            Some(gateway_frame::Frame::Attach(attach)) => self.attach(&attach),
            Some(gateway_frame::Frame::Cancel(cancel)) => {
                self.cancels += 1;
                if self.runs.contains_key(&cancel.run[..]) {
                    self.end(&cancel.run, Reason::Cancelled, "cancelled", false);
                } else {
                    self.refuse(&cancel.run, cancel.epoch, Code::UnknownRun);
                }
            }
            Some(gateway_frame::Frame::Progress(progress)) => {
                for done in progress.runs {
                    if let Some(run) = self.runs.get_mut(&done.run[..]) {
                        run.acknowledged = run.acknowledged.max(done.acknowledged);
                        run.credit = run.credit.max(done.credit);
                    }
                }
                self.runs
                    .retain(|_, run| !(run.finished && run.acknowledged >= run.rows.len() as u64));
            }
            Some(gateway_frame::Frame::Ping(ping)) => self.send(Pong { nonce: ping.nonce }),
            Some(gateway_frame::Frame::Hello(_)) | None => {}
        }
        self.pump();
    }

    fn refuse(&mut self, run: &bytes::Bytes, epoch: u64, code: Code) {
        self.send(Rejected {
            run: run.clone(),
            epoch,
            code: code.into(),
            message: "as the test says".to_owned(),
        });
    }

    fn submit(&mut self, submit: Submit) {
        if let Some(code) = self.reject {
            return self.refuse(&submit.run, submit.epoch, code);
        }
        self.submits.push(submit.clone());
        let id = submit.run.to_vec();
        let run = Run {
            epoch: submit.epoch,
            credit: submit.credit,
            submit,
            rows: Vec::new(),
            sent: 0,
            acknowledged: 0,
            finished: false,
        };
        self.runs.insert(id.clone(), run);
        if self.auto {
            self.generate(&id, u32::MAX);
        }
    }

    fn attach(&mut self, attach: &Attach) {
        self.attaches.push(attach.clone());
        match self.runs.get_mut(&attach.run[..]) {
            Some(run) => {
                assert!(attach.epoch > run.epoch, "a take-over raises the epoch");
                run.epoch = attach.epoch;
                run.sent = attach.from_index;
                run.credit = attach.credit;
            }
            None => self.refuse(&attach.run, attach.epoch, Code::UnknownRun),
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            worker: "fake".to_owned(),
            boot: self.boot.clone(),
            protocol: 1,
            models: self
                .digests
                .iter()
                .map(|digest| LoadedModel {
                    version_digest: digest.clone(),
                    scores_prompts: true,
                    ..LoadedModel::default()
                })
                .collect(),
            limits: Some(EngineLimits {
                max_running: self.max_running,
                max_batch_tokens: 2048,
                block_tokens: 16,
                blocks_total: 1000,
                kv_bytes: 1 << 20,
            }),
            held: self
                .runs
                .iter()
                .map(|(id, run)| HeldRun {
                    run: id.clone().into(),
                    epoch: run.epoch,
                    first_index: run.acknowledged,
                    next_index: run.rows.len() as u64,
                    finished: run.finished,
                })
                .collect(),
        }
    }
}

/// What the first row says of the prompt's tokens.
fn said_of_prompt(submit: &Submit, index: u64) -> Vec<PromptToken> {
    let asked = submit.sampling.as_ref().and_then(|s| s.prompt_logprobs);
    let Some(top) = asked.filter(|_| index == 0) else {
        return Vec::new();
    };
    let tokens = submit.prompt.iter().zip(0u32..);
    let told = tokens.map(|(id, place)| {
        let Logprob {
            token,
            token_bytes,
            top,
            ..
        } = logprob(&format!("<{id}>"), top);
        PromptToken {
            logprob: (place > 0).then_some(-(place as f32)),
            token,
            token_bytes,
            top,
        }
    });
    told.collect()
}

fn logprob(text: &str, top: u32) -> Logprob {
    Logprob {
        logprob: -0.5,
        token: text.to_owned(),
        token_bytes: text.as_bytes().to_vec().into(),
        top: (0..top)
            .map(|place| Top {
                token_id: place,
                token: format!("alt{place}"),
                logprob: -1.0 - place as f32,
                token_bytes: format!("alt{place}").into_bytes().into(),
            })
            .collect(),
    }
}

#[tonic::async_trait]
impl Worker for Service {
    type SessionStream = UnboundedReceiverStream<Result<WorkerFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<GatewayFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut inbound = request.into_inner();
        let (sender, receiver) = mpsc::unbounded_channel();
        let state = Arc::clone(&self.0);
        tokio::spawn(async move {
            let hello = inbound.message().await;
            let Ok(Some(hello)) = hello else {
                // The gateway died while it connected.
                return;
            };
            assert!(matches!(hello.frame, Some(gateway_frame::Frame::Hello(_))));
            {
                let mut state = state.lock().unwrap();
                state.session = Some(sender);
                let welcome = state.welcome();
                state.send(welcome);
                let loaded_digests = state.digests.clone();
                state.send(WorkerStatus {
                    loaded_digests,
                    ..WorkerStatus::default()
                });
            }
            while let Ok(Some(frame)) = inbound.message().await {
                state.lock().unwrap().receive(frame);
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }
}
