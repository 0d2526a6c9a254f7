//! A gateway as small as it can be: how a session is opened and driven, for tests and for readers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use weir_protocol::frames::{MAX_MESSAGE_BYTES, PROTOCOL, STREAM_WINDOW_BYTES};
use weir_protocol::worker::worker_client::WorkerClient;
use weir_protocol::worker::{
    Attach, Cancel, GatewayFrame, Hello, Progress, Row, Submit, Welcome, WorkerFrame, WorkerStatus,
    progress, worker_frame::Frame,
};

/// Nothing in these tests takes longer unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One session.
pub(crate) struct Gateway {
    frames: mpsc::Sender<GatewayFrame>,
    inbound: Streaming<WorkerFrame>,
    pub(crate) welcome: Welcome,
    /// The newest status.
    pub(crate) status: Option<WorkerStatus>,
    /// Rows that came in a step nobody has asked for yet.
    rows: VecDeque<Row>,
}

/// A channel over a Unix socket. The address in the endpoint is not used; HTTP/2 wants one.
pub(crate) async fn channel(socket: PathBuf) -> Channel {
    Endpoint::from_static("http://worker")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
        .unwrap()
}

/// A hello of the test gateway.
pub(crate) fn hello(session_epoch: u64) -> Hello {
    Hello {
        gateway: "test/store-1".to_owned(),
        session_epoch,
        protocol: PROTOCOL,
        replica: "a".to_owned(),
        version_digest: String::new(),
    }
}

impl Gateway {
    /// Opens a session: the hello goes into the stream before the call, because the worker answers only after it.
    pub(crate) async fn connect(socket: &std::path::Path, hello: Hello) -> Result<Self, Status> {
        let (frames, outbound) = mpsc::channel(256);
        frames.send(hello.into()).await.unwrap();
        let mut client = WorkerClient::new(channel(socket.to_owned()).await)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let inbound = client
            .session(ReceiverStream::new(outbound))
            .await?
            .into_inner();
        let mut gateway = Self {
            frames,
            inbound,
            welcome: Welcome::default(),
            status: None,
            rows: VecDeque::new(),
        };
        match gateway.frame().await {
            Some(Ok(Frame::Welcome(welcome))) => gateway.welcome = welcome,
            other => panic!("no welcome but {other:?}"),
        }
        Ok(gateway)
    }

    pub(crate) async fn send(&self, frame: impl Into<GatewayFrame>) {
        self.frames.send(frame.into()).await.unwrap();
    }

    /// The next frame, whatever it is; `None` when the session is over.
    pub(crate) async fn frame(&mut self) -> Option<Result<Frame, Status>> {
        match timeout(PATIENCE, self.inbound.message())
            .await
            .expect("no frame came in time")
        {
            Ok(Some(frame)) => Some(Ok(frame.frame.expect("a known frame"))),
            Ok(None) => None,
            Err(status) => Some(Err(status)),
        }
    }

    /// The next frame that is no status; rows of a step come one by one.
    pub(crate) async fn next(&mut self) -> Got {
        // Statuses come all the time, so the bound is on the whole.
        timeout(PATIENCE, self.next_unbounded())
            .await
            .expect("nothing came in time")
    }

    async fn next_unbounded(&mut self) -> Got {
        loop {
            if let Some(row) = self.rows.pop_front() {
                return Got::Row(row);
            }
            match self.frame().await {
                Some(Ok(Frame::Step(step))) => self.rows.extend(step.rows),
                Some(Ok(Frame::Status(status))) => self.status = Some(status),
                Some(Ok(frame)) => return Got::Frame(frame),
                Some(Err(status)) => return Got::End(Some(status)),
                None => return Got::End(None),
            }
        }
    }

    /// The next row; anything else is a failure.
    pub(crate) async fn row(&mut self) -> Row {
        match self.next().await {
            Got::Row(row) => row,
            other => panic!("no row but {other:?}"),
        }
    }

    /// Rows up to the one that ends the run.
    pub(crate) async fn rows_to_the_end(&mut self) -> Vec<Row> {
        let mut rows = vec![self.row().await];
        while !rows.last().unwrap().run_finished {
            rows.push(self.row().await);
        }
        rows
    }

    /// Waits for a status that fits.
    pub(crate) async fn status_where(
        &mut self,
        fits: impl Fn(&WorkerStatus) -> bool,
    ) -> WorkerStatus {
        let waiting = async {
            loop {
                if let Some(status) = self.status.take().filter(&fits) {
                    return status;
                }
                match self.frame().await {
                    Some(Ok(Frame::Step(step))) => self.rows.extend(step.rows),
                    Some(Ok(Frame::Status(status))) => self.status = Some(status),
                    other => panic!("no status but {other:?}"),
                }
            }
        };
        timeout(PATIENCE, waiting)
            .await
            .expect("no such status came in time")
    }

    pub(crate) async fn attach(&self, run: u8, epoch: u64, from_index: u64) {
        self.send(Attach {
            run: id(run),
            epoch,
            from_index,
            credit: 1 << 20,
        })
        .await;
    }

    pub(crate) async fn cancel(&self, run: u8, epoch: u64) {
        self.send(Cancel {
            run: id(run),
            epoch,
        })
        .await;
    }

    pub(crate) async fn progress(&self, run: u8, acknowledged: u64, credit: u64) {
        let runs = vec![progress::Run {
            run: id(run),
            acknowledged,
            credit,
        }];
        self.send(Progress { runs }).await;
    }

    /// Leaves without a word, as a killed process does.
    pub(crate) fn vanish(self) {
        drop(self);
    }
}

/// What came next.
#[derive(Debug)]
pub(crate) enum Got {
    Row(Row),
    Frame(Frame),
    End(Option<Status>),
}

/// The id of a test's run.
pub(crate) fn id(run: u8) -> bytes::Bytes {
    vec![run; 16].into()
}

/// A run of `max_output_tokens` with much credit.
pub(crate) fn submit(run: u8, prompt: &[u32], max_output_tokens: u32) -> Submit {
    Submit {
        run: id(run),
        epoch: 1,
        version_digest: crate::harness::DIGEST.to_owned(),
        prompt: prompt.to_vec(),
        max_output_tokens,
        choices: 1,
        sampling: Some(sampling()),
        credit: 1 << 20,
        ..Submit::default()
    }
}

/// Sampling with a seed that tests know.
pub(crate) fn sampling() -> weir_protocol::worker::Sampling {
    weir_protocol::worker::Sampling {
        temperature: 1.0,
        top_p: 1.0,
        repetition_penalty: 1.0,
        seed: Some(7),
        ..Default::default()
    }
}
